"""Gaussian noise with the mean and the spread of the training data."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import check_number
from repulse.repulsion.source import Source, check_floats


class Noise(Source):
    """Draw Gaussian noise around the mean of the batch, with its spread; per channel for images, else per
    coordinate.

    Args:
        scale: factor on the spread.
    """

    takes_copies = True

    def __init__(self, scale: float = 1.0) -> None:
        check_number("scale", scale, positive=True)
        self.scale = scale

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_floats("Noise", batch)
        axes = (0, *range(2, batch.ndim))
        mean = batch.mean(dim=axes, keepdim=True)
        spread = batch.std(dim=axes, keepdim=True, correction=0)
        return mean + self.scale * spread * torch.randn(batch.shape, generator=generator, device="cpu").to(batch)

    def __repr__(self) -> str:
        return f"Noise(scale={self.scale})"
