"""A deployed ensemble relative to the bare network: the time of a call, for one input and for many, and sizes of files.

Prediction is one call of `ensemble.deploy()`, which checks nothing and reads no value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse.ensemble import Ensemble
from repulse.recipe import Recipe
from repulse_lab.networks import build
from repulse_lab.speed.clock import Run
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio
from repulse_lab.speed.predict import NETWORKS, RECIPES, bare, ensemble_on, images

BATCHES: dict[int, float | None] = {1: 1.15, 64: 1.03}
"""For each size of a batch the goal."""

FILES = ("saved heads", "exported ONNX file")


def ratios(quick: bool) -> list[Ratio]:
    found = []
    for title, *_ in _networks(quick).values():
        for name in _recipes(quick):
            for batch, goal in _batches(quick).items():
                found.append(Ratio(f"{name}: deployed", "bare network", f"{title}, batch {batch}", goal))
            found += [] if quick else [Ratio(f"{name}: {file}", "weights of the network", title) for file in FILES]
    return found


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    wanted, clock = iter(ratios(setting.quick)), setting.clock(rounds=15, seconds=10.0)
    for name in _networks(setting.quick):
        network = build(name).eval()
        for recipe in _recipes(setting.quick).values():
            ensemble = ensemble_on(network, images(4), recipe)
            for batch in _batches(setting.quick):
                x = images(batch)
                times = clock.alternate({"bare": bare(network, x), "ours": calling(ensemble, x)})
                yield Measurement.of(next(wanted), times.ratios("ours", "bare"), times.median("ours"))
            if not setting.quick:
                weights = sum(part.nbytes for part in network.state_dict().values())
                for size in _sizes(ensemble):
                    yield Measurement.of(next(wanted), [size / weights], size / 1e6, "MB")


def calling(ensemble: Ensemble, x: Tensor) -> Run:
    """Return a call of the deployed ensemble."""
    deployed: nn.Module = ensemble.deploy()

    def run() -> None:
        with torch.inference_mode():
            deployed(x)

    return run


def _networks(quick: bool) -> dict[str, tuple[str, int, float]]:
    return dict(list(NETWORKS.items())[: 1 if quick else None])


def _recipes(quick: bool) -> dict[str, Recipe]:
    return dict(list(RECIPES.items())[: 1 if quick else None])


def _batches(quick: bool) -> dict[int, float | None]:
    return {1: None, 8: None} if quick else dict(BATCHES)


def _sizes(ensemble: Ensemble) -> tuple[int, int]:
    """Return the bytes of the folder that `save` writes, and of the file that `export` writes."""
    with tempfile.TemporaryDirectory() as folder:
        heads = ensemble.save(Path(folder) / "heads")
        file = ensemble.export(Path(folder) / "model.onnx", images(4))
        return sum(path.stat().st_size for path in heads.rglob("*") if path.is_file()), file.stat().st_size


BENCHMARK = Benchmark(
    "deploy",
    "a call of a deployed ensemble relative to the bare network, and sizes of files",
    ratios,
    measure,
    threads=1,
)
