"""Cost against size: a step relative to its products, over features, classes and heads; a whole fit over samples."""

from __future__ import annotations

from collections.abc import Iterator

from repulse.particles.fast.step import ClosedFormStep
from repulse.recipe import Recipe
from repulse_lab.speed.clock import Run
from repulse_lab.speed.fit import fit, rivals
from repulse_lab.speed.laplace_torch import has_laplace, synthetic
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio, quartiles
from repulse_lab.speed.step import RECIPES, products, steps

FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048)
CLASSES = (2, 5, 10, 30, 100, 300)
HEADS = (2, 5, 10, 20, 50)
SAMPLES = (1_000, 5_000, 20_000, 50_000, 100_000, 200_000)


def ratios(quick: bool) -> list[Ratio]:
    return []


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    some = slice(1, None, 3) if setting.quick else slice(None)
    for name, recipe in RECIPES.items():
        yield _steps("d", name, {d: (d, 10, recipe) for d in FEATURES[some]}, setting)
        yield _steps("K", name, {classes: (64, classes, recipe) for classes in CLASSES[some]}, setting)
        yield _steps("n", name, {n: (64, 10, recipe.replace(heads=n)) for n in HEADS[some]}, setting)
    yield from _fits(SAMPLES[:2] if setting.quick else SAMPLES, setting)


def _steps(panel: str, name: str, cases: dict[int, tuple[int, int, Recipe]], setting: BenchSetting) -> Curve:
    """Measure ratios of a step to its two products."""
    found = []
    for case in cases.values():
        runs = {"bare": products(*case), "step": steps(ClosedFormStep, *case)}
        found.append(quartiles(setting.clock(seconds=1.0).alternate(runs).ratios("step", "bare")))
    low, middle, high = (list(column) for column in zip(*found, strict=True))
    return Curve(panel, name, [float(x) for x in cases], middle, low, high)


def _fits(samples: tuple[int, ...], setting: BenchSetting) -> Iterator[Curve]:
    """Measure seconds of whole fits."""
    seconds: dict[str, list[float]] = {}
    for size in samples:
        problem = synthetic(size, 64)
        runs: dict[str, Run] = {"fs-RLL-E": fit(problem)}
        if has_laplace():
            runs["laplace-torch kron"] = rivals(problem)["sliced"]
        times = setting.clock(rounds=1 if setting.quick else 3, seconds=0.0).alternate(runs)
        for name in runs:
            seconds.setdefault(name, []).append(times.median(name))
    for name, line in seconds.items():
        yield Curve("N", name, [float(size) for size in samples], line)


BENCHMARK = Benchmark(
    "scaling", "the curves of the plot: cost against d, K, n and N", ratios, measure, threads=1, curves=8
)
