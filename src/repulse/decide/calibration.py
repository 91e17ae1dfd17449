"""What a gate learns from calibration data: one pass over it, and the thresholds that hold a promise."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repulse.backbone.batches import labelled_batches, tensors_of
from repulse.backbone.fingerprint import as_bytes
from repulse.backbone.reading import bar, length_of
from repulse.decide import conformal
from repulse.decide.promise import POSITIONS, STARTS, Promise
from repulse.decide.unseen import seen_before
from repulse.ensemble import Ensemble
from repulse.metrics.inputs import checked
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction


@dataclass(frozen=True)
class Calibration:
    """One row per calibration sample: all that decisions need of the data, and nothing else of it.

    Attributes:
        score: what tells foreign inputs (`Prediction.score`: the epistemic uncertainty).
        total: total uncertainty.
        doubt: what abstaining goes by: `1 - max p`, or the standard deviation of a number.
        error: 1 where the predicted class is wrong, else 0; or how far a predicted number is off.
        predicted: the predicted class; 0 for numbers.
        set_score: how strange the true target is, as sets or intervals measure it.
    """

    score: Float[Tensor, " m"]
    total: Float[Tensor, " m"]
    doubt: Float[Tensor, " m"]
    error: Float[Tensor, " m"]
    predicted: Int[Tensor, " m"]
    set_score: Float[Tensor, " m"]

    def __len__(self) -> int:
        return len(self.score)

    def __getitem__(self, rows: Tensor) -> Calibration:
        return Calibration(**{name: column[rows] for name, column in vars(self).items()})


def rows_of(prediction: Prediction, targets: Tensor, promise: Promise) -> Calibration:
    """Reduce labelled predictions to what the gate keeps of them."""
    if isinstance(prediction, ClassPrediction) and targets.is_floating_point() and bool((targets % 1 == 0).all()):
        targets = targets.long()
    prediction, targets = checked(prediction, targets)
    if isinstance(prediction, ClassPrediction):
        scores = conformal.class_scores(prediction.probs, promise.sets)  # pyright: ignore[reportArgumentType]
        set_score = scores.gather(1, targets.unsqueeze(1)).squeeze(1)
        predicted, error = prediction.labels, (prediction.labels != targets).double()
    else:
        assert isinstance(prediction, RegressionPrediction)
        set_score = conformal.interval_scores(prediction, targets, promise.sets, promise.alpha)  # pyright: ignore[reportArgumentType]
        predicted, error = torch.zeros(len(targets), dtype=torch.long), (targets - prediction.mean).abs().double()
    score, total, doubt = (part.double() for part in (prediction.score, prediction.total, doubt_of(prediction)))
    return Calibration(score, total, doubt, error, predicted, set_score)


def doubt_of(prediction: Prediction) -> Float[Tensor, " B"]:
    """Return what abstaining goes by.

    Errors of a classifier are ranked best by its confidence, which is why this is `1 - max p` and not an entropy; the
    epistemic part finds what is foreign, which is another question. For numbers, the standard deviation.
    """
    if isinstance(prediction, ClassPrediction):
        return 1 - prediction.confidence
    assert isinstance(prediction, RegressionPrediction)
    return prediction.std


def collect(ensemble: Ensemble, data: Any, promise: Promise, progress: bool) -> tuple[Calibration, str, str | None]:
    """Pass over labelled data; return what is kept of it, a fingerprint of it, and what speaks against it if anything.

    The fingerprint is of inputs and targets.
    """
    digests, found, doubtful = defaultdict(hashlib.sha256), [], None
    batches = labelled_batches(data, "data")
    for inputs, targets in bar(batches, "calibrating", length_of(data), progress):
        prediction = ensemble.predict(inputs)
        if not found:
            promise.check_task(isinstance(prediction, ClassPrediction))
            doubtful = seen_before(ensemble, inputs)
        found.append(rows_of(prediction, targets, promise))
        for name, value in (*tensors_of(inputs), ("targets", targets)):
            digests[name].update(as_bytes(value))  # one digest per tensor: however the data is cut into batches
    rows = Calibration(*(torch.cat([vars(part)[name] for part in found]) for name in vars(found[0])))
    fingerprint = hashlib.sha256("|".join(f"{name}:{one.hexdigest()}" for name, one in digests.items()).encode())
    return rows, fingerprint.hexdigest()[:32], doubtful


@dataclass(frozen=True)
class Thresholds:
    """What decisions compare with, computed from a promise and calibration data.

    The risk is tested on calibration samples that are not foreign. Given the threshold of one score, the samples below
    it are independent draws of inputs that are not foreign, so that no data has to be set aside. With one threshold
    per class that is no longer so, and one half of the data makes the p-values, the other tests the risk.

    Attributes:
        promise: what is to hold.
        rows: the calibration data.
    """

    promise: Promise
    rows: Calibration

    @cached_property
    def reference(self) -> Calibration:
        """The rows that p-values compare with."""
        return self.rows[self._halves[0]] if self._is_split else self.rows

    @cached_property
    def foreign(self) -> float:
        """Score above which an input is foreign (all classes alike); infinite if that depends on the class."""
        return math.inf if self.promise.by_class else conformal.threshold(self.rows.score, self.promise.false_alarms)

    @cached_property
    def set_limit(self) -> float:
        """Strangeness of a target up to which it is inside."""
        return conformal.threshold(self.rows.set_score, self.promise.alpha)

    def p_values(self, score: Float[Tensor, " B"], predicted: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Compute the p-value of each input."""
        if self.promise.by_class:
            return conformal.p_values_by_class(score, predicted, self.reference.score, self.reference.predicted)
        return conformal.p_values(score, self.reference.score)

    def accepts(
        self, score: Float[Tensor, " B"], doubt: Float[Tensor, " B"], p_value: Float[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Tell which predictions can be acted upon.

        Where a risk is promised, scores that equal the threshold, of which the risk was not tested, are not accepted.
        """
        accepted = (p_value > self.promise.false_alarms) & (doubt <= self.doubt)
        return accepted if self.promise.risk is None else accepted & (score < self.foreign)

    @cached_property
    def limits(self) -> list[float]:
        """The sequence of doubts, strict to loose, that was fixed before any data was seen."""
        scale = self.promise.tolerance
        odds = [math.exp(position) for position in POSITIONS]
        return [one / (1 + one) if scale is None else scale * math.sqrt(one) for one in odds] + [math.inf]

    @cached_property
    def tested(self) -> tuple[list[int], list[int], int]:
        """Errors and accepted samples for each of `limits`, and the number of samples that this was tested on."""
        known = self.rows[self._familiar]
        wrong = known.error > (self.promise.tolerance or 0)
        first = torch.searchsorted(torch.tensor(self.limits, dtype=torch.float64), known.doubt.contiguous())
        of_limits = (each.bincount(minlength=len(self.limits)).cumsum(dim=0) for each in (first[wrong], first))
        errors, counts = (each.tolist() for each in of_limits)  # a sample is accepted from its first limit on
        return errors, counts, len(known)

    @cached_property
    def chosen(self) -> int | None:
        """Position in `limits` that holds the risk; None if none does."""
        errors, counts, _ = self.tested
        assert self.promise.risk is not None
        return conformal.fixed_sequence(errors, counts, self.promise.risk, self.promise.delta, STARTS)

    @cached_property
    def doubt(self) -> float:
        """Largest doubt that is accepted; minus infinity if none can be."""
        if self.promise.risk is None:
            return math.inf
        return -math.inf if self.chosen is None else self.limits[self.chosen]

    def lowest_bound(self) -> tuple[float, float]:
        """Return the lowest bound of the error rate that any start of the sequence reaches, and the share accepted."""
        errors, counts, total = self.tested
        level = self.promise.delta / len(STARTS)
        bounds = [(conformal.clopper_pearson(errors[i], counts[i], level), counts[i] / max(total, 1)) for i in STARTS]
        return min(bounds)

    @property
    def _is_split(self) -> bool:
        return self.promise.by_class and self.promise.risk is not None

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(0))
        return order[: len(order) // 2], order[len(order) // 2 :]

    @cached_property
    def _familiar(self) -> Bool[Tensor, " m"] | Int[Tensor, " k"]:
        """Which rows are draws of inputs that are not foreign, and independent of the threshold that says so."""
        if not self._is_split:
            return self.rows.score < self.foreign
        rest = self._halves[1]
        p = self.p_values(self.rows.score[rest], self.rows.predicted[rest])
        return rest[p > self.promise.false_alarms]
