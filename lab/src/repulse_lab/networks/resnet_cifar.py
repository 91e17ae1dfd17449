"""The small CIFAR ResNets (20, 32, 44, 56 layers) with parameter-free shortcuts.

Layer names are those of the widely published checkpoints, so that these load with `strict=True`: 16-32-64 channels,
three stages, a shortcut that subsamples by two and pads channels with zeros, 64 features.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.errors import BackboneError, expected

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Normalisation of the inputs that the published weights expect."""


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.stride, self.padding = stride, (outside - inside) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(out + x)


class ResNetCifar(nn.Module):
    """ResNet for 32 x 32 images.

    Args:
        depth: 20, 32, 44 or 56 (6 m + 2).
        classes: number of outputs.
    """

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise BackboneError(expected("depth", "6 m + 2, such as 20, 32, 44 or 56", depth))
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, 1)
        self.layer2 = _stage(16, 32, blocks, 2)
        self.layer3 = _stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(out.mean(dim=(2, 3)))


def _stage(inside: int, outside: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inside, outside, stride)
    return nn.Sequential(first, *(BasicBlock(outside, outside, 1) for _ in range(blocks - 1)))


def load_published(path: str | Path, depth: int = 20) -> ResNetCifar:
    """Load published CIFAR-10 weights (a `.th` file whose `state_dict` is prefixed by `module.`)."""
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    network = ResNetCifar(depth)
    network.load_state_dict({name.removeprefix("module."): value for name, value in state.items()}, strict=True)
    return network.eval()
