"""ResNet-18, 50 and 101 for small images: a stem of one 3 x 3 convolution that keeps the resolution, no pooling.

With `mod`, rectifiers leak and shortcuts have no parameters, which keeps inputs that differ apart in feature space.
"""

from __future__ import annotations

from torch import Tensor, nn

from repulse.errors import RecipeError, expected
from repulse_lab.networks.blocks import activation, convolution, shortcut


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a way around them."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int, mod: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(inside, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3), nn.BatchNorm2d(width)
        self.shortcut = shortcut(inside, width, stride, mod=mod, norm=True)
        self.activation = activation(mod)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x)))
        return self.activation(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two of 1 x 1, the second to four times as many channels, and a way around them."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int, mod: bool) -> None:
        super().__init__()
        outside = self.expansion * width
        self.conv1, self.bn1 = convolution(inside, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, outside, 1), nn.BatchNorm2d(outside)
        self.shortcut = shortcut(inside, outside, stride, mod=mod, norm=True)
        self.activation = activation(mod)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x)))
        out = self.activation(self.bn2(self.conv2(out)))
        return self.activation(self.bn3(self.conv3(out)) + self.shortcut(x))


DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(nn.Module):
    """ResNet for images of about 32 x 32 pixels.

    Args:
        depth: 18, 50 or 101.
        classes: number of outputs.
        channels: of the images.
        width: channels of the first stage; features are 8 times as many, or 32 times for 50 and 101 layers.
        mod: leaky rectifiers, and shortcuts that average pixels and pad channels with zeros.
    """

    def __init__(
        self, depth: int = 18, classes: int = 10, channels: int = 3, width: int = 64, mod: bool = False
    ) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise RecipeError(expected("depth", "18, 50 or 101", depth))
        block, counts = DEPTHS[depth]
        self.conv1, self.bn1 = convolution(channels, width, 3), nn.BatchNorm2d(width)
        self.activation = activation(mod)
        inside, stages = width, []
        for stage, count in enumerate(counts):
            blocks = []
            for i in range(count):
                blocks.append(block(inside, width << stage, 2 if stage and not i else 1, mod))
                inside = block.expansion * (width << stage)
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(self.conv1(x)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return self.fc(out.mean(dim=(2, 3)))
