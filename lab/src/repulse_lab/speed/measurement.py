"""What is measured, in words and in numbers, as plain JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repulse.errors import CheckpointError, expected
from repulse_lab.speed.clock import Clock


@dataclass(frozen=True)
class Ratio:
    """A description: what `thing` costs over what it is compared to.

    Attributes:
        thing: what is measured.
        baseline: what it is compared to.
        size: of the problem.
        goal: the largest ratio that is good enough, or None.
    """

    thing: str
    baseline: str
    size: str = ""
    goal: float | None = None

    @property
    def name(self) -> str:
        return f"{self.thing} / {self.baseline}" + (f", {self.size}" if self.size else "")


@dataclass(frozen=True)
class Measurement:
    """A ratio that was measured, or a note that says why not.

    Attributes:
        about: the description.
        ratio: median over rounds.
        low: lower quartile.
        high: upper quartile.
        rounds: how many there were.
        cost: median cost of the thing itself.
        unit: of the cost, "s" or "MB".
        note: what else to know.
    """

    about: Ratio
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    cost: float | None = None
    unit: str = "s"
    note: str = ""

    @classmethod
    def of(cls, about: Ratio, ratios: Sequence[float], cost: float, unit: str = "s", note: str = "") -> Measurement:
        """Summarise the ratios of all rounds."""
        low, middle, high = quartiles(ratios)
        return cls(about, middle, low, high, len(ratios), cost, unit, note)

    @classmethod
    def missing(cls, about: Ratio, why: str) -> Measurement:
        return cls(about, note=f"not measured: {why}")

    @property
    def met(self) -> bool | None:
        """Check whether the goal is reached; None if there is none, or nothing was measured."""
        return None if self.ratio is None or self.about.goal is None else self.ratio <= self.about.goal


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile.

    Examples:
        >>> quartiles([3.0, 1.0, 2.0, 5.0, 4.0]), quartiles([7.0])
        ((2.0, 3.0, 4.0), (7.0, 7.0, 7.0))
    """
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True)
class Curve:
    """Cost against size.

    Attributes:
        panel: where it is drawn; one of `repulse_lab.speed.report.PANELS`.
        name: in the legend.
        x: sizes.
        y: costs.
        low: lower quartiles, if there are any.
        high: upper quartiles.
    """

    panel: str
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)


@dataclass(frozen=True)
class BenchSetting:
    """How to measure.

    Attributes:
        out: folder for results, and for what can be used again.
        quick: few repeats and small sizes.
        data: folder of the data sets, if there is one.
        progress: show bars.
    """

    out: Path
    quick: bool = False
    data: Path | None = None
    progress: bool = False

    def clock(self, **changes: Any) -> Clock:
        """Return a clock with as many rounds as there is time for."""
        few = {"rounds": min(3, changes.get("rounds", 3)), "seconds": 0.2} if self.quick else {}
        return Clock(**changes | few)


@dataclass(frozen=True)
class Benchmark:
    """Measurements that belong together.

    Attributes:
        name: of the group.
        title: what it asks, in a line.
        ratios: what is measured, with small sizes if `quick`; `measure` gives a row for each.
        measure: does it.
        threads: of torch; None for as many as it has.
        curves: how many curves `measure` gives as well.
    """

    name: str
    title: str
    ratios: Callable[[bool], Sequence[Ratio]]
    measure: Callable[[BenchSetting], Iterator[Measurement | Curve]]
    threads: int | None = None
    curves: int = 0


@dataclass(frozen=True)
class BenchmarkResult:
    """What a group has found.

    Attributes:
        group: its name.
        quick: whether with few repeats and small sizes.
        date: of the run.
        machine: what it ran on: cores, threads, versions.
        rows: ratios.
        curves: costs against sizes.
    """

    group: str
    quick: bool
    date: str
    machine: dict[str, Any]
    rows: list[Measurement] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(row) | {"met": row.met} for row in self.rows]
        return asdict(self) | {"rows": rows}

    @staticmethod
    def from_json(kept: dict[str, Any]) -> BenchmarkResult:
        """Read what `to_json` gave."""
        try:
            plain = {key: kept[key] for key in ("group", "quick", "date", "machine")}
            numbers = [{key: row[key] for key in row if key not in ("about", "met")} for row in kept["rows"]]
            abouts = [Ratio(**row["about"]) for row in kept["rows"]]
            rows = [Measurement(about, **row) for about, row in zip(abouts, numbers, strict=True)]
            return BenchmarkResult(**plain, rows=rows, curves=[Curve(**curve) for curve in kept["curves"]])
        except (AttributeError, KeyError, TypeError, ValueError) as reason:
            raise CheckpointError(expected("kept", "the JSON of measurements", repr(reason))) from reason
