"""How well a score separates in-distribution inputs (negatives) from out-of-distribution ones (positives)."""

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
    from torchmetrics.functional.classification import binary_auroc

    return float(binary_auroc(*_ranked(inside, outside)))


def aupr(inside: Tensor, outside: Tensor) -> float:
    """Average precision with outside samples as positives."""
    from torchmetrics.functional.classification import binary_average_precision

    return float(binary_average_precision(*_ranked(inside, outside)))


def fpr_at_95(inside: Tensor, outside: Tensor) -> float:
    """Share of inside samples flagged at the largest threshold that flags at least 95 % of the outside ones."""
    from torchmetrics.functional.classification import binary_roc

    fpr, tpr, _ = binary_roc(*_ranked(inside, outside))
    return float(fpr[tpr >= 0.95].min())


def roc_curve(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates over all thresholds."""
    from torchmetrics.functional.classification import binary_roc

    fpr, tpr, _ = binary_roc(*_ranked(inside, outside))
    return fpr, tpr


def _ranked(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as dense ranks in [0, 1], and which of them are outside.

    torchmetrics squashes scores beyond [0, 1] through a float32 sigmoid, which makes ties of large ones; ranks keep the
    order exactly, infinite scores included.
    """
    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.ndim != 1 or not len(scores):
            raise DataError(expected(name, "a non-empty vector of scores", f"shape {tuple(scores.shape)}"))
        if bool(torch.isnan(scores).any()):
            raise DataError(expected(name, "free of NaN", f"{int(torch.isnan(scores).sum())} NaN scores"))
    scores = torch.cat([inside.double().cpu(), outside.double().cpu()])
    distinct, rank = torch.unique(scores, return_inverse=True)
    positive = torch.zeros(len(scores), dtype=torch.int64)
    positive[len(inside) :] = 1
    return rank.double() / max(len(distinct) - 1, 1), positive
