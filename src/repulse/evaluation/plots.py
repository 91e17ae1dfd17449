"""Pictures of evaluations, and of methods next to each other: what is drawn in each panel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repulse._figures import INK, PALETTE, Draw, panels, save_picture, to_svg
from repulse.evaluation.evaluate import Evaluation
from repulse.metrics import auroc, ece, reliability, roc_curve
from repulse.prediction import ClassPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "PALETTE",
    "Draw",
    "evaluation_panels",
    "panels",
    "png_of",
    "reliability_diagram",
    "roc",
    "save_picture",
    "to_svg",
    "uncertainty_map",
]


def uncertainty_map(groups: Mapping[str, ClassPrediction], title: str) -> Draw:
    """Plot every input as a point: epistemic against aleatoric uncertainty."""

    def draw(axis: Axes) -> None:
        for (name, prediction), colour in zip(groups.items(), cycle(PALETTE), strict=False):
            x, y = prediction.aleatoric.cpu().numpy(), prediction.epistemic.cpu().numpy()
            axis.scatter(x, y, s=7, alpha=0.45, color=colour, label=name, linewidths=0, rasterized=True)
        axis.set(xlabel="aleatoric uncertainty (nats)", ylabel="epistemic uncertainty (nats)", title=title)
        axis.legend(loc="upper right", fontsize=8, markerscale=2.5, labelcolor=INK)

    return draw


def reliability_diagram(predictions: Mapping[str, ClassPrediction], targets: Tensor) -> Draw:
    """Plot accuracy against confidence in 15 bins; a calibrated prediction lies on the diagonal."""

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
    """Plot ROC curves of `name -> (in-distribution scores, out-of-distribution scores)`."""

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for (name, (inside, outside)), colour in zip(scores.items(), cycle(PALETTE), strict=False):
            fpr, tpr = roc_curve(inside, outside)
            label = f"{name} ({100 * auroc(inside, outside):.1f})"
            axis.plot(fpr, tpr, color=colour, linewidth=1.6, label=label)
        axis.set(xlabel="in-distribution inputs flagged", ylabel="out-of-distribution inputs flagged", title=title)
        axis.set(xlim=(0, 1), ylim=(0, 1.01))
        axis.legend(loc="lower right", fontsize=8, title="AUROC", title_fontsize=8, labelcolor=INK)

    return draw


def evaluation_panels(evaluation: Evaluation) -> Figure:
    """Plot calibration, selective prediction, and the scores of each out-of-distribution set."""
    draws = [_calibration(evaluation)]
    if evaluation.risk_coverage:
        draws.append(_selective(evaluation))
    colours = cycle(PALETTE[1:])
    draws += [_scores(evaluation, name, colour) for name, colour in zip(evaluation.ood, colours, strict=False)]
    return panels(draws, columns=4 if len(draws) <= 4 or len(draws) % 4 in (0, 3) else 3)


def _calibration(evaluation: Evaluation) -> Draw:
    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        bars = evaluation.reliability
        if evaluation.task == "regression":
            axis.plot(bars["level"], bars["coverage"], "o-", color=PALETTE[0], markersize=4, linewidth=1.5)
            axis.set(xlabel="promised share of targets", ylabel="share of targets inside", title="Intervals")
        else:
            largest = max(bars["share"])
            sizes = [8 + 90 * share / largest for share in bars["share"]]
            axis.plot(bars["confidence"], bars["accuracy"], color=PALETTE[0], linewidth=1.4, alpha=0.8)
            axis.scatter(bars["confidence"], bars["accuracy"], s=sizes, color=PALETTE[0], linewidths=0, clip_on=False)
            title = f"Reliability: ECE {100 * evaluation.id['ece']:.1f} %"
            axis.set(xlabel="confidence (dots: share of samples)", ylabel="accuracy", title=title)
        axis.set(xlim=(0, 1), ylim=(0, 1.02))

    return draw


def _selective(evaluation: Evaluation) -> Draw:
    def draw(axis: Axes) -> None:
        coverage, risk = ([100 * value for value in evaluation.risk_coverage[key]] for key in ("coverage", "risk"))
        axis.fill_between(coverage, risk, color=PALETTE[0], alpha=0.15, linewidth=0)
        axis.plot(coverage, risk, color=PALETTE[0], linewidth=1.6)
        title = f"Selective prediction: AURC {100 * evaluation.id['aurc']:.2f} %"
        axis.set(xlabel="inputs kept (%)", ylabel="errors among them (%)", title=title)
        axis.set(xlim=(0, 100), ylim=(0, max(1.0, 1.1 * max(risk))))

    return draw


def _scores(evaluation: Evaluation, name: str, colour: str) -> Draw:
    def draw(axis: Axes) -> None:
        edges = evaluation.histograms["edges"]
        for key, tint, label in (("id", PALETTE[0], "in-distribution"), (name, colour, name)):
            axis.stairs(evaluation.histograms[key], edges, fill=True, alpha=0.4, color=tint, label=label)
            axis.stairs(evaluation.histograms[key], edges, color=tint, linewidth=1.2)
        if 0 < 10 * edges[0] < edges[-1] and edges[1] / edges[0] < 1.001 * edges[-1] / edges[-2]:
            axis.set_xscale("log")
        mark = " †" if name in evaluation.oracle else ""
        title = f"{name}{mark}: AUROC {100 * evaluation.ood[name]['auroc']:.1f}"
        axis.set(xlabel="score" + (" († repelled on)" if mark else ""), ylabel="share of samples", title=title)
        axis.margins(x=0)
        axis.set_ylim(bottom=0)
        axis.legend(loc="best", fontsize=8, labelcolor=INK)

    return draw


def png_of(image: Tensor) -> bytes:
    """Encode an image `(C, H, W)`, grey or RGB with values in [0, 1], as a PNG file."""
    channels, height, width = image.shape
    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    colour = {1: 0, 3: 2}[channels]  # the two colour types of the format that are needed
    rows = b"".join(b"\0" + row.numpy().tobytes() for row in pixels)  # each row starts with its filter: none

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)
