"""Figures as SVG text whose lines and letters take the colour of the page around them.

Matplotlib is used through its object interface, so that no global state of the caller (backend, style) changes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from repulse._extras import needs
from repulse._files import explaining_writes, write_whole
from repulse.errors import DataError, expected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
"""Placeholder for the text colour of the page, replaced when the SVG is written."""

PALETTE = ("#3572c6", "#e08214", "#1b9e77", "#b0479a", "#7f7f7f")
"""Categorical colours that remain distinct in grey and for colour-blind readers."""

Draw = Callable[["Axes"], None]


def panels(
    draws: Sequence[Draw], *, width: float = 3.4, height: float = 3.1, share: bool = False, columns: int | None = None
) -> Figure:
    """Draw panels in one row, each by one function; in several rows if there are more than `columns`."""
    kind = _figure_class()
    across = min(len(draws), columns or len(draws))
    down = -(-len(draws) // across)
    figure = kind(figsize=(width * across, height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharex=share, sharey=share).flatten()
    for axis, draw in zip(axes, draws, strict=False):
        draw(axis)
        _style(axis)
    for axis in axes[len(draws) :]:
        axis.set_visible(False)
    figure.patch.set_alpha(0.0)
    return figure


@cache
def _figure_class() -> type[Figure]:
    """Return the class of figures that a notebook shows as they are, without the state that pyplot keeps."""
    with needs("matplotlib", extra="plots"):
        from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return _on_white(self, "png", 100)

    return Picture


def to_svg(figure: Figure) -> str:
    """Return the figure as SVG text: transparent, with letters as text and without a date."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "repulse"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def save_picture(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Write the figure on white to a file, in the format of its suffix."""
    kind, known = Path(path).suffix[1:].lower() or "png", figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise DataError(expected("path", f"a picture that ends in .{', .'.join(sorted(known))}", path))
    with explaining_writes(path):
        write_whole(path, _on_white(figure, kind, dpi))


def _on_white(figure: Figure, kind: str, dpi: int) -> bytes:
    """Return the figure as a file of some kind, on white instead of on nothing."""
    buffer = io.BytesIO()
    before = figure.patch.get_alpha()
    figure.patch.set_alpha(1.0)
    try:
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor="white")
    finally:
        figure.patch.set_alpha(before)
    return buffer.getvalue()


def _style(axis: Axes) -> None:
    axis.patch.set_alpha(0.0)
    axis.title.set_color(INK)
    axis.title.set_fontsize(11)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(9)
    axis.tick_params(colors=INK, labelsize=8, length=3)
    for side, spine in axis.spines.items():
        spine.set_color(INK)
        spine.set_linewidth(0.7)
        spine.set_visible(side in ("left", "bottom"))
    legend = axis.get_legend()
    if legend is not None:
        legend.get_frame().set_alpha(0.0)
        legend.get_frame().set_linewidth(0.0)
        legend.get_title().set_color(INK)
