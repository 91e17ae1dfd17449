"""Whitening: features along the principal axes of the training data, each of unit variance, at a bounded cost.

Narrow features have all their axes, exactly. Wide ones have the leading axes, found by a randomised range finder, and a
few random directions of the rest; of few samples, all axes that they span. In each case one small eigendecomposition
inside the space of these directions (Rayleigh-Ritz) makes them uncorrelated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repulse._mapped import MAX_ROWS, read_blocks, row_chunks
from repulse.errors import DataError, expected

MAX_EXACT = 2048
"""Number of features up to which all axes are computed."""

MAX_AXES, SKETCHED = 1024, 256
"""Number of axes of wider features, and how many of them are random directions of what the leading ones leave over."""

POWER_ROWS, POWER_PASSES = 8192, 2
"""Number of samples that the range finder looks at, and how often it does."""

MIN_VARIANCE = 1e-6
"""Variance along an axis relative to that of one feature, below which there is nothing but rounding errors."""

VARIANCE_FLOOR = 10.0
"""Number of samples with the median variance that every penultimate feature is credited with."""

SMALLEST, LARGEST = 1e-37, 1e37
"""How little features may vary, and how large they may be: heads are numbers of single precision."""

OUTLIER, OUTLIER_LIMIT = 1e4, 10.0
"""Distance from the median, in trimmed deviations, beyond which a value is an error, and what it is reduced to."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and variance of every feature, in double precision.

    Attributes:
        mean: of each feature.
        variance: of each feature.
        bounds: smallest and largest values that were let in, if some were errors by their size; None for all.
    """

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]
    bounds: Float[Tensor, "2 d"] | None = None

    @classmethod
    def of(cls, features: Float[Tensor, "N d"]) -> Moments:
        """Compute mean and variance; a value that is thousands of times too large counts as a large one."""
        total, low, high = _sums(features, None)
        bounds = _bounds(features, low, high)
        if bounds is not None:
            total, low, high = _sums(features, bounds)
        largest = float(torch.maximum(-low, high).max())
        if largest > LARGEST:
            raise DataError(expected("features", f"at most {LARGEST:g} in size", f"values up to {largest:.3g}"))
        mean = total / len(features)
        variance = torch.zeros_like(mean)
        for part in row_chunks(features):  # running sums: small results kept between large ones fragment memory
            variance += (within(part.double(), bounds) - mean).square_().sum(dim=0)
        return cls(mean, variance.div_(len(features)), bounds)

    def with_floor(self, penultimate: int, samples: int) -> Moments:
        """Add to the variances of penultimate features a share `10 / N` of their median.

        A feature that was still on few samples, as units of a rectified layer are, is not known to be still: without
        the floor it is left out, or the first sample that moves it is infinitely far away. Penultimate features share
        one unit, taps do not, so these have no floor.
        """
        variance = self.variance.clone()
        varied = variance[:penultimate][variance[:penultimate] > 0]
        if len(varied):
            variance[:penultimate] += VARIANCE_FLOOR / samples * varied.median()
        return Moments(self.mean, variance, self.bounds)


def within(values: Tensor, bounds: Tensor | None) -> Tensor:
    """Return values no smaller and no larger than the bounds of their column."""
    return values if bounds is None else values.clamp(bounds[0].to(values), bounds[1].to(values))


def _sums(features: Tensor, bounds: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, the minimum and the maximum of every column."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    low, high = torch.full_like(total, torch.inf), torch.full_like(total, -torch.inf)
    for part in row_chunks(features):
        total += within(part.double(), bounds).sum(dim=0)
        smallest, largest = (within(value, bounds) for value in torch.aminmax(part, dim=0))
        low, high = torch.minimum(low, smallest.double()), torch.maximum(high, largest.double())
    return total, low, high


def _bounds(features: Tensor, low: Tensor, high: Tensor) -> Float[Tensor, "2 d"] | None:
    """Find bounds that cut off values which can only be errors, or None where there are none.

    The yardstick of a column is its deviation without the largest hundredth of a sample, but at least the median of
    such deviations: a column that is almost always zero may have any ordinary value elsewhere.
    """
    columns = _spaced(features, 256).double().T.contiguous()
    centre = columns.median(dim=1).values
    distances = (columns - centre.unsqueeze(1)).abs_().sort(dim=1).values
    yardstick = distances[:, : max(math.ceil(0.99 * columns.shape[1]) - 1, 1)].square().mean(dim=1).sqrt()
    varied = yardstick[yardstick > 0]
    if not len(varied):
        return None
    yardstick = torch.maximum(yardstick, varied.median())
    wrong = torch.maximum(high - centre, centre - low) > OUTLIER * yardstick
    if not bool(wrong.any()):
        return None
    reach = torch.where(wrong, OUTLIER_LIMIT * yardstick, torch.inf)
    return torch.stack([centre - reach, centre + reach])


def _spaced(features: Tensor, most: int) -> Tensor:
    """Copy at most this many rows, evenly spaced; those of a mapped file are read, not looked at."""
    return read_blocks(features, range(0, len(features), -(-len(features) // most)), 1)


@dataclass(frozen=True, eq=False)
class Whitening:
    """The linear map `x -> ((x - shift) / scale) A` onto principal axes, each of unit variance on the training data.

    Principal axes are those of the correlations, so that the sizes of features do not matter. With the correlation
    matrix `C = V diag(w) V^T` of d features and N samples, `A = V diag(w + d / N)^(-1/2)`: directions of which few
    samples say little are held back.

    Attributes:
        shift: mean of each feature.
        scale: standard deviation of each feature, infinite for those that are left out.
        axes: A, in the order of rising variance; axes without variance are left out.
        variances: w.
        bounds: smallest and largest values of each feature in the fit, if some were errors by their size.
    """

    shift: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    axes: Float[Tensor, "d w"]
    variances: Float[Tensor, " w"]
    bounds: Float[Tensor, "2 d"] | None = None

    @classmethod
    def of(
        cls,
        features: Float[Tensor, "N d"],
        moments: Moments | None = None,
        left_out: Bool[Tensor, " d"] | None = None,
    ) -> Whitening:
        """Find the principal axes of training features.

        Args:
            features: may be mapped from a file.
            moments: their mean and variance, if they are known.
            left_out: features that are not looked at; those that do not vary, up to rounding errors, if not given.
        """
        moments = moments or Moments.of(features)
        deviation = moments.variance.sqrt()
        if left_out is None:
            left_out = deviation <= 1e-6 * moments.mean.abs()
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        shift, scale = moments.mean.to(dtype), torch.where(left_out, torch.inf, deviation).to(dtype)

        def standardise(part: Tensor) -> Tensor:
            return (within(part.to(dtype), moments.bounds) - shift) / scale

        basis = _basis(features, standardise)
        variances, axes = torch.linalg.eigh(_covariance(features, standardise, basis))
        seen = variances > MIN_VARIANCE
        seen[: max(len(seen) - (len(features) - 1), 0)] = False  # so many samples span no more axes
        axes = axes[:, seen] / (variances[seen] + features.shape[1] / len(features)).sqrt()
        axes = axes if basis is None else basis @ axes
        return cls(shift, scale, axes.to(dtype), variances[seen], moments.bounds)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B w"]:
        return ((within(features.to(self.shift.dtype), self.bounds) - self.shift) / self.scale) @ self.axes


def _covariance(features: Tensor, standardise: Callable[[Tensor], Tensor], basis: Tensor | None) -> Tensor:
    """Compute the mean of `z^T z` for the standardised features, or for their coordinates in a basis."""
    columns = features.shape[1] if basis is None else basis.shape[1]
    gram = torch.zeros(columns, columns, dtype=torch.float64, device=features.device)
    for part in row_chunks(features, MAX_ROWS // 8):
        z = standardise(part)
        z = z if basis is None else z @ basis.to(z)
        gram += (z.T @ z).double()
    return gram / len(features)


def _basis(features: Tensor, standardise: Callable[[Tensor], Tensor]) -> Float[Tensor, "d k"] | None:
    """Find orthonormal directions that hold most of the variance of wide features; None for all directions.

    Samples that are few relative to the features span few directions, which hold all of it.
    """
    samples, width = features.shape
    if samples <= min(width // 2, MAX_AXES):
        return torch.linalg.qr(standardise(features).double().T).Q
    if width <= MAX_EXACT:
        return None
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(width, MAX_AXES, generator=generator).to(features.device)
    leading, rest = directions[:, SKETCHED:], directions[:, :SKETCHED]
    rows = _spaced(features, POWER_ROWS)
    for _ in range(POWER_PASSES):
        image = torch.zeros(width, leading.shape[1], device=features.device)
        for part in row_chunks(rows, MAX_ROWS // 8):
            z = standardise(part).float()
            image += z.T @ (z @ leading)
        leading = torch.linalg.qr(image).Q
    return torch.linalg.qr(torch.cat([leading, rest], dim=1).double()).Q
