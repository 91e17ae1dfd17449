"""`import repulse` relative to `import torch`: processor seconds of fresh processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio
from repulse_lab.speed.processes import process_seconds, start


def ratios(quick: bool) -> list[Ratio]:
    return [Ratio("import repulse", "import torch", goal=1.15)]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    runs = {name: partial(start, "-c", f"import {name}") for name in ("repulse", "torch")}
    times = setting.clock(now=process_seconds, rounds=9).alternate(runs)
    yield Measurement.of(ratios(setting.quick)[0], times.ratios("repulse", "torch"), times.median("repulse"))


BENCHMARK = Benchmark("import", "the import of repulse relative to that of torch", ratios, measure)
