"""Calibration and ranking of each of several labels; NaN where the targets do not say enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.metrics.calibration import binned, calibration_error
from repulse.metrics.inputs import check_bins, checked
from repulse.metrics.ranking import aupr, auroc
from repulse.prediction import MultilabelPrediction


def label_nll(prediction: MultilabelPrediction, targets: Tensor) -> Float[Tensor, " K"]:
    """Compute the mean negative log-likelihood of each label, in nats, over the inputs where it is known."""
    prediction, targets = checked(prediction, targets, MultilabelPrediction)
    each = -prediction.label_log_likelihood(targets).double()
    return each.sum(dim=0) / (~targets.isnan()).sum(dim=0)


def label_ece(
    prediction: MultilabelPrediction, targets: Tensor, bins: int = 15, adaptive: bool = False
) -> Float[Tensor, " K"]:
    """Compute the calibration error of each label: of its probability against how often it holds.

    Bins are of equal width in the probability of the label or, if `adaptive`, of equal mass: of labels that are rare,
    nearly all probabilities are in the first bin of equal width.
    """
    check_bins(bins)
    return _each(
        prediction, targets, lambda probs, holds: calibration_error(*binned(probs, holds.double(), bins, adaptive))
    )


def label_auroc(prediction: MultilabelPrediction, targets: Tensor) -> Float[Tensor, " K"]:
    """Compute, for each label, the probability that an input with it has a larger probability than one without."""
    return _each(prediction, targets, lambda probs, holds: auroc(probs[~holds], probs[holds]))


def label_average_precision(prediction: MultilabelPrediction, targets: Tensor) -> Float[Tensor, " K"]:
    """Compute the average precision of each label; its mean over labels is known as mAP."""
    return _each(prediction, targets, lambda probs, holds: aupr(probs[~holds], probs[holds]))


def label_f1(prediction: MultilabelPrediction, targets: Tensor) -> Float[Tensor, " K"]:
    """Compute the F1 score of each label, predicted where it is more probable than not."""
    prediction, targets = checked(prediction, targets, MultilabelPrediction)
    found = prediction.labels & ~targets.isnan()
    both = (found & (targets == 1)).sum(dim=0).double()
    return 2 * both / (found.sum(dim=0) + (targets == 1).sum(dim=0))


def _each(
    prediction: MultilabelPrediction, targets: Tensor, metric: Callable[[Tensor, Tensor], float]
) -> Float[Tensor, " K"]:
    """Compute a metric of probabilities and whether the label holds, label by label; NaN unless it holds for some."""
    prediction, targets = checked(prediction, targets, MultilabelPrediction)
    probs, found = prediction.probs.double().clamp(0.0, 1.0), []
    for k in range(targets.shape[1]):
        known = ~targets[:, k].isnan()
        holds = targets[known, k] == 1
        mixed = bool(holds.any()) and not bool(holds.all())
        found.append(metric(probs[known, k], holds) if mixed else math.nan)
    return torch.tensor(found, dtype=torch.float64)
