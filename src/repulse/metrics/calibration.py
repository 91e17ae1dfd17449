"""Accuracy and calibration of a prediction against the truth."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected
from repulse.prediction import ClassPrediction, P, Prediction


def accuracy(prediction: ClassPrediction, targets: Tensor) -> float:
    """Share of samples whose most probable class is the target."""
    prediction, targets = _checked(prediction, targets)
    return float((prediction.labels == targets).double().mean())


def nll(prediction: Prediction, targets: Tensor) -> float:
    """Mean negative log-likelihood, in nats, of the mixture of all members."""
    prediction, targets = _checked(prediction, targets)
    return float(-prediction.log_likelihood(targets).double().mean())


def brier(prediction: ClassPrediction, targets: Tensor) -> float:
    """Mean over samples of `sum_k (p_k - [k = target])^2`."""
    prediction, targets = _checked(prediction, targets)
    truth = torch.nn.functional.one_hot(targets, prediction.log_probs.shape[-1])
    return float((prediction.probs.double() - truth).square().sum(dim=-1).mean())


def ece(prediction: ClassPrediction, targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error: `sum_m |B_m|/N |accuracy(B_m) - confidence(B_m)|` over equal-width bins."""
    confidence, accuracy, share = reliability(prediction, targets, bins)
    return float((share * (accuracy - confidence).abs()).nansum())


def reliability(
    prediction: ClassPrediction, targets: Tensor, bins: int = 15
) -> tuple[Float[Tensor, " bins"], Float[Tensor, " bins"], Float[Tensor, " bins"]]:
    """Mean confidence, accuracy and share of samples of each bin; NaN marks the first two of an empty bin."""
    check_positive_integer("bins", bins)
    prediction, targets = _checked(prediction, targets)
    confidence = _confidence(prediction)
    correct = (prediction.labels == targets).double()
    edges = torch.arange(1, bins, dtype=torch.float64) / bins  # a bin has its upper edge, not its lower one
    index = torch.bucketize(confidence, edges)
    count = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, torch.ones_like(confidence))
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, index, v) for v in (confidence, correct)]
    return sums[0] / count, sums[1] / count, count / count.sum()


def _confidence(prediction: ClassPrediction) -> Float[Tensor, " B"]:
    return prediction.confidence.double().clamp(0.0, 1.0)


def _checked(prediction: P, targets: Tensor) -> tuple[P, Tensor]:
    """Both on the CPU, targets of the type their kind needs."""
    if targets.shape != (len(prediction),) or not len(prediction):
        got = f"shape {tuple(targets.shape)}"
        raise DataError(expected("targets", f"of shape ({len(prediction)},), not empty", got))
    prediction, targets = prediction.cpu(), targets.cpu()
    if not isinstance(prediction, ClassPrediction):
        return prediction, targets
    classes = prediction.log_probs.shape[-1]
    if targets.is_floating_point() or int(targets.min()) < 0 or int(targets.max()) >= classes:
        got = f"{targets.dtype} from {targets.min()} to {targets.max()}"
        raise DataError(expected("targets", f"integers from 0 to {classes - 1}", got))
    if bool(torch.isnan(prediction.log_probs).any()):
        raise DataError(expected("prediction", "free of NaN", "NaN log-probabilities"))
    return prediction, targets.long()
