"""Prediction with uncertainty relative to the bare network, laplace-torch and a deep ensemble.

A prediction is only done when its probabilities and both uncertainties have been read.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from repulse.backbone import split
from repulse.ensemble import Ensemble
from repulse.errors import FitWarning
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification
from repulse.prediction import Prediction
from repulse.recipe import FS_RLL_E, Recipe
from repulse_lab.networks import build
from repulse_lab.speed.clock import Run
from repulse_lab.speed.laplace_torch import NEEDS_LAPLACE, fit_laplace, has_laplace, predict_laplace, sliced, synthetic
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio

RECIPES = {"fs-RLL-E": FS_RLL_E, "default recipe": Recipe()}
NETWORKS = {"resnet20": ("ResNet-20", 128, 1.02), "resnet18": ("ResNet-18", 32, 1.01)}
"""For each network its title, the size of a batch, and the goal."""


def ratios(quick: bool) -> list[Ratio]:
    found = []
    for title, batch, goal in NETWORKS.values():
        size = f"{title}, batch {batch // 8 if quick else batch}"
        found += [Ratio(f"{name}: predict", "bare network", size, None if quick else goal) for name in RECIPES]
    samples = 1_000 if quick else 10_000
    return [
        *found,
        Ratio("predict from features", "laplace-torch, 100 samples", f"{samples:,} x 64", None if quick else 0.02),
        Ratio("default recipe: predict", "five networks", f"ResNet-20, batch {16 if quick else 128}"),
    ]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    *through, features, five = ratios(setting.quick)
    wanted = iter(through)
    clock = setting.clock(now=time.perf_counter, seconds=30.0)  # a hundredth is to be seen
    for name, (_, batch, _) in NETWORKS.items():
        network, x = build(name).eval(), images(batch // 8 if setting.quick else batch)
        for recipe in RECIPES.values():  # in pairs: of three, the one in the middle would never follow itself
            times = clock.alternate({"bare": bare(network, x), "ours": predicting(network, x, recipe)})
            yield Measurement.of(next(wanted), times.ratios("ours", "bare"), times.median("ours"))
    yield _from_features(setting, features)
    members, x = [build("resnet20", seed=seed).eval() for seed in range(5)], images(16 if setting.quick else 128)
    together = [bare(member, x) for member in members]
    runs = {"five": lambda: [run() for run in together], "ours": predicting(members[0], x, Recipe())}
    times = clock.alternate(runs)
    yield Measurement.of(five, times.ratios("ours", "five"), times.median("ours"))


def _from_features(setting: BenchSetting, about: Ratio) -> Measurement:
    if not has_laplace():
        return Measurement.missing(about, NEEDS_LAPLACE)
    problem = synthetic(2_000, 64)
    posterior = fit_laplace(problem, sliced(problem))
    x = synthetic(1_000 if setting.quick else 10_000, 64).train
    heads = Heads(10, 64, Classification(10), generator=torch.Generator().manual_seed(0))
    runs = {"theirs": lambda: predict_laplace(posterior, x), "ours": lambda: read(heads.predict(x))}
    times = setting.clock(now=time.perf_counter).alternate(runs)
    return Measurement.of(about, times.ratios("ours", "theirs"), times.median("ours"))


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def bare(network: nn.Module, x: Tensor) -> Run:
    """Return a pass through the network alone, as a careful user calls it."""

    def run() -> None:
        with torch.inference_mode():
            network(x)

    return run


def predicting(network: nn.Module, x: Tensor, recipe: Recipe) -> Run:
    """Return a prediction by an ensemble on the network."""
    ensemble = ensemble_on(network, x[:4], recipe)
    return lambda: read(ensemble.predict(x))


def ensemble_on(network: nn.Module, x: Tensor, recipe: Recipe) -> Ensemble:
    """Return an ensemble on the network; its heads are those of the recipe, fitted to noise."""
    backbone = split(network, x, layers=recipe.layers)
    noise = torch.randn(2 * backbone.width, backbone.width, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # what they predict does not matter
        heads = fit_heads(
            noise,
            torch.arange(len(noise)) % 10,
            recipe=recipe.replace(space="none", epochs=1),
            start=backbone.weights,
            taps=backbone.width - backbone.penultimate,
            progress=False,
        )
    return Ensemble(backbone, heads)


def read(prediction: Prediction) -> None:
    """Ask for all that a prediction is made for."""
    _ = prediction.probs, prediction.aleatoric, prediction.epistemic  # pyright: ignore[reportAttributeAccessIssue]


BENCHMARK = Benchmark(
    "predict",
    "prediction with uncertainty relative to the bare network, laplace-torch and five networks",
    ratios,
    measure,
)
