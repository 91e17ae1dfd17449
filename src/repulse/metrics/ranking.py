"""How well a score separates in-distribution inputs (negatives) from out-of-distribution ones (positives).

All of it is read off one count: how many of each kind score at least as high as each distinct score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import DataError, expected


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an outside sample scores above an inside one; ties count half.

    Examples:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    fpr, tpr = roc_curve(inside, outside)
    return float(torch.trapezoid(tpr, fpr))


def aupr(inside: Tensor, outside: Tensor) -> float:
    """Average precision with outside samples as positives: the mean of the precision over steps of the recall."""
    negatives, positives = _at_or_above(inside, outside)
    precision = positives[1:] / (positives[1:] + negatives[1:])
    return float((precision * positives.diff()).sum() / len(outside))


def fpr_at_95(inside: Tensor, outside: Tensor) -> float:
    """Share of inside samples flagged at the largest threshold that flags at least 95 % of the outside ones."""
    fpr, tpr = roc_curve(inside, outside)
    return float(fpr[tpr >= 0.95].min())


def roc_curve(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates over all thresholds, from none flagged to all."""
    negatives, positives = _at_or_above(inside, outside)
    return negatives / len(inside), positives / len(outside)


def _at_or_above(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """How many inside and outside samples score at least each distinct score, from none downwards."""
    for name, scores in (("inside", inside), ("outside", outside)):
        if not isinstance(scores, Tensor):
            got = f"{type(scores).__name__}; pass one of its scores, such as `.epistemic`"
            raise DataError(expected(name, "a vector of scores", got))
        if scores.ndim != 1 or not len(scores):
            raise DataError(expected(name, "a non-empty vector of scores", f"shape {tuple(scores.shape)}"))
        if bool(torch.isnan(scores).any()):
            raise DataError(expected(name, "free of NaN", f"{int(torch.isnan(scores).sum())} NaN scores"))
    distinct, rank = torch.unique(torch.cat([inside.double().cpu(), outside.double().cpu()]), return_inverse=True)
    start = torch.zeros(1, dtype=torch.float64)
    return tuple(
        torch.cat([start, torch.bincount(part, minlength=len(distinct)).flip(0).cumsum(0).double()])
        for part in (rank[: len(inside)], rank[len(inside) :])
    )  # pyright: ignore[reportReturnType]
