"""Distance columns: how far features are from the training data, as numbers that linear heads can use.

A linear head cannot say "far in any direction", because a norm is not linear. These columns say it for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected
from repulse.particles.whitening import Whitening

BANDS = 6
"""Number of bands of principal axes."""

QUANTILE = 0.95
"""Share of in-distribution inputs that are not released."""

LARGEST = 1e12
"""Number of deviations that are told apart: squares of larger ones would not be finite in single precision."""

SMALLEST = 1e-12
"""Mean square below which all are equally near."""


@dataclass(frozen=True, eq=False)
class DistanceColumns:
    """Logarithms of mean squares of features `a = ((x - shift) / scale) A` in whitened coordinates.

    The columns are, in this order: `log mean_k a_k^2` over all principal axes; over each band of axes, from large to
    small variance; and, if there are taps, over the whitened penultimate features alone.

    Attributes:
        shift: mean of each feature.
        scale: standard deviation of each feature, infinite for those that are left out.
        axes: A, the axes of all features and after them those of the penultimate features.
        ends: where each band ends among the axes, and after that the penultimate features, if they have their own.
        bands: number of bands.
    """

    shift: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    axes: Float[Tensor, "d k"]
    ends: Int[Tensor, " s"]
    bands: int

    @classmethod
    def of(
        cls,
        whitening: Whitening,
        features: Float[Tensor, "N d"],
        penultimate: int | None = None,
        bands: int = BANDS,
    ) -> DistanceColumns:
        """Compute the distance columns of training features.

        Args:
            whitening: of the same features.
            features: of the training data; may be mapped from a file.
            penultimate: how many of the first features are penultimate ones; all if not given.
            bands: number of bands of axes; fewer if there are fewer axes.

        Returns:
            The columns, of single precision, on the device of the features.
        """
        check_positive_integer("bands", bands)
        width = features.shape[1]
        if penultimate is not None and not 0 < penultimate <= width:
            raise DataError(expected("penultimate", f"from 1 to {width}", repr(penultimate)))
        axes = whitening.axes.flip(1)
        bands = max(min(bands, axes.shape[1]), 1)
        ends = [round(axes.shape[1] * (i + 1) / bands) for i in range(bands)]
        if penultimate is not None and penultimate < width:
            own = Whitening.of(features[:, :penultimate]).axes
            ends.append(axes.shape[1] + own.shape[1])
            below = own.new_zeros(width - penultimate, own.shape[1])
            axes = torch.cat([axes, torch.cat([own, below])], dim=1)
        return cls(whitening.shift.float(), whitening.scale.float(), axes.float(), torch.tensor(ends), bands)

    @property
    def whitening(self) -> Whitening:
        """Return the whitening that all features have, its variances with what held small ones back."""
        axes = self.axes[:, : int(self.ends[self.bands - 1])].flip(1)
        return Whitening(self.shift, self.scale, axes, axes.square().sum(dim=0).reciprocal())

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return 1 + len(self.ends)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        """Return the columns of features; they are finite for all finite features."""
        return self.mean_squares(features).clamp_min(SMALLEST).log()

    def mean_squares(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        """Return the mean squares themselves, about one on the training data."""
        return self.coordinates(features).square() @ self.averages

    def coordinates(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B k"]:
        """Return the whitened coordinates: along the axes of all features, leading ones first, and of the others."""
        return coordinates_of(features, self.shift, self.scale, self.axes)

    @cached_property
    def averages(self) -> Float[Tensor, "k c"]:
        """The matrix that averages squares along axes: over all bands, over each, over the penultimate features."""
        return averages_of(self.ends.tolist(), self.bands).to(self.axes)


def averages_of(ends: Sequence[int], bands: int) -> Float[Tensor, "k c"]:
    """Return the matrix whose columns average over the axes of all bands, and over those of each group.

    Args:
        ends: where each group ends among the axes.
        bands: how many of the groups are bands.
    """
    averages = torch.zeros(ends[-1], 1 + len(ends))
    for column, (begin, end) in enumerate([(0, ends[bands - 1]), *zip([0, *ends[:-1]], ends, strict=True)]):
        averages[begin:end, column] = 1 / max(end - begin, 1)
    return averages


def coordinates_of(
    features: Float[Tensor, "B d"],
    shift: Float[Tensor, " d"],
    scale: Float[Tensor, " d"],
    axes: Float[Tensor, "d k"],
) -> Float[Tensor, "B k"]:
    """Return the whitened coordinates `a = ((x - shift) / scale) A`."""
    largest = torch.finfo(shift.dtype).max  # infinity over infinity would not be a number
    centred = (features.to(shift.dtype) - shift).clamp(-largest, largest)
    return (centred / scale).clamp(-LARGEST, LARGEST) @ axes


@dataclass(frozen=True, eq=False)
class Release:
    """By how much to let go of the network: `s(x) = max(1, max_b (m_b(x) / q_b) / q)`, with the mean squares `m_b`.

    Attributes:
        quantiles: q_b, the 95 % quantile of each mean square on reference rows.
        largest: q, that of the largest ratio on the same rows, so that s = 1 on 95 % of them.
    """

    quantiles: Float[Tensor, " c"]
    largest: Float[Tensor, ""]

    @classmethod
    def of(cls, mean_squares: Float[Tensor, "M c"], quantile: float = QUANTILE) -> Release:
        """Compute the quantiles on rows that the whitening has not seen."""
        quantiles = _quantile(mean_squares, quantile).clamp_min(SMALLEST)
        largest = _quantile((mean_squares / quantiles).amax(dim=1, keepdim=True), quantile)[0]
        return cls(quantiles, largest.clamp_min(1.0))  # below one only where rows do not vary at all

    def __call__(self, mean_squares: Float[Tensor, "B c"]) -> Float[Tensor, " B"]:
        return ((mean_squares / self.quantiles).amax(dim=1) / self.largest).clamp_min(1.0)


def _quantile(values: Float[Tensor, "M c"], share: float) -> Float[Tensor, " c"]:
    """Return the smallest value of each column that at least this share of rows does not exceed."""
    return values.sort(dim=0).values[max(math.ceil(share * len(values)) - 1, 0)]
