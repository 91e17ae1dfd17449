"""Figures as data: what is drawn where, so that the same figure can be a picture, a file, and live on a page.

A `Figure` is a few panels under one caption; a panel is `Lines`, `Points` or `Heat`. All of it is plain JSON.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

from repulse._files import without_nan
from repulse.errors import CheckpointError, expected
from repulse.evaluation.plots import INK, PALETTE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

BUNDLE = 12
"""Above this number of lines, those without a band are drawn thin, and all without names."""


@dataclass(frozen=True)
class Line:
    """One line, with a band around it if `low` and `high` are given, or dots instead of a line.

    Attributes:
        name: in the legend; empty for none.
        x: where.
        y: how much.
        low: lower edge of the band.
        high: upper edge.
        dots: whether these are single points.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: bool = False

    @staticmethod
    def over(name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Line:
        """Return the mean of several runs and, from two on, a band of one standard deviation.

        Examples:
            >>> line = Line.over("MAP", [0.0, 1.0], [[1.0, 4.0], [3.0, 4.0]])
            >>> line.y, line.high
            ([2.0, 4.0], [3.4142, 4.0])
        """
        at = list(zip(*runs, strict=True))
        means = [statistics.fmean(values) for values in at]
        spread = [statistics.stdev(values) for values in at] if len(runs) > 1 else []
        low, high = ([round(m + side * s, 4) for m, s in zip(means, spread, strict=False)] for side in (-1, 1))
        return Line(name, x, [round(mean, 4) for mean in means], low, high)


@dataclass(frozen=True)
class Lines:
    """Lines over one axis.

    Attributes:
        title: of the panel.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        lines: what is drawn.
        diagonal: also a dotted line from (0, 0) to (1, 1).
        x_range: limits of the horizontal axis, if not those of the data.
        y_range: likewise.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    diagonal: bool = False
    x_range: Sequence[float] = ()
    y_range: Sequence[float] = ()
    kind: str = "lines"

    def draw(self, axis: Axes) -> None:
        many = len(self.lines) > BUNDLE
        if self.diagonal:
            axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for line, colour in zip(self.lines, cycle(PALETTE), strict=False):
            thin, name = many and not len(line.low), line.name or None
            tint = colour if not many else PALETTE[0] if thin else PALETTE[1]
            if line.dots:
                axis.plot(line.x, line.y, ".", color=INK, markersize=3, label=name)
                continue
            axis.plot(line.x, line.y, color=tint, linewidth=0.6 if thin else 1.5, alpha=0.6 if thin else 1, label=name)
            if len(line.low):
                axis.fill_between(line.x, line.low, line.high, color=tint, alpha=0.15, linewidth=0)
        _labels(axis, self)
        if not many and any(line.name for line in self.lines):
            axis.legend(fontsize=7, labelcolor=INK)


@dataclass(frozen=True)
class PointGroup:
    """Points of one colour.

    Attributes:
        name: in the legend.
        x: where.
        y: likewise.
        images: for each point a small picture as base64 PNG, shown when it is pointed at; may be empty.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    images: Sequence[str] = ()


@dataclass(frozen=True)
class Points:
    """Groups of points."""

    title: str
    x: str
    y: str
    groups: Sequence[PointGroup]
    x_range: Sequence[float] = ()
    y_range: Sequence[float] = ()
    kind: str = "points"

    def draw(self, axis: Axes) -> None:
        for group, colour in zip(self.groups, cycle(PALETTE), strict=False):
            axis.scatter(group.x, group.y, s=7, alpha=0.45, color=colour, label=group.name, linewidths=0)
        _labels(axis, self)
        axis.legend(loc="upper right", fontsize=8, markerscale=2.5, labelcolor=INK)


@dataclass(frozen=True)
class Heat:
    """Values on a grid, and perhaps points on top.

    Attributes:
        title: of the panel.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        values: rows from bottom to top, each from left to right; None where there is nothing.
        x_range: left and right edge.
        y_range: bottom and top edge.
        log: colours by the logarithm.
        scale: what the colours mean, with its unit.
        most: the value of the strongest colour, if panels are to be compared.
        groups: points on top.
    """

    title: str
    x: str
    y: str
    values: Sequence[Sequence[float | None]]
    x_range: Sequence[float]
    y_range: Sequence[float]
    log: bool = False
    scale: str = ""
    most: float | None = None
    groups: Sequence[PointGroup] = ()
    kind: str = "heat"

    def draw(self, axis: Axes) -> None:
        import numpy as np
        from matplotlib.colors import LogNorm, Normalize

        values = np.array([[np.nan if v is None else v for v in row] for row in self.values], dtype=float)
        top = self.most if self.most is not None else np.nanmax(values) if np.isfinite(values).any() else 1.0
        norm = LogNorm(1, max(top, 2)) if self.log else Normalize(0, max(top, 1e-12))
        (left, right), (bottom, upper) = self.x_range, self.y_range
        where = (left, right, bottom, upper)
        drawn = axis.imshow(values, origin="lower", extent=where, aspect="auto", norm=norm, cmap="viridis")
        for group, colour in zip(self.groups, ("#ffffff", "#e08214"), strict=False):
            axis.scatter(group.x, group.y, s=4, color=colour, label=group.name, linewidths=0.2, edgecolors="#333333")
        bar = axis.figure.colorbar(drawn, ax=axis, label=self.scale)
        bar.ax.tick_params(colors=INK, labelsize=7)
        bar.ax.yaxis.label.set_color(INK)
        _labels(axis, self)


@dataclass(frozen=True)
class Figure:
    """Panels under one caption.

    Attributes:
        name: of its files, without ending.
        caption: what it shows, in a sentence or two.
        alt: what is to be seen, for those who cannot see it.
        panels: side by side.
        columns: most panels in a row.
    """

    name: str
    caption: str
    alt: str
    panels: Sequence[Lines | Points | Heat] = field(default_factory=list)
    columns: int = 3

    def picture(self) -> Picture:
        """Draw the figure by matplotlib."""
        return panels([panel.draw for panel in self.panels], columns=self.columns, width=3.8)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON; None where there is no number."""
        return without_nan(asdict(self))

    @staticmethod
    def from_json(kept: dict[str, Any]) -> Figure:
        """Read what `to_json` gave."""
        try:
            parts = [_panel(dict(part)) for part in kept["panels"]]
            return Figure(kept["name"], kept["caption"], kept["alt"], parts, kept["columns"])
        except (KeyError, TypeError) as reason:
            raise CheckpointError(expected("kept", "the JSON of a figure", repr(reason))) from reason


def _panel(kept: dict[str, Any]) -> Lines | Points | Heat:
    if kept["kind"] == "lines":
        kept["lines"] = [Line(**_with_nan(line, "x", "y", "low", "high")) for line in kept["lines"]]
        return Lines(**kept)
    kept["groups"] = [PointGroup(**_with_nan(group, "x", "y")) for group in kept["groups"]]
    return Points(**kept) if kept["kind"] == "points" else Heat(**kept)


def _with_nan(kept: dict[str, Any], *lists: str) -> dict[str, Any]:
    return kept | {name: [math.nan if value is None else value for value in kept[name]] for name in lists}


def _labels(axis: Axes, panel: Lines | Points | Heat) -> None:
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.x_range:
        axis.set_xlim(*panel.x_range)
    if panel.y_range:
        axis.set_ylim(*panel.y_range)


__all__ = ["Figure", "Heat", "Line", "Lines", "PointGroup", "Points"]
