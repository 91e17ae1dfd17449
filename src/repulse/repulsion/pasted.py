"""Training images with something pasted into them that does not belong there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repulse.errors import RecipeError, check_number, check_positive_integer, expected
from repulse.repulsion.images import ImageSource
from repulse.repulsion.source import uniform


class Pasted(ImageSource):
    """Paste shapes into each training image, and leave the rest of it as it is: for predictions at every pixel.

    A shape is an ellipse, a rectangle or something in between, at any angle. In it, a part of another image of the
    batch, mirrored, lies over the image, half transparent: what was never seen looks to a network like a bit of several
    things that were, and there is little evidence for each. (Opaque, the part would be what it shows, which the network
    knows.) Heads are made to disagree where the image was changed, and nowhere else: around it, positions keep their
    targets.

    Args:
        shapes: largest number of shapes per image.
        smallest: smallest radius of a shape, as a share of the image's shorter side.
        largest: largest radius, likewise.
        opacity: share of the part of the other image, at most 1.
    """

    def __init__(self, shapes: int = 3, smallest: float = 0.05, largest: float = 0.3, opacity: float = 0.5) -> None:
        check_positive_integer("shapes", shapes)
        check_number("smallest", smallest, positive=True)
        check_number("largest", largest, positive=True)
        if smallest >= largest:
            raise RecipeError(expected("smallest", "below `largest`", f"smallest={smallest}, largest={largest}"))
        check_number("opacity", opacity, positive=True)
        if opacity > 1:
            raise RecipeError(expected("opacity", "above 0 and at most 1", opacity))
        self.shapes, self.smallest, self.largest, self.opacity = shapes, smallest, largest, opacity

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        other = images.roll(1, dims=0).flip(-1).roll(images.shape[-1] // 3, dims=-1)
        filling = images.lerp(other, self.opacity)
        pasted = images
        count = torch.randint(1, self.shapes + 1, (len(images),), generator=generator, device="cpu")
        for number in range(self.shapes):
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
        sizes = f"smallest={self.smallest:g}, largest={self.largest:g}"
        return f"Pasted(shapes={self.shapes}, {sizes}, opacity={self.opacity:g})"
