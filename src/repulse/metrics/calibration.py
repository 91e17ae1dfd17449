"""Accuracy and calibration of a prediction against the truth."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.metrics.inputs import check_bins, checked
from repulse.prediction import ClassPrediction, Prediction


def accuracy(prediction: ClassPrediction, targets: Tensor) -> float:
    """Compute the share of samples whose most probable class is the target."""
    prediction, targets = checked(prediction, targets, ClassPrediction)
    return float((prediction.labels == targets).double().mean())


def nll(prediction: Prediction, targets: Tensor) -> float:
    """Compute the mean negative log-likelihood, in nats, of the mixture of all members."""
    prediction, targets = checked(prediction, targets)
    return float(-prediction.log_likelihood(targets).double().mean())


def brier(prediction: ClassPrediction, targets: Tensor) -> float:
    """Compute the mean over samples of `sum_k (p_k - [k = target])^2`."""
    return float(squared_errors(*checked(prediction, targets, ClassPrediction)).mean())


def ece(prediction: ClassPrediction, targets: Tensor, bins: int = 15, adaptive: bool = False) -> float:
    """Compute the expected calibration error, `sum_m |B_m|/N |accuracy(B_m) - confidence(B_m)|`.

    The bins B_m of the confidence are of equal width or, if `adaptive`, of equal mass; see `reliability`.
    """
    return calibration_error(*reliability(prediction, targets, bins, adaptive))


def reliability(
    prediction: ClassPrediction, targets: Tensor, bins: int = 15, adaptive: bool = False
) -> tuple[Float[Tensor, " bins"], Float[Tensor, " bins"], Float[Tensor, " bins"]]:
    """Compute mean confidence, accuracy and share of samples of each bin; the first two are NaN in an empty bin.

    Args:
        prediction: class probabilities.
        targets: true classes.
        bins: number of bins.
        adaptive: use bins of equal mass: the r-th of N samples in order of confidence is in bin `floor(bins r / N)`.
            Samples of equal confidence each count with their mean correctness, so that the order of the data does not
            matter where a bin ends among them.
    """
    check_bins(bins)
    prediction, targets = checked(prediction, targets, ClassPrediction)
    return binned(confidence_of(prediction), (prediction.labels == targets).double(), bins, adaptive)


def binned(confidence: Tensor, correct: Tensor, bins: int, adaptive: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `reliability` from confidences and correctness (0 or 1)."""
    if adaptive:
        distinct, group, size = torch.unique(confidence, return_inverse=True, return_counts=True)
        shared = torch.zeros_like(distinct).index_add_(0, group, correct) / size
        confidence, correct = distinct.repeat_interleave(size), shared.repeat_interleave(size)
        index = torch.arange(len(confidence)) * bins // len(confidence)
    else:
        edges = torch.arange(1, bins, dtype=torch.float64) / bins  # a bin has its upper edge, not its lower one
        index = torch.bucketize(confidence, edges)
    count = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, torch.ones_like(confidence))
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, index, v) for v in (confidence, correct)]
    return sums[0] / count, sums[1] / count, count / count.sum()


def calibration_error(confidence: Tensor, accuracy: Tensor, share: Tensor) -> float:
    """Compute `ece` from what `reliability` returns."""
    return float((share * (accuracy - confidence).abs()).nansum())


def squared_errors(prediction: ClassPrediction, targets: Tensor) -> Float[Tensor, " B"]:
    """Compute `brier` of each sample."""
    probs = prediction.probs.double()
    return probs.scatter_add(1, targets.unsqueeze(1), -torch.ones_like(probs[:, :1])).square().sum(dim=-1)


def confidence_of(prediction: ClassPrediction) -> Float[Tensor, " B"]:
    """Return the confidence in double precision, clamped to [0, 1], which float32 sums exceed by rounding errors."""
    return prediction.confidence.double().clamp(0.0, 1.0)
