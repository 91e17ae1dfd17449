"""What was measured as one table, as JSON and as a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from repulse._files import write_whole
from repulse.errors import CheckpointError, expected
from repulse.evaluation.plots import INK, PALETTE, Draw, panels, save_picture, to_svg
from repulse.evaluation.table import Column, Table
from repulse_lab.speed.measurement import BenchmarkResult, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = 1
FILE = "speed.json"
COLUMNS = (
    Column("ratio", 3),
    Column("lower quartile", 3),
    Column("upper quartile", 3),
    Column("goal", 2),
    Column("met"),
)
PANELS = {
    "d": ("A step against features", "features d (K 10, n 10)", "time / two products"),
    "K": ("A step against classes", "classes K (d 64, n 10)", "time / two products"),
    "n": ("A step against heads", "heads n (d 64, K 10)", "time / two products"),
    "N": ("A whole fit against samples", "samples N (d 64, K 10, n 10)", "processor seconds"),
    "memory N": ("Memory against samples", "samples N", "MB beyond imports"),
    "memory K": ("Memory against classes", "classes K", "MB beyond imports"),
}
"""For each panel of the plot its title and the labels of its axes."""


class Ratios(Table):
    """A table whose last column says yes or no."""

    def cell(self, row: int, column: int) -> str:
        values = self.values(row, column)
        return ("yes" if values[0] else "no") if values and column == len(COLUMNS) - 1 else super().cell(row, column)


def table_of(findings: Sequence[BenchmarkResult], goals: bool = True) -> Table:
    """Return one row per ratio, with its goal and whether that is met, unless no goals are wanted; notes are below."""
    columns = COLUMNS if goals else COLUMNS[:3]
    table, notes = Ratios("what / baseline", columns), []
    for found in findings:
        for row in found.rows:
            name, met = row.about.name, None if row.met is None else float(row.met)
            if row.ratio is None:
                name += f" ({row.note})"
            elif row.note:
                notes += [] if row.note in notes else [row.note]
                name += f" [{notes.index(row.note) + 1}]"
            table.add(name, [[row.ratio, row.low, row.high, row.about.goal, met][: len(columns)]])
    lines = ["Ratios are medians over rounds in which both take turns."] if table.rows else []
    if any(found.quick for found in findings):
        lines[:1] = ["Measured with few repeats and small sizes: only a first look."]
    table.footnote = "\n".join([*lines, *(f"[{i}] {note}" for i, note in enumerate(notes, 1))])
    return table


def machine_of(findings: Sequence[BenchmarkResult]) -> str:
    """Return what it was measured on, in a line for each machine or date."""
    lines = []
    for found in findings:
        about = found.machine
        line = (
            f"{about['cores']} cores ({about['vectors']}), torch {about['torch']}, Python {about['python']}, "
            f"repulse {about['repulse']}, {found.date}"
        )
        lines += [] if line in lines else [line]
    return "\n".join(lines)


def plot_of(findings: Sequence[BenchmarkResult]) -> Figure | None:
    """Draw cost against size; None if there are no curves."""
    curves = [curve for found in findings for curve in found.curves if curve.x]
    shown = [panel for panel in PANELS if any(curve.panel == panel for curve in curves)]
    if not shown:
        return None
    draws = [_draw(panel, [curve for curve in curves if curve.panel == panel]) for panel in shown]
    return panels(draws, width=3.8, columns=3)


def _draw(panel: str, curves: Sequence[Curve]) -> Draw:
    def draw(axis: Axes) -> None:
        for curve, colour in zip(curves, cycle(PALETTE), strict=False):
            axis.plot(curve.x, curve.y, "o-", color=colour, markersize=3.5, linewidth=1.5, label=curve.name)
            if len(curve.low):
                axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        title, x, y = PANELS[panel]
        axis.set(title=title, xlabel=x, ylabel=y, xscale="log")
        sizes = sorted({size for curve in curves for size in curve.x})
        axis.set_xticks(sizes, [f"{size / 1000:g}k" if size % 1000 == 0 else f"{size:g}" for size in sizes])
        axis.minorticks_off()
        if panel in ("d", "K", "n"):
            axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, labelcolor=INK)

    return draw


def write(findings: Sequence[BenchmarkResult], out: Path) -> Path:
    """Write numbers and plot into a folder."""
    plot = plot_of(findings)
    if plot is not None:
        save_picture(plot, out / "speed.png")
        write_whole(out / "speed.svg", to_svg(plot).replace("currentColor", "#000000"))
    kept = {"format": FORMAT, "groups": [found.to_json() for found in findings]}
    return write_whole(out / FILE, json.dumps(kept, indent=1, allow_nan=False) + "\n")


def read(out: Path) -> list[BenchmarkResult]:
    """Read what `write` left in a folder."""
    path = out / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            raise CheckpointError(expected(f"the file {path}", f"of format {FORMAT}", kept["format"]))
        return [BenchmarkResult.from_json(found) for found in kept["groups"]]
    except (OSError, ValueError, KeyError, TypeError) as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise CheckpointError(expected(f"the file {path}", "what `repulse-lab bench` wrote", str(reason))) from reason
