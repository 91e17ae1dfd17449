"""Which memory format a network computes faster in, read off its layers: the same answer at every start.

A clock would give another answer now and then, and with it other bits. So a rule decides. Convolutions over many
channels take about three quarters of the time on images with channels last in memory (ResNet-20 0.78, a VGG 0.72, on
one core); those over few channels, of one pixel, or of a channel each gain little or lose (LeNet 1.02, a stem of
patches 1.13). Weights stay as they are: a convolution arranges them for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from repulse.backbone.batches import channels_last, is_image, map_tensors, tensors_of
from repulse.backbone.endings import nearly_equal

MANY_CHANNELS = 16
"""Channels that enter a convolution from which on it is faster with channels last."""


def prefers_channels_last(features: Callable[[Any], Tensor], model: nn.Module, few: Any) -> bool:
    """Check whether a network is faster with channels last, and computes the same from a few inputs.

    Args:
        features: computes the features.
        model: the network.
        few: some of its inputs.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not any(is_image(value) for _, value in tensors_of(few)) or not any(map(_is_wide, convolutions)):
        return False
    try:
        other = features(map_tensors(few, channels_last))
    except RuntimeError:  # a view that wants channels first
        return False
    return nearly_equal(other, features(few))


def _is_wide(layer: nn.Conv2d) -> bool:
    return layer.in_channels >= MANY_CHANNELS and layer.groups == 1 and max(layer.kernel_size) > 1
