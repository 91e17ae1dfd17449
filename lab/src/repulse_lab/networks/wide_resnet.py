"""Wide residual networks: three stages of pre-activation blocks with many channels; WRN-28-10 has 640 features."""

from __future__ import annotations

from torch import Tensor, nn

from repulse.errors import RecipeError, expected
from repulse_lab.networks.blocks import activation, convolution, shortcut


class WideBlock(nn.Module):
    """Normalise, rectify, convolve, twice, with dropout before the second convolution, and a way around it all."""

    def __init__(self, inside: int, outside: int, stride: int, dropout: float, momentum: float, mod: bool) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside, momentum=momentum), convolution(inside, outside, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside, momentum=momentum), convolution(outside, outside, 3)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = shortcut(inside, outside, stride, mod=mod, norm=False)
        self.activation = activation(mod)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.activation(self.bn1(x)))
        return self.conv2(self.dropout(self.activation(self.bn2(out)))) + self.shortcut(x)


class WideResNet(nn.Module):
    """WRN-depth-widen for images of about 32 x 32 pixels.

    Args:
        depth: 6 m + 4, such as 28.
        widen: times 16, 32 and 64 channels.
        classes: number of outputs.
        channels: of the images.
        dropout: share of the activations inside a block that is dropped in training.
        momentum: of the running means in batch normalisation.
        mod: leaky rectifiers, and shortcuts that average pixels and pad channels with zeros.
    """

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        classes: int = 10,
        channels: int = 3,
        dropout: float = 0.3,
        momentum: float = 0.01,
        mod: bool = False,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise RecipeError(expected("depth", "6 m + 4, such as 16 or 28", depth))
        self.conv1 = convolution(channels, 16, 3)
        inside, stages = 16, []
        for stage in range(3):
            outside, stride = (16 * widen) << stage, 2 if stage else 1
            first = WideBlock(inside, outside, stride, dropout, momentum, mod)
            more = (WideBlock(outside, outside, 1, dropout, momentum, mod) for _ in range(blocks - 1))
            stages.append(nn.Sequential(first, *more))
            inside = outside
        self.layer1, self.layer2, self.layer3 = stages
        self.bn1, self.activation = nn.BatchNorm2d(inside, momentum=momentum), activation(mod)
        self.linear = nn.Linear(inside, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(self.activation(self.bn1(out)).mean(dim=(2, 3)))
