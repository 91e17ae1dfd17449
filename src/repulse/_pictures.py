"""Pictures of one fit, and of one batch of predictions; what they show comes as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repulse._figures import INK, PALETTE, Draw, panels, save_picture
from repulse.errors import DataError, expected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repulse.particles.history import Epoch

__all__ = ["class_panels", "fit_panels", "number_panels", "save_picture", "several_number_panels"]


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


def class_panels(aleatoric: Tensor, epistemic: Tensor, right: Tensor | None) -> Figure:
    """Plot every sample on a map of both uncertainties, mistakes apart, and how much there is of each.

    Args:
        aleatoric: of each sample.
        epistemic: of each sample.
        right: whether each was predicted right, if that is known.
    """

    def both(axis: Axes) -> None:
        groups = {"samples": torch.ones_like(epistemic, dtype=torch.bool)}
        if right is not None:
            groups = {"right": right, "wrong": ~right}
        for (name, members), colour in zip(groups.items(), cycle(PALETTE), strict=False):
            x, y, label = aleatoric[members].numpy(), epistemic[members].numpy(), f"{name} ({int(members.sum())})"
            axis.scatter(x, y, s=9, alpha=0.55, color=colour, label=label, linewidths=0, rasterized=True)
        axis.set(xlabel="aleatoric: ambiguous", ylabel="epistemic: unfamiliar", title="Both doubts (nats)")
        if right is not None:
            axis.legend(loc="best", fontsize=8, markerscale=2, labelcolor=INK)

    def amounts(axis: Axes) -> None:
        for name, values, colour in (("aleatoric", aleatoric, PALETTE[0]), ("epistemic", epistemic, PALETTE[1])):
            share = torch.linspace(0, 100, len(values))
            axis.plot(share, values.sort().values, color=colour, linewidth=1.6, label=name)
        axis.set(xlabel="samples (%), from sure to unsure", ylabel="nats", title="How much doubt", xlim=(0, 100))
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return panels([both, amounts])


Numbers = tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor | None]
"""Means, epistemic variances, ends of intervals, and targets if they are known."""


def several_number_panels(found: Sequence[Numbers]) -> Figure:
    """Plot each of several targets as `number_panels` does."""
    return panels([_numbers(*one, f"Target {k}") for k, one in enumerate(found)], columns=min(len(found), 3))


def number_panels(mean: Tensor, epistemic: Tensor, interval: tuple[Tensor, Tensor], targets: Tensor | None) -> Figure:
    """Plot numbers in ascending order, with the interval that holds 95 % and the part of it that is epistemic.

    Args:
        mean: of each sample.
        epistemic: variance of each sample.
        interval: its ends, for each sample.
        targets: what was right, if that is known.
    """
    return panels([_numbers(mean, epistemic, interval, targets, "Predictions")], width=6.8)


def _numbers(
    mean: Tensor, epistemic: Tensor, interval: tuple[Tensor, Tensor], targets: Tensor | None, title: str
) -> Draw:
    def draw(axis: Axes) -> None:
        order = mean.argsort()
        place, middle, spread = range(len(mean)), mean[order], 1.96 * epistemic[order].sqrt()
        low, high = (end[order] for end in interval)
        axis.fill_between(place, low, high, color=PALETTE[0], alpha=0.2, linewidth=0, label="95 % interval")
        below, above = middle - spread, middle + spread
        axis.fill_between(place, below, above, color=PALETTE[1], alpha=0.4, linewidth=0, label="of it epistemic")
        axis.plot(place, middle, color=PALETTE[0], linewidth=1.4, label="mean")
        if targets is not None:
            axis.plot(place, targets[order], "o", color=INK, markersize=2.5, label="targets")
        axis.set(xlabel="samples, by their mean", ylabel="prediction", title=title)
        axis.margins(x=0)
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return draw
