"""Distance columns: how far features are from the training data, as numbers that linear heads can use.

A linear head cannot say "far in any direction", because a norm is not linear. These columns say it for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse._mapped import row_chunks
from repulse.errors import DataError, check_positive_integer, expected
from repulse.particles.whitening import Whitening

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
        training_radius: quantile of `radius` on the training data.
    """

    shift: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    axes: Float[Tensor, "d k"]
    ends: Int[Tensor, " s"]
    bands: int
    training_radius: Float[Tensor, ""]

    @classmethod
    def of(
        cls,
        whitening: Whitening,
        features: Float[Tensor, "N d"],
        penultimate: int | None = None,
        bands: int = 6,
        quantile: float = 0.95,
    ) -> DistanceColumns:
        """Compute the distance columns of training features.

        Args:
            whitening: of the same features.
            features: of the training data; may be mapped from a file.
            penultimate: how many of the first features are penultimate ones; all if not given.
            bands: number of bands of axes; fewer if there are fewer axes.
            quantile: of the radius on the training data that `training_radius` is.

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
            axes = torch.cat([axes, torch.nn.functional.pad(own, (0, 0, 0, width - penultimate))], dim=1)
        parts = whitening.shift.float(), whitening.scale.float(), axes.float()
        columns = cls(*parts, torch.tensor(ends), bands, torch.ones((), device=features.device))
        radius = torch.cat([columns.radius(part) for part in row_chunks(features)])
        radius = radius.sort().values[min(int(quantile * len(radius)), len(radius) - 1)]
        return cls(*parts, torch.tensor(ends), bands, radius.clamp_min(SMALLEST))

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return 1 + len(self.ends)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        """Return the columns of features; they are finite for all finite features."""
        return self._mean_squares(features).clamp_min(SMALLEST).log()

    def radius(self, features: Float[Tensor, "B d"]) -> Float[Tensor, " B"]:
        """Return the root mean square over all principal axes, about one on the training data."""
        return self._mean_squares(features)[:, 0].sqrt()

    def _mean_squares(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        largest = torch.finfo(self.shift.dtype).max  # infinity over infinity would not be a number
        centred = (features.to(self.shift.dtype) - self.shift).clamp(-largest, largest)
        squares = ((centred / self.scale).clamp(-LARGEST, LARGEST) @ self.axes).square()
        ends = self.ends.tolist()
        begins = [0, *ends[:-1]]
        means = [
            squares[:, begin:end].sum(dim=1) / max(end - begin, 1)
            for begin, end in [(0, ends[self.bands - 1]), *zip(begins, ends, strict=True)]
        ]
        return torch.stack(means, dim=1)
