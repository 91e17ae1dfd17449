"""VGG-11 and VGG-16 with batch normalisation, for images of 28 x 28 or 32 x 32 pixels and 512 features.

Five halvings bring 32 pixels down to one. For 28 pixels the first one is left out, and four do.
"""

from __future__ import annotations

from torch import Tensor, nn

from repulse.errors import RecipeError, expected
from repulse_lab.networks.blocks import convolution

STAGES = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3)}
"""Convolutions in each stage, by depth."""


class VGG(nn.Module):
    """Stages of convolutions, each ending in a pooling.

    Args:
        depth: 11 or 16.
        classes: number of outputs.
        channels: of the images.
        size: of the images: 28 or 32.
        width: channels of the first stage; the last two have eight times as many.
    """

    def __init__(self, depth: int = 16, classes: int = 10, channels: int = 3, size: int = 32, width: int = 64) -> None:
        super().__init__()
        if depth not in STAGES:
            raise RecipeError(expected("depth", "11 or 16", depth))
        if size not in (28, 32):
            raise RecipeError(expected("size", "28 or 32 pixels for a VGG", size))
        parts: list[nn.Module] = []
        inside = channels
        for stage, (count, factor) in enumerate(zip(STAGES[depth], (1, 2, 4, 8, 8), strict=True)):
            for _ in range(count):
                parts += [convolution(inside, factor * width, 3), nn.BatchNorm2d(factor * width), nn.ReLU()]
                inside = factor * width
            if stage or size == 32:
                parts.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
