"""What is known of the doubt about a batch: votes, the ledger, axes, neighbours, and how it compares."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import read_blocks, row_chunks
from repulse.decide.evidence import evidence, positions_of
from repulse.decide.ledger import Ledger, blocks_of, ledger
from repulse.decide.neighbours import Neighbours
from repulse.decide.reason import Axis, Neighbour, Reason
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
    from repulse.ensemble import Ensemble

MAX_USUAL = 5000
"""Inputs whose scores say what is usual, at most."""

_PREPARED: weakref.WeakKeyDictionary[KeptFeatures, Neighbours] = weakref.WeakKeyDictionary()
_USUAL: weakref.WeakKeyDictionary[Heads, Tensor] = weakref.WeakKeyDictionary()
_MIDDLES: weakref.WeakKeyDictionary[Heads, Tensor] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Explained:
    """A batch in question, and what is known of the doubt about each of its inputs.

    Attributes:
        ensemble: what predicts.
        features: of the inputs.
        prediction: of the inputs.
    """

    ensemble: Ensemble
    features: Float[Tensor, "B d"]
    prediction: Prediction

    def reasons(self, nearest: int, axes: int, maps: Float[Tensor, "B H W"] | None) -> list[Reason]:
        """Put together the reasons of each input: so many neighbours and axes, and its map if there is one."""
        prediction = self.prediction
        epistemic = prediction.of_inputs("epistemic").tolist()
        units_differ = isinstance(prediction, MultiregressionPrediction)
        aleatoric = None if units_differ else prediction.of_inputs("aleatoric").tolist()
        shares, where, near = self.shares(), self.axes(axes), self.nearest(nearest)
        repelled, (compared, usual) = self.repelled(), self.usual()
        decision = self.ensemble.gate().decide(prediction) if self.ensemble.has_gate else None
        actions = None if decision is None else decision.action
        found = []
        for i in range(len(self.features)):
            label, confidence, votes = self.opinion(i)
            found.append(
                Reason(
                    label=label,
                    confidence=confidence,
                    aleatoric=None if aleatoric is None else aleatoric[i],
                    epistemic=epistemic[i],
                    usual=None if usual is None else float(usual[i]),
                    compared=compared,
                    votes=votes,
                    shares=shares[i],
                    axes=where[i],
                    nearest=near[i],
                    repelled=None if repelled is None else float(repelled[i]),
                    map=None if maps is None else tuple(tuple(row) for row in maps[i].tolist()),
                    action=None if actions is None else actions[i],
                    p_value=None if decision is None else float(decision.p_value[i]),
                )
            )
        return found

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
