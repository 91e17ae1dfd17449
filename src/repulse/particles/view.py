"""What heads see of features while they are fitted: scaled and whitened features, and their distance columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import row_chunks
from repulse.particles.distance import DistanceColumns
from repulse.particles.scaling import Scaling
from repulse.particles.whitening import OUTLIER
from repulse.recipe import Recipe


@dataclass(frozen=True, eq=False)
class View:
    """The map `x -> [scaling(x), (c(x) - shift) A]`, with the distance columns `c` made uncorrelated by `A`.

    Attributes:
        scaling: shifts, scales and whitens the features.
        distances: the distance columns of features; None for none.
        shift: mean of each distance column on the training data.
        axes: A, whose columns have the spread of whitened features.
        known: distance columns of the training features, if they were to be kept.
    """

    scaling: Scaling
    distances: DistanceColumns | None = None
    shift: Float[Tensor, " m"] | None = None
    axes: Float[Tensor, "m m"] | None = None
    known: Float[Tensor, "N m"] | None = None

    @classmethod
    def of(
        cls, features: Float[Tensor, "N d"], taps: int, recipe: Recipe, tap_scale: float, keep: bool = False
    ) -> View:
        """Compute the view that fits training features.

        Args:
            features: may be mapped from a file.
            taps: how many of the last columns are taps.
            recipe: whether to whiten, and whether to add distance columns.
            tap_scale: spread of the whitened features and of the distance columns.
            keep: whether to keep the distance columns of the features.
        """
        scaling = Scaling.of(features, taps, tap_scale, recipe.whiten)
        if not recipe.distances or scaling.whitening is None:
            return cls(scaling)
        distances = DistanceColumns.of(scaling.whitening, features, features.shape[1] - taps)
        return cls._fitted(scaling, distances, features, tap_scale, keep)

    @classmethod
    def continued(
        cls, distances: DistanceColumns, features: Float[Tensor, "N d"], taps: int, tap_scale: float, keep: bool = False
    ) -> View | None:
        """Return the view along principal axes that are known; None if features lie far outside of these.

        Args:
            distances: the distance columns of heads that were fitted on features like these.
            features: of the training data; may be mapped from a file.
            taps: how many of the last columns are taps.
            tap_scale: spread of the whitened features and of the distance columns.
            keep: whether to keep the distance columns of the features.
        """
        whitening = distances.whitening
        for part in row_chunks(features):
            if float(((torch.stack(part.aminmax(dim=0)) - whitening.shift) / whitening.scale).abs().max()) > OUTLIER:
                return None
        return cls._fitted(Scaling.along(whitening, taps, tap_scale), distances, features, tap_scale, keep)

    @classmethod
    def _fitted(
        cls, scaling: Scaling, distances: DistanceColumns, features: Tensor, tap_scale: float, keep: bool
    ) -> View:
        """Make the distance columns uncorrelated on training features."""
        parts: Iterable[Tensor] = map(distances, row_chunks(features))
        parts = list(parts) if keep else parts
        shift, covariance = _moments(distances(features[:1]).double()[0], parts, len(features))
        variances, axes = torch.linalg.eigh(covariance)
        shrunk = variances + distances.columns / len(features) * variances.mean() + 1e-12
        dtype = scaling.shift.dtype
        axes = (tap_scale * axes / shrunk.sqrt()).to(dtype)
        return cls(scaling, distances, shift.to(dtype), axes, torch.cat(parts) if isinstance(parts, list) else None)

    @property
    def columns(self) -> int:
        """Return how many columns the heads see."""
        return self.scaling.columns + (0 if self.distances is None else self.distances.columns)

    @property
    def extended(self) -> int:
        """Return how many columns folded heads take: the features and their distance columns."""
        return len(self.scaling.shift) + (0 if self.distances is None else self.distances.columns)

    def __call__(
        self, features: Float[Tensor, "B d"], distances: Float[Tensor, "B m"] | None = None
    ) -> Float[Tensor, "B c"]:
        """Return what heads see of features, whose distance columns may be known."""
        scaled = self.scaling(features)
        if self.distances is None or self.shift is None or self.axes is None:
            return scaled
        distances = self.distances(features) if distances is None else distances
        return torch.cat([scaled, (distances.to(scaled) - self.shift) @ self.axes], dim=1)

    def whole(self, features: Float[Tensor, "N d"], known: Float[Tensor, "N m"] | None = None) -> Float[Tensor, "N c"]:
        """Return what heads see of many features, chunk by chunk."""
        out, done = self.scaling.shift.new_empty(len(features), self.columns), 0
        for part in row_chunks(features):
            rows = slice(done, done + len(part))
            out[rows] = self(part, None if known is None else known[rows])
            done += len(part)
        return out

    def fold(self, weight: Float[Tensor, "n o c"], bias: Float[Tensor, "n o"]) -> tuple[Tensor, Tensor]:
        """Return weights and biases for `[features, distance columns]`, from those for what heads were fitted on."""
        width = self.scaling.columns
        folded, bias = self.scaling.fold(weight[..., :width], bias)
        if self.shift is None or self.axes is None:
            return folded, bias
        own = weight[..., width:].cpu().double() @ self.axes.cpu().double().T
        return torch.cat([folded, own], dim=-1), bias - own @ self.shift.cpu().double()

    def unfold(self, weight: Float[Tensor, "n o e"], bias: Float[Tensor, "n o"]) -> tuple[Tensor, Tensor]:
        """Return weights and biases for what heads are fitted on, from folded ones: the inverse of `fold`.

        Folded weights of another view are matched as closely as least squares can, with the smallest weights that do.
        """
        width = len(self.scaling.shift)
        own, found = self.scaling.unfold(weight[..., :width], bias)
        if self.shift is None or self.axes is None:
            return own, found
        distances = weight[..., width:].cpu().double()
        found = found + distances @ self.shift.cpu().double()
        return torch.cat([own, distances @ torch.linalg.pinv(self.axes.cpu().double()).T], dim=-1), found


def _moments(
    origin: Float[Tensor, " m"], parts: Iterable[Float[Tensor, "B m"]], count: int
) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Compute mean and covariance of columns, of which nothing but sums is kept, from a point among them."""
    total, products = torch.zeros_like(origin), torch.zeros(len(origin), len(origin)).to(origin)
    for part in parts:
        columns = part.double() - origin  # small numbers: little is lost in the difference below
        total += columns.sum(dim=0)
        products += columns.T @ columns
    offset = total / count
    return origin + offset, products / count - torch.outer(offset, offset)
