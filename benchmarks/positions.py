"""What predictions at every pixel cost beyond the network: memory at 1024 x 2048, time at 180 x 240.

Each number comes from a process of its own: the highest memory during one call, minus that just before it; the time of
one processor. The network is a small one, so that what heads cost shows; `large` has 24 layers of 128 channels instead.

python benchmarks/positions.py
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import repulse

CLASSES, SIZE, SMALL = 19, (1024, 2048), (180, 240)


class Network(nn.Module):
    """A few convolutions at a quarter of the size, and a bilinear interpolation."""

    def __init__(self, layers: int = 2, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, width, 3, stride=2, padding=1), nn.ReLU())
        deep = (layer for _ in range(layers) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU()))
        self.deep = nn.Sequential(*deep)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.head(self.deep(self.body(self.stem(x)))), x.shape[2:], mode="bilinear")


class OneLayer(nn.Module):
    """What one head cannot do without: a 1x1 convolution, the interpolation, a softmax and its entropy."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.head, self.features = network.head, torch.rand(1, network.head.in_channels, SMALL[0] // 4, SMALL[1] // 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probs = F.interpolate(self.head(self.features), x.shape[2:], mode="bilinear").softmax(dim=1)
        return -(probs * probs.log()).sum(dim=1)


def ensemble_of(network: nn.Module, heads: int = 10) -> repulse.Ensemble:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 64, 64, generator=generator)
    targets = torch.randint(CLASSES, (4, 64, 64), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return repulse.retrofit(
            network, [(images, targets)], recipe=repulse.Recipe(epochs=1, heads=heads), progress=False
        )


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.no_grad()
def measure(what: str) -> None:
    """Print the memory or the time of one call."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = (Network(24, 128) if what.startswith("large") else Network()).eval()
    what = what.removeprefix("large ")
    call: Any = network
    if what.startswith("layer"):
        call = OneLayer(network)
    elif not what.startswith("network"):
        call = ensemble_of(network, 20 if what.startswith("twenty") else 10).predict
    if what.endswith("memory"):
        x = torch.rand(1, 3, *SIZE)
        call(torch.rand(1, 3, 64, 64))
        before = megabytes()
        call(x)
        print(megabytes() - before)
        return
    x, times = torch.rand(1, 3, *SMALL), []
    for _ in range(8):
        began = time.process_time()  # one thread: what others do on the machine does not count
        call(x)
        times.append(time.process_time() - began)
    print(1000 * sorted(times)[2])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure")
    what = parser.parse_args().measure
    if what:
        measure(what)
        return
    found = {}
    times = [f"{size}{what} time" for size in ("", "large ") for what in ("network", "ensemble")]
    for name in ("network memory", "ensemble memory", *times, "twenty time", "layer time"):
        told = subprocess.run([sys.executable, __file__, "--measure", name], capture_output=True, text=True, check=True)
        found[name] = float(told.stdout)
    logits = 4 * CLASSES * SIZE[0] * SIZE[1] / 2**20
    print(
        f"the network's output at {SIZE[0]} x {SIZE[1]}: {logits:.0f} MB; twice that and 200 MB: {2 * logits + 200:.0f}"
    )
    print(f"peak of the network: {found['network memory']:.0f} MB; of `predict`: {found['ensemble memory']:.0f} MB")
    for size in ("", "large "):
        network, ensemble = (found[f"{size}{what} time"] for what in ("network", "ensemble"))
        print(f"at {SMALL[0]} x {SMALL[1]}: {size}network {network:.1f} ms, `predict` {ensemble:.1f} ms")
    more = (found["twenty time"] - found["ensemble time"]) / 10
    print(
        f"one more head: {more:.1f} ms; one layer, interpolated, with softmax and entropy: {found['layer time']:.1f} ms"
    )


if __name__ == "__main__":
    main()
