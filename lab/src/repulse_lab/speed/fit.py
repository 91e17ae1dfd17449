"""A whole fit relative to that of laplace-torch on the same features, and to an epoch of training the network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from repulse.backbone import compute_features, split
from repulse.errors import DataError
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.recipe import FS_RLL_E, Recipe
from repulse.repulsion import SyntheticImages
from repulse_lab.data.images import normalise
from repulse_lab.networks import build
from repulse_lab.networks.train import Schedule, train
from repulse_lab.speed.clock import Run
from repulse_lab.speed.laplace_torch import (
    NEEDS_LAPLACE,
    FeatureProblem,
    collated,
    fit_laplace,
    has_laplace,
    sliced,
    synthetic,
)
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio
from repulse_lab.study.problems import CIFAR10

RESNET20 = CIFAR10.published["resnet20"]
BATCH = 128
STEPS = 16
"""Of training, from which an epoch is reckoned."""
THING, RIVAL = "fs-RLL-E: whole fit", "laplace-torch kron fit"
LONG, SHORT = FS_RLL_E.replace(epochs=30, lr=1e-4, decay="none"), FS_RLL_E.replace(epochs=3, lr=5e-3)
"""How the paper fits heads, and what comes as far in a tenth of the steps."""
FAST = "fs-RLL-E, 3 epochs at 5e-3: whole fit"


def ratios(quick: bool) -> list[Ratio]:
    samples = 5_000 if quick else 50_000
    small, large = f"{samples:,} x 64", f"{samples:,} x 512"
    found = [
        Ratio(THING, RIVAL, small, None if quick else 0.3),
        Ratio(FAST, RIVAL, small, None if quick else 0.3),
        Ratio(THING, f"{RIVAL} by DataLoader", small),
        Ratio(THING, "an epoch of training ResNet-20", small),
        Ratio(FAST, "30 epochs of Adam at 1e-4", small),
    ]
    return found if quick else [*found, Ratio(THING, RIVAL, large)]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    wanted = ratios(setting.quick)
    samples = 5_000 if setting.quick else 50_000
    problem, note = features_of(setting, samples)
    steps = 1 if setting.quick else STEPS
    runs = {"fit": fit(problem), "short": fit(problem, SHORT), "long": fit(problem, LONG), "epoch": training(steps)}
    times = setting.clock(rounds=5).alternate(runs | rivals(problem))
    cost = times.median("fit")
    for about, ours, rival in zip(wanted, ("fit", "short", "fit"), ("sliced", "sliced", "collated"), strict=False):
        if rival in times.rounds:
            yield Measurement.of(about, times.ratios(ours, rival), times.median(ours), note=note)
        else:
            yield Measurement.missing(about, NEEDS_LAPLACE)
    epoch = math.ceil(samples / BATCH) / steps
    reckoned = f"{note}; the epoch is reckoned from {steps} step{'s' if steps > 1 else ''}"
    yield Measurement.of(wanted[3], times.ratios("fit", "epoch", epoch), cost, note=reckoned)
    reached = " against ".join(f"{objective(problem, recipe):.4f}" for recipe in (SHORT, LONG))
    so_far = f"{note}; objective {reached}; of the default fit {objective(problem, FS_RLL_E):.4f}"
    yield Measurement.of(wanted[4], times.ratios("short", "long"), times.median("short"), note=so_far)
    for about in wanted[5:]:
        yield _large(setting, about, samples) if has_laplace() else Measurement.missing(about, NEEDS_LAPLACE)


def _large(setting: BenchSetting, about: Ratio, samples: int) -> Measurement:
    problem = synthetic(samples, 512)
    times = setting.clock(rounds=5).alternate({"fit": fit(problem), "sliced": rivals(problem)["sliced"]})
    return Measurement.of(about, times.ratios("fit", "sliced"), times.median("fit"), note="synthetic features")


def features_of(setting: BenchSetting, samples: int) -> tuple[FeatureProblem, str]:
    """Compute features of CIFAR-10 by the published ResNet-20 once and keep them; else synthetic ones."""
    if setting.data is None or setting.quick:
        return synthetic(samples, 64), "synthetic features"
    try:
        images, targets = CIFAR10.training_set(setting.data, setting.progress)
        network = RESNET20.load(RESNET20.path(setting.data))
    except (DataError, FileNotFoundError):
        return synthetic(samples, 64), "synthetic features, for want of CIFAR-10 and the weights of ResNet-20"
    batches = Batches(images, targets)
    backbone = split(network, next(iter(batches))[0], layers="last")
    kept = setting.out / "cache" / "cifar10-resnet20"
    found = compute_features(backbone, batches, SyntheticImages(), cache=kept, progress=setting.progress)
    assert found.repulsion is not None
    weight, bias = (part.detach() for part in backbone.weights)
    train, away = found.train.clone(), found.repulsion.clone()  # in memory, where laplace-torch has them too
    return FeatureProblem(train, found.targets.clone(), away, weight, bias), "CIFAR-10 by ResNet-20"


class Batches:
    """Images as a network takes them, made when they are asked for."""

    def __init__(self, images: Tensor, targets: Tensor) -> None:
        self.images, self.targets = images.split(BATCH), targets.split(BATCH)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Any]:
        for part, target in zip(self.images, self.targets, strict=True):
            yield normalise(part, CIFAR10.mean, CIFAR10.std).contiguous(memory_format=torch.channels_last), target


def fit(problem: FeatureProblem, recipe: Recipe = FS_RLL_E) -> Callable[[], Heads]:
    """Return the fit as users call it."""

    def run() -> Heads:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of heads that could have been fitted better
            return fit_heads(problem.train, problem.targets, problem.repulsion, recipe, progress=False)

    return run


def objective(problem: FeatureProblem, recipe: Recipe) -> float:
    """Return what a fit minimises per head, without the prior, over its last epoch."""
    last = fit(problem, recipe)().history[-1]
    return last.nll + recipe.strength_for(len(problem.weight)) * (last.repulsion or 0.0)


def rivals(problem: FeatureProblem) -> dict[str, Run]:
    """Return fits by laplace-torch on the same features, if it is installed."""
    if not has_laplace():
        return {}
    loaders = {"sliced": sliced(problem), "collated": collated(problem)}
    return {name: lambda loader=loader: fit_laplace(problem, loader) for name, loader in loaders.items()}


def training(steps: int) -> Run:
    """Return some steps of training a ResNet-20; what the images show does not matter."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (steps * BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
    targets = torch.randint(10, (len(images),), generator=generator)
    network, schedule = build("resnet20"), Schedule(epochs=1, lr=0.01, batch_size=BATCH, crop=4, flip=True)
    return lambda: train(network, images, targets, schedule, mean=CIFAR10.mean, std=CIFAR10.std, progress=False)


BENCHMARK = Benchmark(
    "fit",
    "a whole fit relative to laplace-torch's and to an epoch of the network's own",
    ratios,
    measure,
    threads=1,
)
