"""Error of regression predictions, and coverage of their intervals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.metrics.inputs import check_share, checked
from repulse.prediction import RegressionPrediction


def rmse(prediction: RegressionPrediction, targets: Tensor) -> float:
    """Compute the root of the mean squared error of the mean of the mixture."""
    prediction, targets = checked(prediction, targets, RegressionPrediction)
    return float((prediction.mean.double() - targets).square().mean().sqrt())


def interval_coverage(prediction: RegressionPrediction, targets: Tensor, level: float = 0.95) -> float:
    """Compute the share of targets in the central interval that should contain a share `level` of them.

    The interval lies between two quantiles of the mixture of Gaussians itself, not of one normal with its moments: a
    target is inside if the mixture's distribution function is between `(1 - level) / 2` and `(1 + level) / 2` there.
    """
    check_share("level", level)
    return float((central_mass(*checked(prediction, targets, RegressionPrediction)) <= level).double().mean())


def central_mass(prediction: RegressionPrediction, targets: Tensor) -> Float[Tensor, " B"]:
    """Compute the mass of the smallest central interval with each target: `|2 mean_i Phi((y - m_i) / s_i) - 1|`."""
    means, deviations = prediction.means.double(), prediction.variances.double().sqrt()
    return (2 * torch.special.ndtr((targets - means) / deviations).mean(dim=0) - 1).abs()
