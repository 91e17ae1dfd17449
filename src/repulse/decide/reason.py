"""The reasons for a doubt, as data, as text, as a line of JSON and as a picture."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from repulse._files import without_nan
from repulse.decide.decision import Action
from repulse.decide.ledger import CONSTANT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAR = 1.5
"""Times the usual distance, from which on the nearest training input is worth a word."""


@dataclass(frozen=True)
class Neighbour:
    """A training input near the one in question.

    Attributes:
        index: into the training data, in the order in which it was read.
        target: its label, or its number for regression.
        distance: in whitened features, relative to the usual distance to the nearest training input.
    """

    index: int
    target: str | float
    distance: float


@dataclass(frozen=True)
class Axis:
    """A principal axis of the training data along which the input leaves it.

    Attributes:
        number: 1 for the axis of the largest variance.
        deviations: how far from the mean, in standard deviations.
        share: of the squared distance from the mean.
    """

    number: int
    deviations: float
    share: float


@dataclass(frozen=True)
class Reason:
    """Why an ensemble is in doubt about one input.

    Attributes:
        label: what it predicts: the name of a class, or a number; of several labels or numbers, all with commas.
        confidence: probability of that class; None for regression and for several labels.
        aleatoric: uncertainty that the heads share; None for several numbers, whose units differ.
        epistemic: uncertainty from disagreement.
        usual: share of inputs from where the training data is from with a smaller score: of the calibration data of the
            gate, or else of validation data; of the training data itself, on which heads were made to agree, if there
            is neither. None if nothing is at hand.
        compared: which of these it was.
        votes: how many heads prefer which class, most first; empty for regression.
        shares: of each block of features in the disagreement; they sum to one. Empty for heads with hidden layers.
        axes: principal axes along which the input is furthest from the data, furthest first.
        nearest: training inputs, nearest first; empty if their features are not at hand.
        repelled: share of repulsion samples among the nearest of equally many of them and training inputs.
        map: of an image, the share of each position in the disagreement, row by row; sums to that of the penultimate
            features. None unless asked for, and if these are no averages over positions.
        action: what the gate of the ensemble decides: "accept", "abstain" or "foreign"; None without a gate.
        p_value: of that decision.
    """

    label: str | float
    confidence: float | None
    aleatoric: float | None
    epistemic: float
    usual: float | None
    compared: str | None
    votes: dict[str, int]
    shares: dict[str, float]
    axes: tuple[Axis, ...]
    nearest: tuple[Neighbour, ...]
    repelled: float | None
    map: tuple[tuple[float, ...], ...] | None = None
    action: Action | None = None
    p_value: float | None = None

    @property
    def text(self) -> str:
        """One line for a log."""
        sure = "" if self.confidence is None else f" ({self.confidence:.0%})"
        label = self.label if isinstance(self.label, str) else f"{self.label:.4g}"
        parts = [f"{label}{sure}, epistemic {self.epistemic:.3g}"]
        if self.action is not None:
            parts[0] = f"{self.action}: {parts[0]}"
        if self.usual is not None and self.usual > 0.5:
            share = "all" if self.usual == 1 else f"{math.floor(100 * self.usual)}%"
            parts[0] += f", more than on {share} of the {self.compared} data"
        if len(self.votes) > 1:
            parts.append("heads split " + "/".join(f"{name} {count}" for name, count in self.votes.items()))
        ranked = sorted(((share, name) for name, share in self.shares.items() if name != CONSTANT), reverse=True)
        if ranked and ranked[0][0] > 0:
            parts.append(f"{ranked[0][0]:.0%} of the disagreement from {ranked[0][1]}")
        if self.nearest and self.nearest[0].distance >= FAR:
            parts.append(f"the nearest training input is {self.nearest[0].distance:.1f} times further than usual")
        if self.repelled is not None and self.repelled >= 0.5:
            parts.append(f"{self.repelled:.0%} of its neighbours are repulsion samples")
        return "; ".join(parts)

    def record(self) -> dict[str, Any]:
        """Return all of it as a plain mapping, ready for JSON, with the line for a log as `text`."""
        return {**without_nan(asdict(self)), "text": self.text}

    def json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.record(), allow_nan=False)

    def __str__(self) -> str:
        return self.text

    def plot(self, image: Any = None, training: Any = None) -> Figure:
        """Draw the reasons.

        Args:
            image: the input, as an array `(C, H, W)` or `(H, W)`, to be drawn next to them.
            training: the training data set, indexable, to draw the nearest images of.
        """
        from repulse.decide.why_plot import plot

        return plot(self, image, training)

    def _repr_html_(self) -> str:
        rows = [*self.votes.items(), *((name, f"{share:.0%}") for name, share in self.shares.items())]
        rows += [(f"training input {n.index} ({n.target})", f"{n.distance:.2f} x usual") for n in self.nearest]
        cells = "".join(f"<tr><td>{html.escape(str(a))}</td><td>{html.escape(str(b))}</td></tr>" for a, b in rows)
        return f"<p>{html.escape(self.text)}</p><table>{cells}</table>"


class Reasons(Sequence[Reason]):
    """The reasons of a batch, one for each input."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        self._reasons = tuple(reasons)

    def __getitem__(self, index: Any) -> Any:
        found = self._reasons[index]
        return Reasons(found) if isinstance(index, slice) else found

    def __len__(self) -> int:
        return len(self._reasons)

    @property
    def text(self) -> str:
        """A line per input."""
        return "\n".join(reason.text for reason in self._reasons)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Reasons({len(self)} inputs)"

    def _repr_html_(self) -> str:
        return "<ol start='0'>" + "".join(f"<li>{html.escape(r.text)}</li>" for r in self._reasons) + "</ol>"
