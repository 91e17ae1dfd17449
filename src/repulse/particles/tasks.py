"""What the outputs of a head mean: class logits, or a mean and perhaps a variance.

A task knows three things: the likelihood, which part of the outputs is compared between heads, and how outputs become a
`Prediction`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from repulse.particles.forces import in_space
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction

LOG_VARIANCE = 30.0
"""Predicted logs of variances stay within plus and minus this."""


@dataclass(frozen=True)
class Classification:
    """Outputs are the logits of `classes` classes."""

    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    def nll(self, outputs: Float[Tensor, "n B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " n"]:
        """Mean over the batch of `-log softmax(outputs)[target]`, for every head."""
        n, batch, classes = outputs.shape
        repeated = targets.expand(n, batch).reshape(-1)
        return F.cross_entropy(outputs.reshape(-1, classes), repeated, reduction="none").view(n, batch).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R K"], on: str) -> Float[Tensor, "n R K"]:
        """What the kernel sees of the outputs."""
        return in_space(outputs, on)

    def predict(self, outputs: Float[Tensor, "n B K"]) -> Prediction:
        outputs = outputs.float()
        if outputs.stride(-1) > outputs.stride(-2):  # samples last in memory, where softmax is many times faster
            return ClassPrediction(outputs.mT.log_softmax(dim=-2).mT)
        return ClassPrediction(outputs.log_softmax(dim=-1))


@dataclass(frozen=True)
class Regression:
    """Outputs are a mean and, unless the noise is known, the log of a variance.

    Attributes:
        noise: known standard deviation of the noise, or None.
        log_variance: added to the predicted log of the variance; the fit sets it to that of a linear regression, so
            that heads start, and their prior is centred, at a sensible noise level in the units of the targets.
    """

    noise: float | None = None
    log_variance: float = 0.0

    @property
    def outputs(self) -> int:
        return 1 if self.noise is not None else 2

    def gaussian(self, outputs: Float[Tensor, "n B O"]) -> tuple[Float[Tensor, "n B"], Float[Tensor, "n B"]]:
        """Mean and log-variance of every head."""
        mean = outputs[..., 0]
        if self.noise is not None:
            return mean, torch.full_like(mean, 2 * math.log(self.noise))
        return mean, outputs[..., 1].clamp(-LOG_VARIANCE, LOG_VARIANCE) + self.log_variance

    def nll(self, outputs: Float[Tensor, "n B O"], targets: Float[Tensor, " B"]) -> Float[Tensor, " n"]:
        """Mean over the batch of `(log 2 pi v + (target - mean)^2 / v) / 2`, for every head."""
        mean, log_variance = self.gaussian(outputs)
        squared = (targets - mean).square() * torch.exp(-log_variance)
        return 0.5 * (math.log(2 * math.pi) + log_variance + squared).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R O"], on: str) -> Float[Tensor, "n R"]:
        """The means only: repelling on variances would make the noise arbitrary."""
        return outputs[..., 0]

    def predict(self, outputs: Float[Tensor, "n B O"]) -> Prediction:
        mean, log_variance = self.gaussian(outputs.float())
        return RegressionPrediction(mean, log_variance.exp())


Task = Classification | Regression
