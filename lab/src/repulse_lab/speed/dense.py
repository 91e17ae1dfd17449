"""Predictions at every pixel: their time relative to the bare network, what one more head costs, and their memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.ensemble import Ensemble
from repulse.recipe import Recipe
from repulse.retrofit import retrofit
from repulse_lab.speed.measured import peak
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio
from repulse_lab.speed.predict import bare
from repulse_lab.speed.processes import ProcessError, start

CLASSES, SMALL, LARGE = 19, (180, 240), (1024, 2048)
NETWORKS = {"2 layers of 64 channels": (2, 64), "24 layers of 128 channels": (24, 128)}
ALLOWED = 200
"""Megabytes beyond twice the network's output."""


class Network(nn.Module):
    """Convolutions at a quarter of the size, and a bilinear interpolation."""

    def __init__(self, layers: int = 2, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, width, 3, stride=2, padding=1), nn.ReLU())
        deep = (layer for _ in range(layers) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU()))
        self.deep = nn.Sequential(*deep)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.head(self.deep(self.body(self.stem(x)))), x.shape[2:], mode="bilinear")


def ratios(quick: bool) -> list[Ratio]:
    size, goals = f"{SMALL[0]} x {SMALL[1]}", {"24 layers of 128 channels": 1.1}
    titles = list(NETWORKS)[: 1 if quick else None]
    found = [Ratio("prediction at every pixel", "bare network", f"{size}, {t}", goals.get(t)) for t in titles]
    found.append(Ratio("one more head", "a 1x1 convolution, interpolated, its softmax and entropy", size))
    large = f"{LARGE[0]} x {LARGE[1]}, {CLASSES} classes, 10 heads"
    memory = Ratio("memory of a prediction at every pixel", f"twice the network's output and {ALLOWED} MB", large, 1.0)
    return found if quick else [*found, memory]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    wanted, clock = iter(ratios(setting.quick)), setting.clock(rounds=15, seconds=10.0)
    x = torch.rand(1, 3, *SMALL, generator=torch.Generator().manual_seed(0))
    for layers, width in list(NETWORKS.values())[: 1 if setting.quick else None]:
        network = Network(layers, width).eval()
        ensemble = ensemble_on(network)
        times = clock.alternate({"bare": bare(network, x), "ours": lambda one=ensemble: one.predict(x)})
        yield Measurement.of(next(wanted), times.ratios("ours", "bare"), times.median("ours"))
    network = Network().eval()
    few, many, layer = ensemble_on(network), ensemble_on(network, 20), one_layer(network)
    runs = {"few": lambda: few.predict(x), "many": lambda: many.predict(x), "layer": layer}
    times = clock.alternate(runs)
    each = [(b - a) / 10 for a, b in zip(times.rounds["few"], times.rounds["many"], strict=True)]
    found = [head / one for head, one in zip(each, times.rounds["layer"], strict=True)]
    yield Measurement.of(next(wanted), found, sorted(each)[len(each) // 2])
    if not setting.quick:
        yield _memory(next(wanted))


def _memory(about: Ratio) -> Measurement:
    allowed = 2 * 4 * CLASSES * LARGE[0] * LARGE[1] / 2**20 + ALLOWED
    try:
        used = float(start("-m", "repulse_lab.speed.dense", OMP_NUM_THREADS="1"))
    except ProcessError as reason:
        return Measurement.missing(about, str(reason))
    return Measurement.of(about, [used / allowed], used, "MB")


def one_layer(network: Network):
    """Return what one head cannot do without."""
    features = torch.rand(1, network.head.in_channels, SMALL[0] // 4, SMALL[1] // 4)

    def run() -> Tensor:
        with torch.inference_mode():
            probs = F.interpolate(network.head(features), SMALL, mode="bilinear").softmax(dim=1)
            return -(probs * probs.log()).sum(dim=1)

    return run


def ensemble_on(network: nn.Module, heads: int = 10) -> Ensemble:
    """Return an ensemble that was fitted in no time: how well does not matter."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 64, 64, generator=generator)
    targets = torch.randint(CLASSES, (4, 64, 64), generator=generator)
    recipe = Recipe(epochs=1, heads=heads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return retrofit(network, [(images, targets)], recipe=recipe, progress=False)


def main() -> None:
    """Print the megabytes that one prediction of a large image adds to those of this process."""
    ensemble = ensemble_on(Network().eval())
    x = torch.rand(1, 3, *LARGE)
    ensemble.predict(x[:, :, :64, :64])
    before = peak()
    ensemble.predict(x)
    sys.stdout.write(str((peak() - before) / 2**20))


BENCHMARK = Benchmark("dense", "predictions at every pixel relative to the bare network", ratios, measure, threads=1)

if __name__ == "__main__":
    main()
