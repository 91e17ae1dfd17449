"""Growth: what heads disagree by is larger where inputs are further from the data of the fit.

To a linear head a distance is one number among many, so heads may happen to agree on an input that is far away from
everything, or between the classes. The deviation of a Gaussian process grows with the distance; this makes that of
heads do so too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_NUMBERS = 2**18
"""Numbers in the covariances of all classes, at most: what a prediction may cost beside the heads."""

SHRINKAGE = 0.25
"""Rows with the mean covariance of all classes that every class is credited with, for each axis."""

RIDGE = 1e-3
"""Share of the mean variance within classes that every axis is credited with."""

RATE, REACH = 0.4, 5.0
"""Logarithm of the growth for each deviation from what is usual, and deviations at most."""

LEAST_DEVIATION = 0.01
"""Standard deviation of a measure, at least: rows that do not vary say nothing about it."""


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """A Gaussian for each class, along the leading principal axes.

    A class of `n_k` rows with covariance `S_k` has `(n_k S_k + c S) / (n_k + c)`, with the mean covariance `S` of all
    classes and `c` a quarter of the number of axes.

    Attributes:
        factors: F_k, inverses of the Cholesky factors of the covariances.
        means: F_k mu_k.
        offsets: logarithms of the shares of the classes, and of the determinants of F_k.
    """

    factors: Float[Tensor, "K r r"]
    means: Float[Tensor, "K r"]
    offsets: Float[Tensor, " K"]

    @classmethod
    def of(cls, rows: Iterable[tuple[Float[Tensor, "B k"], Int[Tensor, " B"]]], classes: int) -> ClassGaussians | None:
        """Compute the Gaussians of rows in whitened coordinates; None if classes are too many for a single axis.

        Args:
            rows: coordinates along all axes, leading ones first, and classes, in parts.
            classes: number of classes; those without rows have no Gaussian.
        """
        axes = math.isqrt(MOST_NUMBERS // classes)
        if not axes:
            return None
        counts = squares = sums = torch.zeros(())
        for coordinates, targets in rows:
            part = coordinates[:, :axes].double()
            if not squares.ndim:
                axes = part.shape[1]
                counts, sums = part.new_zeros(classes), part.new_zeros(classes, axes)
                squares = part.new_zeros(classes, axes, axes)
            counts += torch.bincount(targets, minlength=classes)
            sums.index_add_(0, targets, part)
            for one in targets.unique().tolist():
                own = part[targets == one]
                squares[one] += own.T @ own
        present = counts > 0
        counts, means = counts[present], sums[present] / counts[present].unsqueeze(1)
        scatter = squares[present] - counts.view(-1, 1, 1) * means.unsqueeze(2) * means.unsqueeze(1)
        pooled = scatter.sum(dim=0) / counts.sum()
        ridge = RIDGE * pooled.diagonal().mean().clamp_min(RIDGE)
        pooled = pooled + ridge * torch.eye(axes).to(pooled)
        credit = SHRINKAGE * axes
        covariances = (scatter + credit * pooled) / (counts + credit).view(-1, 1, 1)
        lower = torch.linalg.cholesky(covariances)
        factors = torch.linalg.solve_triangular(lower, torch.eye(axes).to(lower).expand_as(lower), upper=False)
        offsets = (counts / counts.sum()).log() + factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        return cls(factors.float(), (factors @ means.unsqueeze(2)).squeeze(2).float(), offsets.float())

    def __call__(self, coordinates: Float[Tensor, "B k"]) -> Float[Tensor, " B"]:
        """Return the negative log density, but for a constant."""
        classes, axes = self.means.shape
        factors = self.factors.reshape(classes * axes, axes)
        centred = torch.addmm(self.means.flatten(), coordinates[:, :axes], factors.T, beta=-1)
        squares = centred.unflatten(1, (classes, axes)).square().sum(dim=2)
        return -torch.logsumexp(torch.add(self.offsets, squares, alpha=-0.5), dim=1)


@dataclass(frozen=True, eq=False)
class Growth:
    """By how much disagreement grows: `t(x) = exp(0.4 mean_m clip(z_m(x), -5, 5))`.

    The measures are the log of the mean square over all axes and, where there are Gaussians of the classes, the
    negative log density; each as a z-score among rows that nothing was fitted to.

    Attributes:
        usual: mean and deviation of each measure on these rows.
        gaussians: of the classes, or None.
    """

    usual: Float[Tensor, "2 m"]
    gaussians: ClassGaussians | None = None

    @classmethod
    def of(cls, measures: Float[Tensor, "M m"], gaussians: ClassGaussians | None = None) -> Growth:
        """Compute what is usual."""
        values = measures.double()
        deviations = values.std(dim=0, correction=0).clamp_min(LEAST_DEVIATION)
        return cls(torch.stack([values.mean(dim=0), deviations]).float(), gaussians)

    def __call__(self, measures: Float[Tensor, "B m"]) -> Float[Tensor, " B"]:
        scores = (measures - self.usual[0]) / self.usual[1]
        return (RATE * scores.clamp(-REACH, REACH).mean(dim=1)).exp()


def measures_of(
    logs: Float[Tensor, "B c"], coordinates: Float[Tensor, "B k"], gaussians: ClassGaussians | None
) -> Float[Tensor, "B m"]:
    """Return the measures of inputs, from their distance columns and their whitened coordinates."""
    measures = logs[:, :1]
    return measures if gaussians is None else torch.cat([measures, gaussians(coordinates).unsqueeze(1)], dim=1)
