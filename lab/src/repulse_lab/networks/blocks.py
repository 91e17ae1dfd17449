"""Parts that the residual networks share."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def convolution(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias whose output is as large as its input, up to the stride."""
    return nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)


def activation(mod: bool) -> nn.Module:
    """Return the rectifier, or one that leaks and so keeps what is below zero."""
    return nn.LeakyReLU(0.01) if mod else nn.ReLU()


def shortcut(inside: int, outside: int, stride: int, *, mod: bool, norm: bool) -> nn.Module:
    """Return the way around a block: identity where shapes agree, else a convolution, or for `mod` no parameters."""
    if stride == 1 and inside == outside:
        return nn.Identity()
    if mod:
        return AveragedShortcut(outside - inside, stride)
    return nn.Sequential(convolution(inside, outside, 1, stride), *([nn.BatchNorm2d(outside)] if norm else []))


class AveragedShortcut(nn.Module):
    """Average over `stride` x `stride` pixels (at an odd edge, over those that are there), then channels of zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(x, self.stride, ceil_mode=True) if self.stride > 1 else x
        return F.pad(x, (0, 0, 0, 0, 0, self.channels))
