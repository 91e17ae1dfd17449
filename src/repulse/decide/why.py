"""Reasons for a doubt that are exact, not saliency: who disagrees, over what, because of which features.

>>> import torch, repulse
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
>>> batches = [(torch.randn(64, 2), torch.randint(3, (64,))) for _ in range(4)]
>>> ensemble = repulse.retrofit(network, batches, progress=False)
>>> reason = ensemble.why(torch.tensor([9.0, -9.0]))
>>> abs(sum(reason.shares.values()) - 1) < 1e-5
True
"""

from __future__ import annotations

import html
import json
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._files import without_nan
from repulse._mapped import read_blocks, row_chunks
from repulse.backbone.batches import explaining_failures, to_device
from repulse.decide.decision import Action
from repulse.decide.evidence import evidence, positions_of
from repulse.decide.ledger import CONSTANT, Ledger, blocks_of, ledger
from repulse.decide.neighbours import Neighbours
from repulse.errors import DataError, check_positive_integer, expected
from repulse.kept import KeptFeatures
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.prediction import (
    ClassPrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    Prediction,
    RegressionPrediction,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from repulse.ensemble import Ensemble

MAX_USUAL = 5000
"""Inputs whose scores say what is usual, at most."""

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


@torch.no_grad()
def why(
    ensemble: Ensemble,
    x: Any,
    *,
    nearest: int = 5,
    axes: int = 5,
    maps: bool = False,
    at: Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Reason | Reasons:
    """Explain the doubt about one input, or about each of a batch.

    Args:
        ensemble: what predicts.
        x: a batch as `predict` takes it, or one input of it (a tensor without its batch axis).
        nearest: how many training inputs to name.
        axes: how many principal axes to name.
        maps: also say where in an image the disagreement sits, with one more pass of the network.
        at: for an output at every position, which position of the one input to explain, such as `(row, column)`, or
            several of them. Nearest training inputs are then positions that the fit has sampled.

    Returns:
        A `Reason` for one input or position, `Reasons` for a batch or several.
    """
    check_positive_integer("nearest", nearest)
    check_positive_integer("axes", axes)
    if ensemble.backbone.ending.positions:
        inputs, features, alone = None, *_features_at(ensemble, x, at, maps)
    elif at is not None:
        raise DataError(expected("at", "None for a network with one output per input", at))
    else:
        inputs, features, alone = _features(ensemble, x)
    prediction = ensemble.heads.predict(features)
    epistemic = prediction.of_inputs("epistemic")
    aleatoric = None if isinstance(prediction, MultiregressionPrediction) else prediction.of_inputs("aleatoric")
    found = _Found(ensemble, features, prediction)
    shares, where, places = found.shares(), found.axes(axes), found.maps(inputs) if maps else None
    near, repelled, (compared, usual) = found.nearest(nearest), found.repelled(), found.usual()
    decision = ensemble.gate().decide(prediction) if ensemble.has_gate else None
    actions = [None] * len(features) if decision is None else decision.action
    reasons = []
    for i in range(len(features)):
        label, confidence, votes = found.opinion(i)
        reasons.append(
            Reason(
                label,
                confidence,
                None if aleatoric is None else float(aleatoric[i]),
                float(epistemic[i]),
                None if usual is None else float(usual[i]),
                compared,
                votes,
                shares[i],
                where[i],
                near[i],
                None if repelled is None else float(repelled[i]),
                None if places is None else tuple(tuple(row) for row in places[i].tolist()),
                actions[i],
                None if decision is None else float(decision.p_value[i]),
            )
        )
    return reasons[0] if alone else Reasons(reasons)


def _features(ensemble: Ensemble, x: Any) -> tuple[Any, Float[Tensor, "B d"], bool]:
    """Return inputs as a batch, their features, and whether `x` was one input without its batch axis."""
    backbone, device = ensemble.backbone, next(ensemble.heads.parameters()).device
    inputs = to_device(x if isinstance(x, Tensor) else backbone.places.inputs_in(x, "x", backbone.several), device)
    alone = isinstance(inputs, Tensor) and bool(backbone.forms) and inputs.ndim == len(backbone.forms[0].shape)
    inputs = inputs.unsqueeze(0) if alone else inputs
    with explaining_failures(inputs, "x", DataError):
        return inputs, backbone.run(inputs), alone


def _features_at(ensemble: Ensemble, x: Any, at: Any, maps: bool) -> tuple[Float[Tensor, "m d"], bool]:
    """Return the features at some positions of one input, and whether it was one position."""
    backbone, device = ensemble.backbone, next(ensemble.heads.parameters()).device
    inputs = to_device(x if isinstance(x, Tensor) else backbone.places.inputs_in(x, "x", backbone.several), device)
    if isinstance(inputs, Tensor) and backbone.forms and inputs.ndim == len(backbone.forms[0].shape):
        inputs = inputs.unsqueeze(0)
    found = backbone.locate(inputs)
    if len(found.features) != 1 or maps:
        got = "`maps`" if maps else f"{len(found.features)} inputs"
        raise DataError(expected("x", "one input, without `maps`, for an output at every position", got))
    alone = isinstance(at, Sequence) and bool(at) and isinstance(at[0], int)
    positions = [at] if alone else at
    size = found.size
    whole = "one inside of " + " x ".join(map(str, size)) + ", or several"
    try:
        places = torch.tensor(positions, dtype=torch.int64).view(-1, len(size)).unbind(dim=1)
        flat = torch.zeros_like(places[0])
        for place, length in zip(places, size, strict=True):
            if not bool(((place >= 0) & (place < length)).all()):
                raise ValueError("outside")
            flat = flat * length + place
    except (TypeError, ValueError, RuntimeError, IndexError) as reason:
        raise DataError(expected("at", f"a position, {whole}", repr(at)[:80])) from reason
    return found.at(0, flat.to(device)), alone


_PREPARED: weakref.WeakKeyDictionary[KeptFeatures, Neighbours] = weakref.WeakKeyDictionary()
_USUAL: weakref.WeakKeyDictionary[Heads, Tensor] = weakref.WeakKeyDictionary()
_MIDDLES: weakref.WeakKeyDictionary[Heads, Tensor] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _Found:
    """A batch in question: its features and predictions."""

    ensemble: Ensemble
    features: Float[Tensor, "B d"]
    prediction: Prediction

    def opinion(self, i: int) -> tuple[str | float, float | None, dict[str, int]]:
        """Return what is predicted, with which probability, and which classes the heads prefer."""
        one = self.prediction[i]
        if isinstance(one, RegressionPrediction):
            return float(one.mean[0]), None, {}
        if isinstance(one, MultilabelPrediction):
            return self._told(one.labels[0]), None, {}
        if not isinstance(one, ClassPrediction):
            return self._told(one.mean[0]), None, {}  # pyright: ignore[reportAttributeAccessIssue]
        votes = one.log_probs[:, 0].argmax(dim=-1).bincount()
        ranked = sorted(((int(count), k) for k, count in enumerate(votes.tolist()) if count), reverse=True)
        return (
            self._name(int(one.labels[0])),
            float(one.confidence[0]),
            {self._name(k): count for count, k in ranked},
        )

    def _name(self, label: int) -> str:
        names = self.ensemble.class_names
        return f"class {label}" if names is None else names[label]

    def _told(self, values: Tensor) -> str | float:
        """Return a target in words, or as the number that it is."""
        if isinstance(self.prediction, ClassPrediction):  # a class, or the probabilities of all
            return self._name(int(values.argmax() if values.ndim else values))
        if not values.ndim:
            return float(values)
        if isinstance(self.prediction, MultilabelPrediction):
            held = (values == 1).nonzero().flatten().tolist()
            return ", ".join(self._name(k).replace("class", "label") for k in held) or "no label"
        return ", ".join(f"{value:.4g}" for value in values.tolist())

    def shares(self) -> list[dict[str, float]]:
        """Return the share of each block in the disagreement."""
        found = self._ledger
        if found is None:
            return [{} for _ in self.features]
        return [dict(zip(found.names, row, strict=True)) for row in found.shares.tolist()]

    def maps(self, inputs: Any) -> Float[Tensor, "B H W"] | None:
        """Return the share of each position of images in the disagreement."""
        found, backbone = self._ledger, self.ensemble.backbone
        positions = None if found is None else positions_of(backbone, inputs, self.features)
        return None if found is None or positions is None else evidence(found, positions)

    @cached_property
    def _ledger(self) -> Ledger | None:
        heads, kept = self.ensemble.heads, self.ensemble.kept
        if len(heads.weights) > 1 or heads.count == 1:
            return None
        reference = None if kept is None else _middle(heads, kept)
        return ledger(heads, blocks_of(self.ensemble.backbone, heads), self.features, reference)

    def axes(self, count: int) -> list[tuple[Axis, ...]]:
        """Return the principal axes along which inputs are furthest from the data."""
        heads = self.ensemble.heads
        if not isinstance(heads, CentredHeads):
            return [() for _ in self.features]
        end = int(heads.distance_ends[heads.bands - 1])
        away = ((self.features.float() - heads.distance_shift) / heads.distance_scale) @ heads.distance_axes[:, :end]
        squares = away.square()
        top = squares.topk(min(count, end), dim=1)
        whole = squares.sum(dim=1, keepdim=True).clamp_min(1e-30)
        return [
            tuple(
                Axis(k + 1, float(away[i, k]), share)
                for k, share in zip(top.indices[i].tolist(), (top.values[i] / whole[i]).tolist(), strict=True)
            )
            for i in range(len(away))
        ]

    @property
    def _neighbours(self) -> Neighbours | None:
        kept = self.ensemble.kept
        if kept is None:
            return None
        if kept not in _PREPARED:
            _PREPARED[kept] = Neighbours.of(kept, self.ensemble.heads)
        return _PREPARED[kept]

    def nearest(self, count: int) -> list[tuple[Neighbour, ...]]:
        """Return the nearest training inputs."""
        neighbours, kept = self._neighbours, self.ensemble.kept
        if neighbours is None or kept is None:
            return [() for _ in self.features]
        distances, indices = neighbours.nearest(self.features, min(count, len(kept.train)))

        def each(i: int) -> Iterator[Neighbour]:
            for index, distance in zip(indices[i].tolist(), (distances[i] / neighbours.usual).tolist(), strict=True):
                yield Neighbour(index, self._told(kept.targets[index]), distance)

        return [tuple(each(i)) for i in range(len(self.features))]

    def repelled(self) -> Tensor | None:
        """Return whether inputs look like the repulsion samples."""
        neighbours = self._neighbours
        return None if neighbours is None else neighbours.repelled_share(self.features)

    def usual(self) -> tuple[str | None, Tensor | None]:
        """Return with which data scores are compared, and the share of it with a smaller one."""
        gate, kept = self.ensemble.kept_gate, self.ensemble.kept
        if gate is not None:
            return "calibration", _share_below(gate[1]["score"].sort().values, self.prediction.score.double())
        if kept is None:
            return None, None
        name, rows = ("training", kept.train) if kept.validation is None else ("validation", kept.validation)
        heads = self.ensemble.heads
        if heads not in _USUAL:
            few = _spaced(rows)
            _USUAL[heads] = torch.cat([heads.predict(part.float()).score for part in row_chunks(few)]).sort().values
        return name, _share_below(_USUAL[heads], self.prediction.score)


def _share_below(known: Tensor, scores: Tensor) -> Tensor:
    return torch.searchsorted(known.to(scores), scores.contiguous()).float() / len(known)


def _middle(heads: Heads, kept: KeptFeatures) -> Float[Tensor, " c"]:
    """Return what counts as ordinary of each column that heads take: its mean on the training data."""
    if heads not in _MIDDLES:
        few = _spaced(kept.train).float()
        mean = few.double().mean(dim=0)
        if isinstance(heads, CentredHeads):
            mean = torch.cat([heads.distance_shift.double(), heads.distances(few).double().mean(dim=0)])
        _MIDDLES[heads] = mean
    return _MIDDLES[heads]


def _spaced(rows: Tensor) -> Tensor:
    """Copy some of the rows, evenly spaced."""
    return read_blocks(rows, range(0, len(rows), -(-len(rows) // MAX_USUAL)), 1)
