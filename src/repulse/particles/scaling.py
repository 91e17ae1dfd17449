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

from repulse.errors import DataError, expected
from repulse.particles.whitening import SMALLEST, Moments, Whitening, within

TAP_SCALE = 0.2
"""Spread of taps, or of whitened features, relative to penultimate features of unit size, if nothing else is chosen."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """The linear map `x -> [z_1 ... z_p, z A]`, `z = (x - shift) / scale`, or `x -> z` where nothing is whitened.

    Attributes:
        shift: of each feature.
        scale: of each feature.
        kept: p, how many of the first features stay as they are, scaled.
        axes: A, from all scaled features to whitened ones; None for none.
        whitening: the same axes for features as they are, each of unit variance; None for none.
        bounds: smallest and largest values of each feature in the fit, if some were errors by their size. They are not
            part of the linear map that is folded into heads.
    """

    shift: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    kept: int
    axes: Float[Tensor, "d w"] | None = None
    whitening: Whitening | None = None
    bounds: Float[Tensor, "2 d"] | None = None

    @classmethod
    def of(cls, features: Tensor, taps: int = 0, tap_scale: float = 1.0, whiten: bool = False) -> Scaling:
        """Compute the scaling that fits training features.

        Args:
            features: `(N, d)`.
            taps: how many of the last columns are taps.
            tap_scale: spread of the taps, or of the whitened features.
            whiten: whether whitened features take the place of the taps.
        """
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        moments = Moments.of(features)
        kept = features.shape[1] - taps
        common = moments.variance[:kept].mean().sqrt()
        if 0 < common < SMALLEST:
            raise DataError(expected("features", f"such that they vary by at least {SMALLEST:g}", f"{common:.3g}"))
        scale = torch.where(common > 0, common, torch.ones_like(common)).expand(features.shape[1]).clone()
        if taps:
            own = moments.variance[kept:].sqrt()
            constant = own <= (1e-6 * (moments.mean[kept:].abs() + own.median())).clamp_min(SMALLEST)
            scale[kept:] = torch.where(constant, torch.inf, own / (1.0 if whiten else tap_scale))
        shift = moments.mean.to(dtype)
        if not whiten:
            return cls(shift, scale.to(dtype), features.shape[1], bounds=moments.bounds)
        moments = moments.with_floor(kept, len(features))
        size = moments.variance.sqrt() / scale
        whitening = Whitening.of(features, moments, size <= 1e-6 * size.median())
        axes = torch.where(whitening.scale.isfinite(), tap_scale / size, 0.0).unsqueeze(1) * whitening.axes.double()
        return cls(shift, scale.to(dtype), kept, axes.to(dtype), whitening, moments.bounds)

    @classmethod
    def along(cls, whitening: Whitening, taps: int, tap_scale: float) -> Scaling:
        """Return a scaling whose whitened features are those of a whitening that is known."""
        kept, own = len(whitening.scale) - taps, whitening.scale.double()
        varied = own[:kept][own[:kept].isfinite()]
        common = varied.square().sum().div(kept).sqrt() if len(varied) else torch.ones_like(own[0])
        scale = torch.cat([common.expand(kept), own[kept:]])
        size = torch.where(own.isfinite(), tap_scale * scale / own, 0.0)
        axes = size.unsqueeze(1) * whitening.axes.double()
        return cls(whitening.shift, scale.to(own.dtype).to(whitening.shift), kept, axes.to(whitening.axes), whitening)

    @property
    def columns(self) -> int:
        """Return how many features the heads see."""
        return self.kept if self.axes is None else self.kept + self.axes.shape[1]

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c"]:
        scaled = (within(features.to(self.shift.dtype), self.bounds) - self.shift) / self.scale
        return scaled if self.axes is None else torch.cat([scaled[:, : self.kept], scaled @ self.axes], dim=1)

    def fold(self, weight: Float[Tensor, "n o c"], bias: Float[Tensor, "n o"]) -> tuple[Tensor, Tensor]:
        """Return weights and biases for features as they are, from those for features as heads were fitted on."""
        weight, scale = weight.cpu().double(), self.scale.cpu().double()
        folded = torch.zeros(*weight.shape[:2], len(scale), dtype=torch.float64)
        folded[..., : self.kept] = weight[..., : self.kept]
        if self.axes is not None:
            folded += weight[..., self.kept :] @ self.axes.cpu().double().T
        folded /= scale
        return folded, bias.cpu().double() - folded @ self.shift.cpu().double()

    def unfold(self, weight: Float[Tensor, "n o d"], bias: Float[Tensor, "n o"]) -> tuple[Tensor, Tensor]:
        """Return weights and biases for features as heads are fitted on, the smallest of those that `fold` takes here.

        With `M = [I; A^T]` the map from a head's weights to those of scaled features, `w M^+` for folded `w`.
        """
        scale = self.scale.cpu().double()
        weight = weight.cpu().double()
        found = bias.cpu().double() + weight @ self.shift.cpu().double()
        scaled = weight * torch.where(scale.isfinite(), scale, 0.0)
        if self.axes is None:
            return scaled, found
        axes = self.axes.cpu().double()
        gram = axes @ axes.T  # M^T M, of scaled features
        gram.diagonal()[: self.kept] += 1.0
        inner = scaled @ torch.linalg.pinv(gram, hermitian=True)
        return torch.cat([inner[..., : self.kept], inner @ axes], dim=-1), found
