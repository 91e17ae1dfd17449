"""How heads see features while they are fitted: shifted, scaled and, if asked, whitened; folded into the heads later.

One scale for all penultimate features, not one each: those that hardly vary on the training data stay small, instead of
being blown up into noise, and may still grow where they are unusual. Taps come from different places and have different
sizes, so each gets its own scale; those that never vary on the training data are left out.

Whitened features are all of these along the principal axes of the training data, each with the same small spread. A
direction in which training data hardly varies is then as visible to a head as any other, and an input that leaves the
data in that direction is far away: what a Gaussian density knows, in the form in which heads can disagree about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import MAX_ROWS, row_chunks

STILL = 1e-6
"""Of the variance along an axis, relative to that of one feature: below, there is nothing but rounding errors."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """The linear map `x -> [z_1 ... z_p, z A]`, `z = (x - shift) / scale`, or `x -> z` where nothing is whitened.

    Attributes:
        shift: of each feature.
        scale: of each feature.
        kept: p, how many of the first features stay as they are, scaled.
        axes: A, from all scaled features to whitened ones; None for none.
    """

    shift: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    kept: int
    axes: Float[Tensor, "d w"] | None = None

    @classmethod
    def of(cls, features: Tensor, taps: int = 0, tap_scale: float = 1.0, whiten: bool = False) -> Scaling:
        """The scaling that fits training features.

        Args:
            features: `(N, d)`.
            taps: how many of the last columns are taps.
            tap_scale: spread of the taps, or of the whitened features.
            whiten: whether whitened features take the place of the taps.
        """
        shift, spread = _moments(features)
        kept = features.shape[1] - taps
        common = spread[:kept].mean().sqrt()
        scale = torch.where(common > 0, common, torch.ones_like(common)).expand(features.shape[1]).clone()
        if taps:
            own = spread[kept:].sqrt()
            still = own <= 1e-6 * (shift[kept:].abs() + own.median())
            scale[kept:] = torch.where(still, torch.full_like(own, torch.inf), own / (1.0 if whiten else tap_scale))
        plain = cls(shift, scale, features.shape[1])
        return cls(shift, scale, kept, tap_scale * _whitening(plain, features)) if whiten else plain

    @property
    def columns(self) -> int:
        """How many features the heads see."""
        return self.kept if self.axes is None else self.kept + self.axes.shape[1]

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        scaled = (features.to(self.shift.dtype) - self.shift) / self.scale
        return scaled if self.axes is None else torch.cat([scaled[:, : self.kept], scaled @ self.axes], dim=1)

    def fold(self, weight: Float[Tensor, "n o c"], bias: Float[Tensor, "n o"]) -> tuple[Tensor, Tensor]:
        """Weights and biases for features as they are, from those for features as heads were fitted on."""
        weight, scale = weight.cpu().double(), self.scale.cpu().double()
        folded = torch.zeros(*weight.shape[:2], len(scale), dtype=torch.float64)
        folded[..., : self.kept] = weight[..., : self.kept]
        if self.axes is not None:
            folded += weight[..., self.kept :] @ self.axes.cpu().double().T
        folded /= scale
        return folded, bias.cpu().double() - folded @ self.shift.cpu().double()


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every feature, as running sums: small results kept between large ones fragment memory."""
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    shift, spread = (torch.zeros(features.shape[1], dtype=dtype, device=features.device) for _ in range(2))
    for part in row_chunks(features):
        shift += part.to(dtype).sum(dim=0)
    shift /= len(features)
    for part in row_chunks(features):
        spread += (part.to(dtype) - shift).square_().sum(dim=0)
    return shift, spread.div_(len(features))


def _whitening(plain: Scaling, features: Tensor) -> Float[Tensor, "d w"]:
    """From scaled features to their principal axes, each of unit variance; axes without variance are left out.

    Principal axes are those of the correlations, so that the sizes of features do not matter. Directions of which few
    samples say little are held back: d / N is added to every variance.
    """
    gram = torch.zeros(len(plain.shift), len(plain.shift), dtype=torch.float64, device=features.device)
    for part in row_chunks(features, MAX_ROWS // 8):
        scaled = plain(part)
        gram += (scaled.T @ scaled).double()
    gram /= len(features)
    size = gram.diagonal().sqrt()
    size = torch.where(size > 1e-6 * size.median(), size, torch.full_like(size, torch.inf))
    variances, axes = torch.linalg.eigh(gram / size / size.unsqueeze(1))
    seen = variances > STILL
    axes = axes[:, seen] / (variances[seen] + len(size) / len(features)).sqrt()
    return (axes / size.unsqueeze(1)).to(plain.shift.dtype)
