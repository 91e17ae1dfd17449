"""Figures of gates and watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from repulse.evaluation.plots import INK, PALETTE, Draw, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repulse.decide.record import Record

BINS = 40


def risk_curve(coverage: np.ndarray, risk: np.ndarray, promised: float | None, at: tuple[float, float]) -> Draw:
    """Plot the error rate against the share of familiar inputs that is accepted, and where the gate stands."""

    def draw(axis: Axes) -> None:
        axis.plot(100 * coverage, 100 * risk, color=PALETTE[0], linewidth=1.6)
        if promised is not None:
            axis.axhline(
                100 * promised, color=INK, linewidth=0.8, linestyle=":", label=f"promised {100 * promised:g} %"
            )
        axis.plot([100 * at[0]], [100 * at[1]], "o", color=PALETTE[1], label="the gate", clip_on=False)
        axis.set(xlabel="familiar inputs accepted (%)", ylabel="errors among them (%)", title="Risk and coverage")
        axis.set(xlim=(0, 100), ylim=(0, 100 * max(1.15 * float(risk.max(initial=0)), 1.5 * (promised or 0), 0.01)))
        axis.legend(loc="upper left", fontsize=8, labelcolor=INK)

    return draw


def score_histogram(inside: np.ndarray, outside: np.ndarray, name: str, threshold: float, colour: str) -> Draw:
    """Plot the scores of test data and of another set, with the threshold between familiar and foreign."""

    def draw(axis: Axes) -> None:
        both = np.concatenate([inside, outside])
        positive = both[both > 0]
        low = max(float(np.quantile(positive, 0.001)), 1e-6 * float(positive.max())) if len(positive) else 1e-6
        edges = np.geomspace(low, max(float(both.max(initial=0)), 2 * low), BINS + 1)
        for scores, tint, label in ((inside, PALETTE[0], "test data"), (outside, colour, name)):
            if len(scores):
                share = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / len(scores)
                axis.stairs(share, edges, fill=True, alpha=0.4, color=tint, label=label)
        if np.isfinite(threshold) and threshold > 0:
            axis.axvline(threshold, color=INK, linewidth=1.0, linestyle="--")
        axis.set_xscale("log")
        axis.set(xlabel="score (dashed: threshold)", ylabel="share of inputs", title=name)
        axis.margins(x=0)
        axis.legend(loc="best", fontsize=8, labelcolor=INK)

    return draw


def gate_panels(curve: Draw | None, inside: np.ndarray, outside: Mapping[str, np.ndarray], threshold: float) -> Figure:
    """Draw the risk curve, if there is one, and a histogram per set."""
    sets = outside or {"test data": np.empty(0)}
    colours = cycle(PALETTE[1:])
    draws = [score_histogram(inside, scores, name, threshold, next(colours)) for name, scores in sets.items()]
    return panels([*([] if curve is None else [curve]), *draws], columns=3)


def watch_panels(history: Sequence[Record], threshold: float, alarm: int | None = None) -> Figure:
    """Plot evidence with its threshold, decisions, and the estimate without labels, over the inputs seen.

    Evidence is known after each batch alone, and may have been above the threshold in between: an alarm has its line.
    """
    seen = np.array([one.seen for one in history])

    def column(name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in history], dtype=float)

    def evidence(axis: Axes) -> None:
        for name, label, colour in (
            ("evidence_epistemic", "new kinds of input", PALETTE[1]),
            ("evidence_total", "harder inputs", PALETTE[0]),
        ):
            axis.plot(seen, column(name), color=colour, linewidth=1.5, label=label)
        axis.axhline(threshold, color=INK, linewidth=0.9, linestyle="--", label="enough for an alarm")
        if alarm is not None:
            axis.axvline(alarm, color=INK, linewidth=0.9, linestyle=":", label=f"alarm, after {alarm:,} inputs")
        axis.set(xlabel="inputs", ylabel="log10 of the evidence", title="Has anything changed?")
        axis.legend(loc="best", fontsize=8, labelcolor=INK)

    def shares(axis: Axes) -> None:
        for name, colour in (("accept", PALETTE[2]), ("abstain", PALETTE[4]), ("foreign", PALETTE[1])):
            axis.plot(seen, 100 * column(name), color=colour, linewidth=1.5, label=name)
        axis.set(xlabel="inputs", ylabel="share of the last inputs (%)", title="Decisions", ylim=(0, 102))
        axis.legend(loc="best", fontsize=8, labelcolor=INK)

    def estimate(axis: Axes) -> None:
        axis.fill_between(seen, column("low"), column("high"), color=PALETTE[0], alpha=0.2, linewidth=0)
        axis.plot(seen, column("estimate"), color=PALETTE[0], linewidth=1.5)
        name = history[-1].measure if history else "accuracy"
        axis.set(xlabel="inputs", ylabel=name, title=f"Estimated {name}")

    return panels([evidence, shares, estimate])
