"""Figures as SVG text whose lines and letters take the colour of the page around them.

Matplotlib is used through its object interface, so that no global state (backend, style) of the caller is touched.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repulse.metrics import auroc, ece, reliability, roc_curve
from repulse.prediction import ClassPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""

PALETTE = ("#3572c6", "#e08214", "#1b9e77", "#b0479a", "#7f7f7f")
"""Categorical colours that stay apart in grey and for colour-blind readers."""

Draw = Callable[["Axes"], None]


def panels(draws: Sequence[Draw], *, width: float = 3.4, height: float = 3.1, share: bool = False) -> Figure:
    """One row of panels, each drawn by one function."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * len(draws), height), layout="constrained")
    axes = figure.subplots(1, len(draws), squeeze=False, sharex=share, sharey=share)[0]
    for axis, draw in zip(axes, draws, strict=True):
        draw(axis)
        _style(axis)
    figure.patch.set_alpha(0.0)
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as SVG text, transparent, with letters as letters and no date in it."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "repulse"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def save_picture(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """The figure as a picture file on white, in the format of the file's ending."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, facecolor="white")


def uncertainty_map(groups: Mapping[str, ClassPrediction], title: str) -> Draw:
    """Every input as a point: aleatoric uncertainty to the right, epistemic upwards."""

    def draw(axis: Axes) -> None:
        for (name, prediction), colour in zip(groups.items(), cycle(PALETTE), strict=False):
            x, y = prediction.aleatoric.cpu().numpy(), prediction.epistemic.cpu().numpy()
            axis.scatter(x, y, s=7, alpha=0.45, color=colour, label=name, linewidths=0, rasterized=True)
        axis.set(xlabel="aleatoric uncertainty (nats)", ylabel="epistemic uncertainty (nats)", title=title)
        axis.legend(loc="upper right", fontsize=8, markerscale=2.5, labelcolor=INK)

    return draw


def reliability_diagram(predictions: Mapping[str, ClassPrediction], targets: Tensor) -> Draw:
    """Accuracy against confidence in 15 bins; on the diagonal, confidence is honest."""

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for (name, prediction), colour in zip(predictions.items(), cycle(PALETTE), strict=False):
            confidence, accuracy, share = reliability(prediction, targets)
            kept = share > 0.005
            label = f"{name} (ECE {100 * ece(prediction, targets):.1f} %)"
            axis.plot(confidence[kept], accuracy[kept], "o-", color=colour, markersize=4, linewidth=1.5, label=label)
        axis.set(xlabel="confidence", ylabel="accuracy", title="Reliability", xlim=(0, 1), ylim=(0, 1))
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return draw


def roc(scores: Mapping[str, tuple[Tensor, Tensor]], title: str) -> Draw:
    """ROC curves of `name -> (scores inside, scores outside)`."""

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for (name, (inside, outside)), colour in zip(scores.items(), cycle(PALETTE), strict=False):
            fpr, tpr = roc_curve(inside, outside)
            label = f"{name} ({100 * auroc(inside, outside):.1f})"
            axis.plot(fpr, tpr, color=colour, linewidth=1.6, label=label)
        axis.set(xlabel="in-distribution inputs flagged", ylabel="foreign inputs flagged", title=title)
        axis.set(xlim=(0, 1), ylim=(0, 1.01))
        axis.legend(loc="lower right", fontsize=8, title="AUROC", title_fontsize=8, labelcolor=INK)

    return draw


def png_of(image: Tensor) -> bytes:
    """An image `(C, H, W)` with values in [0, 1] as PNG bytes."""
    from PIL import Image

    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
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
