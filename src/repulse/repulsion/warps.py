"""Warps: training images bent out of shape. Colours and textures stay, what the image shows does not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.errors import check_number, check_positive_integer
from repulse.repulsion.source import Source, check_images


class Swirl(Source):
    """Training images under a smooth random displacement.

    Displacements are drawn from a normal distribution at the knots of a coarse grid and interpolated in between; what
    is pulled in from beyond the border is reflected.

    Args:
        knots: knots of the grid along each side.
        displacement: standard deviation of the displacements, as a share of half the image's side.
    """

    def __init__(self, knots: int = 5, displacement: float = 0.6) -> None:
        check_positive_integer("knots", knots)
        check_number("displacement", displacement, positive=True)
        self.knots, self.displacement = knots, displacement

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        images, _, height, width = check_images("Swirl", batch)
        work = _work(batch)
        knots = torch.randn(images, 2, self.knots, self.knots, generator=generator, device="cpu").to(work)
        moved = F.interpolate(self.displacement * knots, (height, width), mode="bicubic", align_corners=False)
        still = torch.eye(2, 3).to(work).expand(images, 2, 3)
        return _resample(
            batch, F.affine_grid(still, list(batch.shape), align_corners=False) + moved.permute(0, 2, 3, 1)
        )

    def __repr__(self) -> str:
        return f"Swirl(knots={self.knots}, displacement={self.displacement:g})"


class Shear(Source):
    """Training images stretched, sheared, turned and shifted by a random affine map; mirrored beyond the border.

    Args:
        spread: standard deviation of each of the six numbers of the map around those of the identity.
    """

    def __init__(self, spread: float = 0.6) -> None:
        check_number("spread", spread, positive=True)
        self.spread = spread

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_images("Shear", batch)
        work = _work(batch)
        change = torch.randn(len(batch), 2, 3, generator=generator, device="cpu").to(work)
        maps = torch.eye(2, 3).to(work) + self.spread * change
        return _resample(batch, F.affine_grid(maps, list(batch.shape), align_corners=False))

    def __repr__(self) -> str:
        return f"Shear(spread={self.spread:g})"


def _work(batch: Tensor) -> Tensor:
    """Float32 at least: half precision would misplace pixels."""
    return batch.double() if batch.dtype == torch.float64 else batch.float()


def _resample(batch: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(_work(batch), grid, padding_mode="reflection", align_corners=False).to(batch.dtype)
