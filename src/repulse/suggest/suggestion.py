"""What a search found: every trial, the best one, and what to pass to `retrofit`."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

from repulse.recipe import Recipe

NOWHERE = "nowhere"
"""Name of the row that everything is compared with: heads that do not repel."""

LEAST_GAIN = 0.5
"""Points of AUROC by which a setting must beat no repulsion; if its standard error is larger, by that."""


@dataclass(frozen=True)
class Trial:
    """One setting, and what it is worth.

    Attributes:
        source: name of the source.
        strength: of the repulsion; 0 for nowhere.
        layers: what heads see.
        others: mean AUROC (in percent) of samples of sources that the heads have not met, by epistemic uncertainty.
        gain: by how much that is above heads that repel nowhere, on the same samples.
        error: standard error of the gain, over held-out rows.
        mistakes: AUROC (in percent) of the network's mistakes by total uncertainty; NaN where there are too few.
        nll: mean negative log-likelihood in distribution.
        costly: whether that is clearly above the one of heads that repel nowhere.
        score: what decides: gain on other sources and on mistakes, in points of AUROC.
    """

    source: str
    strength: float
    layers: str
    others: float
    gain: float
    error: float
    mistakes: float
    nll: float
    costly: bool
    score: float


@dataclass(frozen=True)
class Suggestion:
    """What to pass to `retrofit`, and why.

    Attributes:
        repulsion: for `retrofit(repulsion=...)`: a source, given data, "auto", or None for nowhere.
        recipe: for `retrofit(recipe=...)`, with the strength and the layers that were best.
        best: the trial that won.
        trials: all of them, in the order in which they were made.
        held_out: in words, on what they were judged.
    """

    repulsion: Any
    recipe: Recipe
    best: Trial
    trials: list[Trial] = field(default_factory=list)
    held_out: str = ""

    @property
    def verdict(self) -> str:
        """Return what is suggested, in a sentence."""
        if self.repulsion is None:
            return (
                f"Nothing clearly beats no repulsion (by {LEAST_GAIN} points, at no cost in distribution): pass "
                "`repulsion=None`, or give real samples of what the network may meet."
            )
        return (
            f"Repel on {self.best.source} with strength {self.best.strength:.3g}, layers {self.best.layers}: "
            f"{self.best.gain:+.1f} points on sources that the heads have not met."
        )

    def __str__(self) -> str:
        wide = max(len(trial.source) for trial in self.trials)
        lines = [f"{'source':<{wide}}" + "".join(f"{name:>12}" for name in _COLUMNS)]
        lines += [f"{trial.source:<{wide}}" + "".join(f"{c:>12}" for c in _cells(trial)) for trial in self.trials]
        return "\n".join([*lines, f"judged on {self.held_out}", self.verdict])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("source", *_COLUMNS))
        rows = ""
        for trial in self.trials:
            mark = ("<b>", "</b>") if trial is self.best else ("", "")
            cells = [html.escape(trial.source), *_cells(trial)]
            rows += "<tr>" + "".join(f"<td>{mark[0]}{cell}{mark[1]}</td>" for cell in cells) + "</tr>"
        notes = f"<p>judged on {html.escape(self.held_out)}</p><p>{html.escape(self.verdict)}</p>"
        return f"<table><tr>{head}</tr>{rows}</table>{notes}"


_COLUMNS = ("strength", "layers", "others", "gain", "mistakes", "NLL", "costs")


def _cells(trial: Trial) -> list[str]:
    others, mistakes = (f"{v:.1f}" if math.isfinite(v) else "–" for v in (trial.others, trial.mistakes))
    gain = f"{trial.gain:+.1f} ± {trial.error:.1f}"
    cost = "yes" if trial.costly else "no"
    return [f"{trial.strength:.2g}", trial.layers, others, gain, mistakes, f"{trial.nll:.3f}", cost]
