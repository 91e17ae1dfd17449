"""What a prediction of several numbers at once holds: a mean and a variance per target, given the member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.prediction.base import Part, Prediction, as_columns
from repulse.prediction.numbers import RegressionPrediction
from repulse.prediction.uncertainty import variance_over_members

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class MultiregressionPrediction(Prediction):
    """Several numbers and how far each may be off. Uncertainties are variances, one per target, `(B, D)`.

    `target(k)` is the prediction of one target alone; `joint_epistemic` one number per input, in which units cancel.

    Examples:
        >>> means = torch.tensor([[[1.0, 5.0]], [[3.0, 5.0]]])
        >>> p = MultiregressionPrediction(means, torch.ones(2, 1, 2))
        >>> p.mean, p.epistemic
        (tensor([[2., 5.]]), tensor([[1., 0.]]))
        >>> round(float(p.joint_epistemic), 4)  # log(1 + 1) / 2
        0.3466

    Attributes:
        means: mean of every member, `(n, B, D)`.
        variances: variance of every member, `(n, B, D)`.
        tails: for each target, equally likely factors on the variance, of mean one; None for the mixture of members.
    """

    means: Float[Tensor, "n B D"]
    variances: Float[Tensor, "n B D"]
    tails: tuple[Tensor, ...] | None = None

    @property
    def targets(self) -> int:
        """Number of targets."""
        return self.means.shape[2]

    @property
    def mean(self) -> Float[Tensor, "B D"]:
        """Mean of the mixture."""
        return self.means.mean(dim=0)

    @property
    def aleatoric(self) -> Float[Tensor, "B D"]:
        """Mean variance of the members."""
        return self.variances.mean(dim=0)

    @property
    def epistemic(self) -> Float[Tensor, "B D"]:
        """Variance of the members' means."""
        return variance_over_members(self.means)

    @property
    def std(self) -> Float[Tensor, "B D"]:
        """Standard deviation of the mixture, `sqrt(total)`."""
        return self.total.sqrt()

    @property
    def covariance(self) -> Float[Tensor, "B D D"]:
        """Covariance of the members' means: how targets are off together."""
        apart = (self.means - self.mean).permute(1, 2, 0)
        return apart @ apart.mT / self.members

    @property
    def joint_epistemic(self) -> Float[Tensor, " B"]:
        """`log det(I + A^-1/2 C A^-1/2) / 2`, with the aleatoric variances `A` and the covariance `C` of the means.

        In nats, and the same in all units of the targets; zero where members agree. For one target it is
        `log(total / aleatoric) / 2`.
        """
        deviation = self.aleatoric.double().sqrt()
        relative = self.covariance.double() / (deviation.unsqueeze(2) * deviation.unsqueeze(1))
        whole = torch.eye(self.targets, dtype=relative.dtype, device=relative.device) + relative
        return 0.5 * torch.linalg.slogdet(whole).logabsdet.clamp_min(0).to(self.means.dtype)

    @property
    def score(self) -> Float[Tensor, " B"]:
        """How far out-of-distribution each sample is: `joint_epistemic`, or the total of a single member."""
        return self.joint_epistemic if self.members > 1 else self.total.log().sum(dim=1)

    def of_inputs(self, part: Part) -> Float[Tensor, " B"]:
        """Return `joint_epistemic`; the other parts have the units of their targets, and no sum."""
        if part != "epistemic":
            raise DataError(expected("part", "'epistemic' for several targets, whose units differ", repr(part)))
        return self.joint_epistemic

    @property
    def target_shape(self) -> tuple[int, ...]:
        return tuple(self.means.shape[1:])

    def target(self, k: int) -> RegressionPrediction:
        """Return the prediction of one target."""
        if not -self.targets <= k < self.targets:
            raise DataError(expected("k", f"from 0 to {self.targets - 1}", k))
        tail = None if self.tails is None else self.tails[k]
        return RegressionPrediction(self.means[..., k], self.variances[..., k], tail)

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        return {**as_columns("mean", self.mean), **as_columns("std", self.std)}

    def _panels(self, targets: Tensor | None) -> Figure:
        from repulse._pictures import several_number_panels

        return several_number_panels(
            [
                (p.mean, p.epistemic, p.interval(0.95), None if targets is None else targets[:, k])
                for k, p in enumerate(map(self.target, range(self.targets)))
            ]
        )

    def log_likelihood(self, targets: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Return the sum over targets of the logarithms of their densities."""
        if targets.shape != self.means.shape[1:]:
            raise DataError(
                expected("targets", f"of shape {tuple(self.means.shape[1:])}", f"shape {tuple(targets.shape)}")
            )
        return torch.stack([self.target(k).log_likelihood(targets[:, k]) for k in range(self.targets)]).sum(dim=0)

    def quantile(self, q: float) -> Float[Tensor, "B D"]:
        """Return, for each target, the value that it is below with probability `q`."""
        return torch.stack([self.target(k).quantile(q) for k in range(self.targets)], dim=1)

    def interval(self, level: float) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B D"]]:
        """Return the ends of the central interval that holds each target with probability `level`."""
        ends = [self.target(k).interval(level) for k in range(self.targets)]
        return torch.stack([low for low, _ in ends], dim=1), torch.stack([high for _, high in ends], dim=1)
