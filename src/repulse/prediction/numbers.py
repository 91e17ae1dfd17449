"""What the ensemble of a regression predicts: one number per input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.prediction.base import Prediction, as_columns
from repulse.prediction.uncertainty import variance_over_members

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RegressionAnswer(NamedTuple):
    """What a deployed regression tells of each sample, each `(B,)`; see `RegressionPrediction`."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction(Prediction):
    """A number and how far it may be off. All three uncertainties are variances.

    Without `tail` the density is the mixture of the members' Gaussians. With it, it is `mean_k N(mean, total tail_k)`:
    one location, the variance of that mixture, and the tail of residuals on data that nothing was fitted to.

    Examples:
        >>> p = RegressionPrediction(torch.tensor([[1.0], [3.0]]), torch.ones(2, 1), torch.ones(1))
        >>> float(p.mean), float(p.aleatoric), float(p.epistemic)
        (2.0, 1.0, 1.0)
        >>> low, high = p.interval(0.9)
        >>> round(float(low), 3), round(float(high), 3)
        (-0.326, 4.326)

    Attributes:
        means: mean of every member, `(n, B)`.
        variances: variance of every member, `(n, B)`.
        tail: equally likely factors on the variance, of mean one, `(m,)`; None for the mixture of members.
    """

    means: Float[Tensor, "n B"]
    variances: Float[Tensor, "n B"]
    tail: Float[Tensor, " m"] | None = None

    @property
    def mean(self) -> Float[Tensor, " B"]:
        """Mean of the mixture."""
        return self.means.mean(dim=0)

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Mean variance of the members."""
        return self.variances.mean(dim=0)

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Variance of the members' means."""
        return variance_over_members(self.means)

    @property
    def std(self) -> Float[Tensor, " B"]:
        """Standard deviation of the mixture, `sqrt(total)`."""
        return self.total.sqrt()

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        return {**as_columns("mean", self.mean), **as_columns("std", self.std)}

    def _panels(self, targets: Tensor | None) -> Figure:
        from repulse._pictures import number_panels

        return number_panels(self.mean, self.epistemic, self.interval(0.95), targets)

    def log_likelihood(self, targets: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the logarithm of the density at each target."""
        means, variances = self._gaussians()
        normal = -0.5 * ((targets - means).square() / variances + (2 * math.pi * variances).log())
        return normal.logsumexp(dim=0) - math.log(len(variances))

    def cdf(self, values: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the probability that the target is at most each value."""
        means, variances = self._gaussians()
        return torch.special.ndtr((values - means) / variances.sqrt()).mean(dim=0)

    def quantile(self, q: float) -> Float[Tensor, " B"]:
        """Return the value that the target is below with probability `q`, by bisection of the distribution function."""
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 < q < 1:
            raise DataError(expected("q", "a probability between 0 and 1", repr(q)))
        means, variances = (part.double() for part in self._gaussians())
        each = means + torch.special.ndtri(means.new_tensor(q)) * variances.sqrt()
        low, high = each.amin(dim=0), each.amax(dim=0)  # which enclose that of their mixture
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / variances.sqrt()).mean(dim=0) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return ((low + high) / 2).to(self.means)

    def interval(self, level: float) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return the ends of the central interval that holds the target with probability `level`."""
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise DataError(expected("level", "a probability between 0 and 1", repr(level)))
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _gaussians(self) -> tuple[Float[Tensor, "#c B"], Float[Tensor, "c B"]]:
        """Return means and variances of the equally likely Gaussians whose mixture the density is."""
        if self.tail is None:
            return self.means, self.variances
        return self.mean.unsqueeze(0), self.tail.unsqueeze(1) * self.total
