"""Where the time of a step goes: each of its parts relative to the two matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from repulse.particles.fast.step import ClosedFormStep
from repulse.recipe import FS_RLL_E
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio
from repulse_lab.speed.step import SIZES, make_stepper, products

PARTS = {
    "_gather": "gathering the batches",
    "_forward": "product forward",
    "likelihood": "likelihood",
    "_repel": "repulsion",
    "_back": "product back",
    "_adam": "Adam",
}
REST = "everything else"


def ratios(quick: bool) -> list[Ratio]:
    return [
        Ratio(f"fs-RLL-E: {part}", "two products", f"d {d:,}, K {classes:,}, n {FS_RLL_E.heads}")
        for d, classes in SIZES[: 1 if quick else None]
        for part in (*PARTS.values(), REST)
    ]


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    wanted = iter(ratios(setting.quick))
    for d, classes in SIZES[: 1 if setting.quick else None]:
        bare, (stepper, step) = products(d, classes, FS_RLL_E), make_stepper(ClosedFormStep, d, classes, FS_RLL_E)
        spent = {part: watch(stepper, name) for name, part in PARTS.items()}
        whole: list[float] = []
        times = setting.clock().alternate({"bare": bare, "step": partial(_apart, step, spent, whole)})
        rest = [seconds - sum(parts) for seconds, *parts in zip(whole, *spent.values(), strict=True)]
        for seconds in (*spent.values(), rest):
            cost = statistics.median(seconds)
            yield Measurement.of(next(wanted), [cost / times.median("bare")], cost)


def _apart(step: Callable[[], object], spent: dict[str, list[float]], whole: list[float]) -> None:
    """Take a step, with the calls of each part (two of gathering, one per group of heads) added up."""
    for seconds in spent.values():
        seconds.append(0.0)
    begun = time.perf_counter()
    step()
    whole.append(time.perf_counter() - begun)


def watch(stepper: ClosedFormStep, name: str) -> list[float]:
    """Make a part of the stepper add its seconds to the last number of a list."""
    part, seconds = getattr(stepper, name), []

    def watched(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return part(*args, **options)
        finally:
            seconds[-1] += time.perf_counter() - begun

    setattr(stepper, name, watched)
    return seconds


BENCHMARK = Benchmark("profile", "where the time of a step goes", ratios, measure, threads=1)
