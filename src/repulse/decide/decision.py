"""What a gate says of a batch of inputs."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, SupportsIndex, get_args

from jaxtyping import Bool, Float, Num, Shaped
from torch import Tensor

from repulse.prediction import Prediction

Action = Literal["accept", "abstain", "foreign"]
ACTIONS: tuple[Action, ...] = get_args(Action)
"""In the order of their numbers in deployed ensembles and ONNX files."""

SHOWN = 20
"""Rows that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Decision:
    """What to do with each input of a batch; batch axis first in all of it.

    Slicing (`decision[:8]`, `decision[decision.foreign]`) gives the decision on some of the inputs; `print` and
    `records` give lines for logs.

    Attributes:
        foreign: whether the input is unlike the calibration data, `(B,)`.
        accepted: whether the prediction can be acted upon, `(B,)`; what is neither is abstained from.
        p_value: share of calibration samples that are at least as strange, `(B,)`; small for what is foreign.
        doubt: what abstaining goes by, `(B,)`: `1 - max p`, or the standard deviation of a number.
        labels: the predicted classes, or the predicted numbers, `(B,)`.
        sets: which classes are in the set of each input, `(B, K)`; for numbers the two ends of each interval, `(B, 2)`.
        prediction: what the decision was made from.
        class_names: names of the classes, if they are known.
    """

    foreign: Bool[Tensor, " B"]
    accepted: Bool[Tensor, " B"]
    p_value: Float[Tensor, " B"]
    doubt: Float[Tensor, " B"]
    labels: Num[Tensor, " B"]
    sets: Shaped[Tensor, "B _"]
    prediction: Prediction
    class_names: tuple[str, ...] | None = None

    @property
    def abstained(self) -> Bool[Tensor, " B"]:
        """Whether the input is familiar, but the prediction too doubtful."""
        return ~(self.foreign | self.accepted)

    @property
    def action(self) -> tuple[Action, ...]:
        """What to do with each input: "accept", "abstain" or "foreign"."""
        pairs = zip(self.foreign.tolist(), self.accepted.tolist(), strict=True)
        return tuple("foreign" if foreign else "accept" if accepted else "abstain" for foreign, accepted in pairs)

    def __len__(self) -> int:
        return len(self.foreign)

    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> Decision:
        """Return the decision on some of the inputs (on one, still as a batch, for an integer)."""
        prediction = self.prediction[index]
        if not isinstance(index, slice | Tensor):
            index = slice(int(index), int(index) + 1 or None)
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        columns = {name: value[index] if isinstance(value, Tensor) else value for name, value in columns.items()}
        return replace(self, **{**columns, "prediction": prediction})

    def records(self) -> list[dict[str, Any]]:
        """Return one plain mapping per input, ready for JSON: action, p_value, doubt, label, set (or interval)."""
        return list(self._records())

    def _records(self) -> Iterator[dict[str, Any]]:
        classes = not self.labels.is_floating_point()
        columns = (self.p_value.tolist(), self.doubt.tolist(), self.labels.tolist(), self.sets.tolist())
        for action, p_value, doubt, label, inside in zip(self.action, *columns, strict=True):
            record: dict[str, Any] = {"action": action, "p_value": p_value, "doubt": doubt, "label": label}
            if classes:
                record["label"] = self._name(label)
                record["set"] = [self._name(k) for k, is_in in enumerate(inside) if is_in]
            else:
                record["interval"] = inside
            yield record

    def _name(self, label: int) -> str | int:
        return label if self.class_names is None else self.class_names[label]

    def cells(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Iterate over action, label, doubt, p-value and set of each input, as text for tables."""
        for one in self._records():
            if "set" in one:
                label, inside = str(one["label"]), "{" + ", ".join(map(str, one["set"])) + "}"
            else:
                low, high = one["interval"]
                label, inside = f"{one['label']:.4g}", f"[{low:.4g}, {high:.4g}]"
            yield one["action"], label, f"{one['doubt']:.3g}", f"{one['p_value']:.3g}", inside

    def lines(self) -> list[str]:
        """Return one line of text per input, for logs.

        An accepted one reads `accept   cat   doubt 0.012   p 0.412   in {cat}`.
        """
        return [
            f"{act:<8} {label}   doubt {doubt}   p {p}   in {inside}" for act, label, doubt, p, inside in self.cells()
        ]

    def counts(self) -> dict[Action, int]:
        """Return how many inputs each action is for."""
        found = Counter(self.action)
        return {action: found[action] for action in ACTIONS}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in self.counts().items())
        return f"Decision({len(self)} input{'' if len(self) == 1 else 's'}: {counts})"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("action", "label", "doubt", "p", "in"))
        rows = [head, *("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self[:SHOWN].cells())]
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        table = "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
        return f"<p><code>{html.escape(repr(self))}</code></p>{table}{more}"
