"""How well a score separates in-distribution inputs (negatives) from out-of-distribution ones (positives).

All metrics follow from one count: how many samples of each kind score at least as high as each distinct score. The
formulas take these counts along the last axis, `(..., D + 1)` from none to all, so that many resamples are processed
at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from repulse.errors import DataError, check_choice, expected
from repulse.metrics.inputs import checked, vector
from repulse.prediction import ClassPrediction


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Compute the probability that an out-of-distribution sample scores above an in-distribution one; ties count half.

    Examples:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    return float(area(*_at_or_above(inside, outside)))


def aupr(inside: Tensor, outside: Tensor, positive: str = "outside") -> float:
    """Compute the average precision: the mean of the precision over steps of the recall.

    Args:
        inside: scores of in-distribution samples.
        outside: scores of out-of-distribution samples.
        positive: which samples are to be found: "outside" by high scores, or "inside" by low ones.
    """
    check_choice("positive", positive, ("outside", "inside"))
    if positive == "inside":
        inside, outside = -vector("outside", outside, "scores"), -vector("inside", inside, "scores")
    return float(precision(*_at_or_above(inside, outside)))


def fpr_at_95(inside: Tensor, outside: Tensor) -> float:
    """Compute the share of in-distribution samples above the largest threshold that finds 95 % of the others.

    Out-of-distribution is positive here as everywhere; papers whose positive class is in-distribution print another
    number.
    """
    return float(false_at_95(*_at_or_above(inside, outside)))


def roc_curve(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Compute false and true positive rates over all thresholds, from none flagged to all."""
    return _rates(*_at_or_above(inside, outside))


def misclassification_auroc(prediction: ClassPrediction, targets: Tensor, uncertainty: Tensor | None = None) -> float:
    """Compute the probability that a wrong prediction is more uncertain than a right one; ties count half.

    Args:
        prediction: class probabilities.
        targets: true classes; some predictions must be right and some wrong.
        uncertainty: what ranks the predictions; their total uncertainty if None.
    """
    prediction, targets = checked(prediction, targets, ClassPrediction)
    ranking = vector("uncertainty", prediction.total if uncertainty is None else uncertainty)
    if len(ranking) != len(targets):
        raise DataError(expected("uncertainty", f"of shape ({len(targets)},)", f"shape {tuple(ranking.shape)}"))
    wrong = prediction.labels != targets
    if bool(wrong.all()) or not bool(wrong.any()):
        raise DataError(
            expected("prediction", "right for some targets and wrong for others", f"{int(wrong.sum())} wrong")
        )
    return auroc(ranking[~wrong], ranking[wrong])


def ranks(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return scores as indices into the distinct scores in descending order, and the number of distinct ones."""
    scores = [vector(name, values, "scores") for name, values in (("inside", inside), ("outside", outside))]
    distinct, rank = torch.unique(torch.cat(scores), return_inverse=True)
    rank = len(distinct) - 1 - rank
    return rank[: len(inside)], rank[len(inside) :], len(distinct)


def cumulated(counts: Tensor) -> Tensor:
    """Turn counts of each distinct score, in descending order, into counts at or above each, starting from none."""
    return torch.nn.functional.pad(counts.cumsum(dim=-1).double(), (1, 0))


def _at_or_above(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Count the samples of each kind at or above each distinct score, in descending order, starting from none."""
    negatives, positives, distinct = ranks(inside, outside)
    return cumulated(negatives.bincount(minlength=distinct)), cumulated(positives.bincount(minlength=distinct))


def _rates(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    return negatives / negatives[..., -1:], positives / positives[..., -1:]


def area(negatives: Tensor, positives: Tensor) -> Tensor:
    fpr, tpr = _rates(negatives, positives)
    return torch.trapezoid(tpr, fpr, dim=-1)


def precision(negatives: Tensor, positives: Tensor) -> Tensor:
    found = positives[..., 1:]
    precision = found / (found + negatives[..., 1:]).clamp_min(1)  # a resample may lack the highest scores
    return (precision * positives.diff(dim=-1)).sum(dim=-1) / positives[..., -1]


def false_at_95(negatives: Tensor, positives: Tensor) -> Tensor:
    fpr, tpr = _rates(negatives, positives)
    return fpr.masked_fill(tpr < 0.95, 1.0).amin(dim=-1)


FORMULAS: dict[Callable[..., float], Callable[[Tensor, Tensor], Tensor]] = {
    auroc: area,
    aupr: precision,
    fpr_at_95: false_at_95,
}
"""Metrics that need only these counts, with their formulas."""
