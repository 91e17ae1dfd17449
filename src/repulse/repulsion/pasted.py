"""Training images with something pasted into them that does not belong there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repulse.errors import RecipeError, check_number, check_positive_integer, expected
from repulse.repulsion.dead_leaves import DeadLeaves
from repulse.repulsion.images import ImageSource
from repulse.repulsion.phase_scramble import PhaseScramble
from repulse.repulsion.source import uniform


class Pasted(ImageSource):
    """Paste shapes into each training image, and leave the rest of it as it is: for predictions at every pixel.

    A shape is an ellipse, a rectangle or something in between, at any angle. It is filled with dead leaves, with the
    image in random phases, or with a part of another image of the batch, mirrored. Heads are made to disagree where the
    image was changed, and nowhere else: around it, positions keep their targets.

    Args:
        shapes: largest number of shapes per image.
        smallest: smallest radius of a shape, as a share of the image's shorter side.
        largest: largest radius, likewise.
    """

    def __init__(self, shapes: int = 3, smallest: float = 0.05, largest: float = 0.3) -> None:
        check_positive_integer("shapes", shapes)
        check_number("smallest", smallest, positive=True)
        check_number("largest", largest, positive=True)
        if smallest >= largest:
            raise RecipeError(expected("smallest", "below `largest`", f"smallest={smallest}, largest={largest}"))
        self.shapes, self.smallest, self.largest = shapes, smallest, largest

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        fillings = torch.stack(
            [
                DeadLeaves(leaves=40).sample_images(images, generator),
                PhaseScramble().sample_images(images, generator),
                images.roll(1, dims=0).flip(-1).roll(images.shape[-1] // 3, dims=-1),
            ]
        )
        pasted = images
        count = torch.randint(1, self.shapes + 1, (len(images),), generator=generator, device="cpu")
        for number in range(self.shapes):
            which = torch.randint(len(fillings), (len(images),), generator=generator, device="cpu").to(images.device)
            filling = fillings[which, torch.arange(len(images), device=images.device)]
            inside = self._shape(images, generator) & (number < count).to(images.device).view(-1, 1, 1)
            pasted = torch.where(inside.unsqueeze(1), filling, pasted)
        return pasted

    def _shape(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw where one shape is in each image, `(B, H, W)`: `|u|^p + |v|^p <= 1` along its own axes."""
        count, _, height, width = images.shape

        def draw(low: float, high: float) -> Tensor:
            return low + (high - low) * uniform((count, 1, 1), generator, images)

        radius = min(height, width) * torch.exp(draw(math.log(self.smallest), math.log(self.largest)))
        aspect, angle, power = draw(0.4, 1.0), draw(0, math.pi), draw(1.5, 8.0)
        dx = torch.arange(width, device=images.device) - draw(0, width - 1)
        dy = torch.arange(height, device=images.device).unsqueeze(1) - draw(0, height - 1)
        along = ((angle.cos() * dx + angle.sin() * dy) / radius).abs()
        across = ((angle.cos() * dy - angle.sin() * dx) / (aspect * radius)).abs()
        return along**power + across**power <= 1

    def __repr__(self) -> str:
        return f"Pasted(shapes={self.shapes}, smallest={self.smallest:g}, largest={self.largest:g})"
