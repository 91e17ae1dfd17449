"""A step of the fit relative to its two matrix products, which are the least it can do.

The products are the outputs of all heads on both batches and their way back to the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch

from repulse.particles.fast.step import ClosedFormStep
from repulse.particles.fit_data import FitData, identity
from repulse.particles.heads import Heads
from repulse.particles.loop import AutogradStep
from repulse.particles.pool import batches
from repulse.particles.tasks import Classification
from repulse.recipe import FS_RLL_E, Recipe
from repulse_lab.speed.clock import Run
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio

Stepper = TypeVar("Stepper", bound=ClosedFormStep | AutogradStep)

SIZES = ((64, 10), (512, 10), (640, 100), (2048, 1000))
"""Features and classes."""
RECIPES = {"fs-RLL-E": FS_RLL_E, "default recipe": Recipe()}
KINDS = {"": ClosedFormStep, " by autograd": AutogradStep}
GOALS = {("fs-RLL-E", 64): 6.0, ("fs-RLL-E", 512): 1.8, ("fs-RLL-E", 2048): 1.1}
ROWS, ROWS_OF_LARGE = 50_000, 4_000
"""From which batches are gathered; few for large features, of which even these do not stay in the cache."""


def ratios(quick: bool) -> list[Ratio]:
    return [
        Ratio(
            f"{name}: step{kind}",
            "two products",
            f"d {d:,}, K {classes:,}, n {recipe.heads}",
            None if kind else GOALS.get((name, d)),
        )
        for name, recipe in RECIPES.items()
        for d, classes in SIZES[: 2 if quick else None]
        for kind in KINDS
    ]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    wanted = iter(ratios(setting.quick))
    for recipe in RECIPES.values():
        for d, classes in SIZES[: 2 if setting.quick else None]:
            runs = {"bare": products(d, classes, recipe)}
            runs |= {kind: steps(stepper, d, classes, recipe) for kind, stepper in KINDS.items()}
            times = setting.clock().alternate(runs)
            for kind in KINDS:
                yield Measurement.of(next(wanted), times.ratios(kind, "bare"), times.median(kind))


def products(d: int, classes: int, recipe: Recipe) -> Run:
    """Return both products, as the step does them: samples last, into memory that is already there."""
    rows = recipe.batch_size + (recipe.repulsion_batch_size if recipe.space == "function" else 0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, d, generator=generator)
    weight = torch.randn(recipe.heads * classes, d, generator=generator)
    outputs, gradient = torch.empty(len(weight), rows), torch.empty_like(weight)

    def run() -> None:
        torch.mm(weight, x.T, out=outputs)
        torch.mm(outputs, x, out=gradient)

    return run


def steps(kind: type[ClosedFormStep | AutogradStep], d: int, classes: int, recipe: Recipe) -> Run:
    """Return steps of a fit, batch after batch."""
    return make_stepper(kind, d, classes, recipe)[1]


def make_stepper(kind: type[Stepper], d: int, classes: int, recipe: Recipe) -> tuple[Stepper, Run]:
    """Return what takes steps, and one step of it."""
    generator = torch.Generator().manual_seed(0)
    samples = ROWS if d <= 640 else ROWS_OF_LARGE
    x, away = (torch.randn(samples, d, generator=generator) for _ in range(2))
    y = torch.randint(classes, (samples,), generator=generator)
    problem = FitData(x, y, away, identity, Classification(classes))
    heads, mode = (
        Heads(recipe.heads, d, problem.task, generator=generator),
        torch.inference_mode(kind is ClosedFormStep),
    )
    with mode:  # as in a fit
        stepper = kind(heads, problem, recipe)
    strength = recipe.strength_for(classes)
    sizes = recipe.batch_size, recipe.repulsion_batch_size
    near, far = (batches(samples, size, generator, x.device) for size in sizes)

    @mode
    def run() -> None:
        stepper.step(next(near), next(far), 1e-4, strength, measure=False)

    return stepper, run


BENCHMARK = Benchmark(
    "step", "a step of the fit relative to the two matrix products it consists of", ratios, measure, threads=1
)
