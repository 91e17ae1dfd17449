"""Pictures of one fit, and of one batch of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repulse._figures import INK, PALETTE, Draw, panels, save_picture
from repulse.errors import DataError, expected
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repulse.particles.history import Epoch

__all__ = ["fit_panels", "prediction_panels", "save_picture"]

MAX_POINTS = 5000
"""Samples that are drawn, at most; evenly spaced ones of more."""


def fit_panels(history: Sequence[Epoch]) -> Figure:
    """Plot the loss of each epoch, and the epistemic uncertainty on the data and on the repulsion samples."""
    if not history:
        raise DataError(expected("the history of the fit", "of at least one epoch", "none"))
    epochs = list(range(1, len(history) + 1))
    line = "o-" if len(epochs) < 20 else "-"

    def loss(axis: Axes) -> None:
        axis.plot(epochs, [epoch.nll for epoch in history], line, color=PALETTE[0], markersize=3, linewidth=1.6)
        axis.set(xlabel="epoch", ylabel="negative log-likelihood", title="Fit")

    def disagreement(axis: Axes) -> None:
        curves = {
            "training data": [epoch.epistemic_train for epoch in history],
            "repulsion samples": [epoch.epistemic_repulsion for epoch in history],
        }
        for (name, values), colour in zip(curves.items(), cycle(PALETTE), strict=False):
            if None not in values:
                axis.plot(epochs, values, line, color=colour, markersize=3, linewidth=1.6, label=name)  # pyright: ignore[reportArgumentType]
        axis.set(xlabel="epoch", ylabel="epistemic uncertainty", title="Disagreement")
        axis.set_ylim(bottom=0)
        axis.legend(loc="best", fontsize=8, labelcolor=INK)

    return panels([loss, disagreement])


def prediction_panels(prediction: Prediction, targets: Tensor | None = None) -> Figure:
    """Plot predictions of classes or of numbers; see `Prediction.plot`."""
    if not len(prediction):
        raise DataError(expected("predictions for a picture", "at least one", "none"))
    if targets is not None:
        targets = torch.as_tensor(targets).cpu()
        if targets.shape != (len(prediction),):
            got = f"shape {tuple(targets.shape)}"
            raise DataError(expected("targets", f"{len(prediction)}, one for each sample", got))
    step = -(-len(prediction) // MAX_POINTS)
    few = prediction[::step].cpu()
    targets = None if targets is None else targets[::step]
    if isinstance(few, ClassPrediction):
        return panels([_map(few, targets), _shares(few)])
    if isinstance(few, RegressionPrediction):
        return panels([_intervals(few, targets)], width=6.8)
    raise DataError(expected("predictions for a picture", "of classes or of numbers", type(prediction).__name__))


def _map(prediction: ClassPrediction, targets: Tensor | None) -> Draw:
    def draw(axis: Axes) -> None:
        groups = {"samples": torch.ones(len(prediction), dtype=torch.bool)}
        if targets is not None:
            right = prediction.labels == targets
            groups = {"right": right, "wrong": ~right}
        for (name, members), colour in zip(groups.items(), cycle(PALETTE), strict=False):
            x, y = prediction.aleatoric[members].numpy(), prediction.epistemic[members].numpy()
            label = f"{name} ({int(members.sum())})"
            axis.scatter(x, y, s=9, alpha=0.55, color=colour, label=label, linewidths=0, rasterized=True)
        axis.set(xlabel="aleatoric: ambiguous", ylabel="epistemic: unfamiliar", title="Both doubts (nats)")
        if targets is not None:
            axis.legend(loc="best", fontsize=8, markerscale=2, labelcolor=INK)

    return draw


def _shares(prediction: ClassPrediction) -> Draw:
    def draw(axis: Axes) -> None:
        for name, colour in (("aleatoric", PALETTE[0]), ("epistemic", PALETTE[1])):
            values = getattr(prediction, name).sort().values
            share = torch.linspace(0, 100, len(values))
            axis.plot(share, values, color=colour, linewidth=1.6, label=name)
        axis.set(xlabel="samples (%), from sure to unsure", ylabel="nats", title="How much doubt", xlim=(0, 100))
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return draw


def _intervals(prediction: RegressionPrediction, targets: Tensor | None) -> Draw:
    def draw(axis: Axes) -> None:
        order = prediction.mean.argsort()
        shown, place = prediction[order], range(len(prediction))
        low, high = shown.interval(0.95)
        axis.fill_between(place, low, high, color=PALETTE[0], alpha=0.2, linewidth=0, label="95 % interval")
        spread = 1.96 * shown.epistemic.sqrt()
        below, above = shown.mean - spread, shown.mean + spread
        axis.fill_between(place, below, above, color=PALETTE[1], alpha=0.4, linewidth=0, label="of it epistemic")
        axis.plot(place, shown.mean, color=PALETTE[0], linewidth=1.4, label="mean")
        if targets is not None:
            axis.plot(place, targets[order], "o", color=INK, markersize=2.5, label="targets")
        axis.set(xlabel="samples, by their mean", ylabel="prediction", title="Predictions")
        axis.margins(x=0)
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return draw
