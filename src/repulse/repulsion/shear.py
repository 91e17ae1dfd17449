"""Shears: training images under a random affine map."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.errors import check_number
from repulse.repulsion.images import ImageSource, resample


class Shear(ImageSource):
    """Stretch, shear, turn and shift training images by a random affine map; mirrored beyond the border.

    Args:
        spread: standard deviation of each of the six numbers of the map around those of the identity.
    """

    def __init__(self, spread: float = 0.6) -> None:
        check_number("spread", spread, positive=True)
        self.spread = spread

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        change = torch.randn(len(images), 2, 3, generator=generator, device="cpu").to(images)
        maps = torch.eye(2, 3).to(images) + self.spread * change
        return resample(images, F.affine_grid(maps, list(images.shape), align_corners=False))

    def __repr__(self) -> str:
        return f"Shear(spread={self.spread:g})"
