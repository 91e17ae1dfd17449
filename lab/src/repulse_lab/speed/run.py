"""All groups of measurements, and the walk over those that are asked for."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tqdm import tqdm

from repulse._version import __version__
from repulse.errors import check_choice
from repulse_lab.speed import dense, deployed, features, fit, importing, memory, predict, profile, scaling, step
from repulse_lab.speed.clock import threads
from repulse_lab.speed.measurement import Benchmark, BenchmarkResult, BenchSetting, Measurement

BENCHMARKS = {
    group.name: group
    for group in (
        importing.BENCHMARK,
        step.BENCHMARK,
        profile.BENCHMARK,
        fit.BENCHMARK,
        predict.BENCHMARK,
        deployed.BENCHMARK,
        dense.BENCHMARK,
        features.BENCHMARK,
        memory.BENCHMARK,
        scaling.BENCHMARK,
    )
}


def chosen(names: Iterable[str] = ()) -> list[Benchmark]:
    """Choose benchmarks by their names, in our order; all of them if there are no names, or if one is "all"."""
    names = list(names) or ["all"]
    for name in names:
        check_choice("name", name, ["all", *BENCHMARKS])
    return [group for name, group in BENCHMARKS.items() if name in names or "all" in names]


def run(groups: Sequence[Benchmark], setting: BenchSetting) -> Iterator[BenchmarkResult]:
    """Measure one group after the other."""
    total = sum(len(group.ratios(setting.quick)) + group.curves for group in groups)
    with tqdm(total=total, unit="measurement", disable=not setting.progress, leave=False) as bar:
        for group in groups:
            bar.set_description(group.name)
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            with threads(group.threads) as used:
                found = BenchmarkResult(group.name, setting.quick, date, machine(used))
                for result in group.measure(setting):
                    (found.rows if isinstance(result, Measurement) else found.curves).append(result)  # pyright: ignore
                    bar.update()
            yield found


def machine(used: int) -> dict[str, Any]:
    """Describe the machine, without its name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cores": cores,
        "threads": used,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "repulse": __version__,
    }


def merged(before: Sequence[BenchmarkResult], now: Sequence[BenchmarkResult]) -> list[BenchmarkResult]:
    """Replace what was measured before by what is measured now, in our order."""
    newest = {found.group: found for found in (*before, *now)}
    return [newest[name] for name in BENCHMARKS if name in newest]


__all__ = ["BENCHMARKS", "chosen", "machine", "merged", "run"]
