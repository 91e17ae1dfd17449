"""Images as bytes, and as a network takes them."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Convert bytes to floats in the network's input space: `(x / 255 - mean) / std`."""
    shape = (1, -1, 1, 1)
    return (images.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
