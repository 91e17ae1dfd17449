"""Swirls: training images bent out of shape. Colours and textures stay, what the image shows does not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.errors import check_number, check_positive_integer
from repulse.repulsion.images import ImageSource, resample


class Swirl(ImageSource):
    """Bend training images by a smooth random displacement.

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

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        knots = torch.randn(count, 2, self.knots, self.knots, generator=generator, device="cpu").to(images)
        moved = F.interpolate(self.displacement * knots, (height, width), mode="bicubic", align_corners=False)
        identity = torch.eye(2, 3).to(images).expand(count, 2, 3)
        grid = F.affine_grid(identity, list(images.shape), align_corners=False)
        return resample(images, grid + moved.permute(0, 2, 3, 1))

    def __repr__(self) -> str:
        return f"Swirl(knots={self.knots}, displacement={self.displacement:g})"
