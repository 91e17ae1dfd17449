"""Tables and figures as the page of a reproduction shows them: text that is ready, and data for the script."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repulse.evaluation.compare import ORACLE
from repulse.evaluation.table import Table
from repulse_lab.study.figures import BUNDLE, Figure, Line, Lines, Points

MAX_ROWS = 40
"""Maximum number of rows of numbers below a figure; experiment.json has all."""


@dataclass(frozen=True)
class TableCell:
    """A number of a table, ready to be shown.

    Attributes:
        value: the mean, or a dash.
        spread: standard deviation over seeds, or nothing.
        mark: whether it carries a dagger.
        place: 0 for the best, 1 for the second.
        order: what the column is sorted by.
        printed: what the paper prints, or nothing.
        difference: ours minus the paper's, with its sign.
        tone: "better", "worse", "same", or "plain" where nothing is better.
        strength: of the colour, from 0 to 1.
    """

    value: str
    spread: str = ""
    mark: bool = False
    place: int | None = None
    order: float | None = None
    printed: str = ""
    difference: str = ""
    tone: str = "plain"
    strength: float = 0.0


@dataclass(frozen=True)
class Numbers:
    """The data of a panel as a plain table; `note` says what was left out."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def cells(table: Table) -> list[list[TableCell]]:
    """Return every cell of a table."""
    widest: dict[int, float] = {}
    for (row, column), printed in table.printed.items():
        gap, axis = abs(table.mean(row, column) - printed), row if table.across else column
        widest[axis] = max(widest.get(axis, 0.0), gap if math.isfinite(gap) else 0.0)
    return [
        [_cell(table, i, j, widest.get(i if table.across else j, 0.0)) for j in range(len(table.columns))]
        for i in range(len(table.rows))
    ]


def _cell(table: Table, row: int, column: int, widest: float) -> TableCell:
    spec, mean, printed = table.columns[column], table.mean(row, column), table.printed.get((row, column))
    shown: dict[str, Any] = {} if printed is None else {"printed": f"{printed:.{spec.digits}f}".replace("-", "−")}
    value, _, spread = table.cell(row, column).removesuffix(" †").replace("-", "−").partition(" ± ")
    if value == "–":
        return TableCell(value, **shown)
    if printed is not None:
        gap = round(mean - printed, spec.digits)
        gain = {"higher": gap, "lower": -gap, "": 0.0}[spec.better]
        shown["difference"] = signed(gap, spec.digits)
        shown["tone"] = "plain" if not spec.better else "same" if gap == 0 else "better" if gain > 0 else "worse"
        # twenty steps of the last digit are a strong colour, and less is not, even if it is the largest gap around
        shown["strength"] = min(1.0, round(abs(gap) / max(widest, 20 * 10**-spec.digits), 2))
    return TableCell(value, spread, (row, column) in table.marks, table.place(row, column), mean, **shown)


def footnotes(table: Table) -> list[str]:
    """Return what is said below a table."""
    seeds = max((len(seeds) for _, seeds in table.rows), default=0)
    notes = [table.footnote] if table.footnote else []
    notes += [ORACLE] if table.marks and "†" not in table.footnote else []
    return notes + ([f"± is the standard deviation over {seeds} seeds."] if seeds > 1 else [])


def drawn(figure: Figure) -> str:
    """Return what the script needs to draw a figure, as JSON that cannot end the script element it is in."""
    panels = figure.to_json()["panels"]
    for panel, source in zip(panels, figure.panels, strict=True):
        if isinstance(source, Lines):
            bundled = set(map(id, bundle(source)))
            for line, one in zip(panel["lines"], source.lines, strict=True):
                line["bundle"] = id(one) in bundled
    text = json.dumps(_rounded(panels), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def bundle(panel: Lines) -> list[Line]:
    """Return lines that are too many to tell apart: those without a name, or all."""
    curves = [line for line in panel.lines if not line.dots]
    if len(curves) <= BUNDLE:
        return []
    return [line for line in curves if not line.name] or curves


def numbers(figure: Figure) -> list[Numbers]:
    """Return the lines of a figure as tables, and its points as counts and medians."""
    found = []
    for panel in figure.panels:
        if isinstance(panel, Lines):
            found.append(_of_lines(panel))
        if isinstance(panel, Points):
            rows = [[g.name, str(len(g.x)), *(written(_median(values)) for values in (g.x, g.y))] for g in panel.groups]
            found.append(Numbers(panel.title, ["group", "points", f"median {panel.x}", f"median {panel.y}"], rows))
    return found


def _of_lines(panel: Lines) -> Numbers:
    bundled = bundle(panel)
    known = set(map(id, bundled))
    columns = {line.name or panel.y: _by_x(line) for line in panel.lines if id(line) not in known}
    every = sorted({x for line in panel.lines for x in line.x if math.isfinite(x)})
    step = max(1, -(-len(every) // MAX_ROWS))
    if bundled:
        at: dict[float, list[float]] = {}
        for line in bundled:
            for x, y in zip(line.x, line.y, strict=True):
                at.setdefault(x, []).extend([y] if math.isfinite(y) else [])
        for name, summarise in (("mean", statistics.fmean), ("lowest", min), ("highest", max)):
            columns[f"{name} of {len(bundled)}"] = {x: written(summarise(values)) for x, values in at.items() if values}
    rows = [[written(x), *(column.get(x, "–") for column in columns.values())] for x in every[::step]]
    note = f"One row in {step} of {len(every)}; all are in experiment.json." if step > 1 else ""
    return Numbers(panel.title, [panel.x, *columns], rows, note)


def _by_x(line: Line) -> dict[float, str]:
    if not len(line.low):
        return {x: written(y) for x, y in zip(line.x, line.y, strict=True)}
    parts = zip(line.x, line.y, line.low, line.high, strict=True)
    return {x: f"{written(y)} ({written(low)} to {written(high)})" for x, y, low, high in parts}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(finite) if (finite := [value for value in values if math.isfinite(value)]) else None


def anchor(name: str) -> str:
    """Return a name as part of an address within the page.

    Examples:
        >>> anchor("Table 1: <CIFAR-10>")
        'table-1-cifar-10'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign, and none if it is zero.

    Examples:
        >>> [signed(value, 1) for value in (1.25, -0.3, -0.01, -12345.6)]
        ['+1.2', '−0.3', '0.0', '−12,346']
    """
    if abs(value) >= 1000:
        return f"{value:+,.0f}".replace("-", "−")
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def written(value: float | None) -> str:
    """Return a number in four digits, or a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}".replace("-", "−")


def duration(minutes: float) -> str:
    """Return minutes as people say them.

    Examples:
        >>> [duration(value) for value in (0.2, 12.6, 130)]
        ['under a minute', '13 min', '2 h 10 min']
    """
    whole = round(minutes)
    if whole < 60:
        return f"{whole} min" if whole else "under a minute"
    return f"{whole // 60} h {whole % 60} min"


def _rounded(data: Any) -> Any:
    """Round to five digits, which are more than a screen shows."""
    if isinstance(data, float):
        return float(f"{data:.5g}")
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list) else data
