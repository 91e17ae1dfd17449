"""Features of a data set, computed and kept, relative to nothing but the network's passes over the same batches.

Networks may be brought into the memory layout in which they are fastest, so the bare passes are in that one too.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse.backbone import Backbone, compute_features, split
from repulse_lab.networks import build
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio, quartiles
from repulse_lab.speed.predict import images
from repulse_lab.speed.processes import ProcessError, start

BATCHES, SIZE = 96, 128
"""Enough of them that what is done once weighs little more than it does in life."""
LAYERS = {"last layer": "last", "with taps": "auto"}


def ratios(quick: bool) -> list[Ratio]:
    size = f"ResNet-20, {BATCHES // 24 if quick else BATCHES} batches of {SIZE}"
    goals = {"last layer": None if quick else 1.05}
    kept = [Ratio(f"features kept in a folder, {name}", "bare network", size, goals.get(name)) for name in LAYERS]
    folder = Ratio("features kept in a folder, last layer", "in memory", size, None if quick else 1.05)
    return [*kept, folder, Ratio("features by two processes", "by one, a thread each", size)]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    network, x = build("resnet20").eval(), images(SIZE)
    targets = torch.arange(SIZE) % 10
    batches = [(x + i, targets) for i in range(BATCHES // 24 if setting.quick else BATCHES)]
    layout, clock = fastest_layout(x, setting), setting.clock(now=time.perf_counter, rounds=6)
    same, prepared = build("resnet20").eval(), [part.contiguous(memory_format=layout) for part, _ in batches]
    same.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    setting.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=setting.out) as scratch:
        folders = map(Path(scratch).joinpath, map(str, itertools.count()))
        *kept, folder, together = ratios(setting.quick)
        note = "bare network in channels-last layout" if layout == torch.channels_last else ""
        for about, layers in zip(kept, LAYERS.values(), strict=True):
            backbone = split(network, x[:4], layers=layers)
            runs = {"bare": partial(passes, same, prepared), "ours": partial(extract, backbone, batches, folders)}
            times = clock.alternate(runs)
            yield Measurement.of(about, times.ratios("ours", "bare"), times.median("ours"), note=note)
        backbone = split(network, x[:4], layers="last")
        runs = {"memory": partial(extract, backbone, batches), "folder": partial(extract, backbone, batches, folders)}
        times = clock.alternate(runs)
        yield Measurement.of(folder, times.ratios("folder", "memory"), times.median("folder"))
    try:
        pairs = [[seconds_of(count, len(batches)) for count in (2, 1)] for _ in range(1 if setting.quick else 5)]
        two = quartiles([two for two, _ in pairs])[1]
        yield Measurement.of(together, [two / one for two, one in pairs], two)
    except ProcessError as reason:
        yield Measurement.missing(together, str(reason))


def seconds_of(processes: int, batches: int) -> float:
    """Measure the seconds for the features of some batches, by processes that `torchrun` starts."""
    several = "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"
    sizes = str(batches * SIZE), "0", "0"
    return int(start("-m", *several, "repulse_lab.speed.measured", "extract", *sizes, OMP_NUM_THREADS="1")) / 1e6


def fastest_layout(x: Tensor, setting: BenchSetting) -> torch.memory_format:
    """Find the memory layout in which the bare network takes least time."""
    runs = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        network = build("resnet20").eval().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        runs[str(layout)] = partial(passes, network, [x.contiguous(memory_format=layout)])
    times = setting.clock(now=time.perf_counter, seconds=1.0).alternate(runs)
    faster = times.median(str(torch.channels_last)) < times.median(str(torch.contiguous_format))
    return torch.channels_last if faster else torch.contiguous_format


@torch.inference_mode()
def passes(network: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        network(batch)


def extract(backbone: Backbone, batches: list[tuple[Tensor, Tensor]], folders: Iterator[Path] | None = None) -> None:
    compute_features(backbone, batches, None, cache=None if folders is None else next(folders), progress=False)


BENCHMARK = Benchmark(
    "features", "features computed and kept relative to the bare passes of the network", ratios, measure
)
