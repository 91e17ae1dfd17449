"""Dead leaves: images of nothing, with the edges, occlusions, colours and grain of natural ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repulse.errors import RecipeError, check_number, check_positive_integer, expected
from repulse.repulsion.images import ImageSource
from repulse.repulsion.phase_scramble import scramble_phases
from repulse.repulsion.source import uniform

PIXELS_AT_ONCE = 32_768
"""Maximum number of pixels painted at once: few enough to stay in the cache, where many small steps are fast."""


class DeadLeaves(ImageSource):
    """Paint overlapping ellipses and rectangles of every size, in colours of the training images.

    The radii follow the law 1/r^3, which gives natural images their scale invariance; each leaf takes the colour of a
    random pixel of a random image of the batch, so any number of channels and any normalisation will do. Over the
    leaves lies the grain of a phase-scrambled training image: without it the leaves are flat as no photograph is, and
    heads that disagree there need not disagree on photographs.

    Args:
        leaves: leaves per image, from back to front.
        smallest: smallest radius, as a share of the image's shorter side.
        largest: largest radius, likewise.
        grain: strength of the grain; 0 leaves the leaves flat, 1 is the contrast of the training image.
    """

    def __init__(self, leaves: int = 120, smallest: float = 0.05, largest: float = 0.5, grain: float = 1.0) -> None:
        check_positive_integer("leaves", leaves)
        if leaves >= 2**15:
            raise RecipeError(expected("leaves", "below 32768", leaves))
        check_number("grain", grain, positive=False)
        check_number("smallest", smallest, positive=True)
        check_number("largest", largest, positive=True)
        if smallest >= largest:
            raise RecipeError(expected("smallest", "below `largest`", f"smallest={smallest}, largest={largest}"))
        self.leaves, self.smallest, self.largest, self.grain = leaves, smallest, largest, grain

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        pixels = images.permute(0, 2, 3, 1).reshape(-1, channels)
        chosen = torch.randint(len(pixels), (count, self.leaves + 1), generator=generator, device="cpu")
        colours = pixels[chosen.to(images.device)]  # (B, leaves + 1, C); the first is the ground
        at_once = max(PIXELS_AT_ONCE // (height * width), 1)
        tops = [self._paint(part, generator) for part in images.split(at_once)]
        index = torch.cat(tops).flatten(1).long().unsqueeze(-1).expand(-1, -1, channels)
        painted = colours.gather(1, index).transpose(1, 2).reshape(images.shape)
        if not self.grain:
            return painted
        grain = scramble_phases(images, generator) - images.mean(dim=(2, 3), keepdim=True)
        low, high = images.amin(dim=(0, 2, 3), keepdim=True), images.amax(dim=(0, 2, 3), keepdim=True)
        return torch.clamp(painted + self.grain * grain, low, high)

    def _paint(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return which leaf shows at each pixel, `(B, H, W)`; 0 is the ground."""
        count, _, height, width = images.shape
        shape, side = (self.leaves, count, 1, 1), min(height, width)

        def draw(low: float, high: float) -> Tensor:
            return low + (high - low) * uniform(shape, generator, images)

        # Inverse of the distribution function of the density proportional to 1/r^3.
        near, far = self.smallest**-2, self.largest**-2
        radius = side * (near - draw(0, 1) * (near - far)).rsqrt()
        aspect, angle = draw(0.4, 1.0), draw(0, math.pi)
        cos, sin = angle.cos() / radius, angle.sin() / radius
        dx = torch.arange(width, device=images.device) - draw(0, width - 1)  # (leaves, B, 1, W)
        dy = torch.arange(height, device=images.device).unsqueeze(1) - draw(0, height - 1)  # (leaves, B, H, 1)

        top = torch.zeros(count, height, width, dtype=torch.int16, device=images.device)
        for leaf in range(self.leaves):
            along = cos[leaf] * dx[leaf] + sin[leaf] * dy[leaf]
            across = (cos[leaf] * dy[leaf] - sin[leaf] * dx[leaf]) / aspect[leaf]
            if leaf % 2:
                inside = along.square_().add_(across.square_()) <= 1
            else:
                inside = torch.maximum(along.abs_(), across.abs_()) <= 1
            top.masked_fill_(inside, leaf + 1)
        return top

    def __repr__(self) -> str:
        return f"DeadLeaves(leaves={self.leaves}, grain={self.grain:g})"
