"""`import repulse` beside `import torch`, without which nobody has networks: processor seconds of fresh processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from repulse_lab.speed.children import children_seconds, start
from repulse_lab.speed.record import Curve, Group, Ratio, Row, Setting


def ratios(quick: bool) -> list[Ratio]:
    return [Ratio("import repulse", "import torch", goal=1.15)]


def measure(setting: Setting) -> Iterator[Row | Curve]:
    runs = {name: partial(start, "-c", f"import {name}") for name in ("repulse", "torch")}
    times = setting.clock(now=children_seconds, rounds=9).alternate(runs)
    yield Row.of(ratios(setting.quick)[0], times.ratios("repulse", "torch"), times.median("repulse"))


GROUP = Group("import", "the import of repulse beside that of torch", ratios, measure)
