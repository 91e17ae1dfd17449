"""Phase scrambling: the spatial frequencies of an image without its objects."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.source import Source, check_images


class PhaseScramble(Source):
    """Each training image with its amplitude spectrum kept and its phases replaced by random ones.

    All channels of an image are turned by the same phases, which keeps its colours together. The result is brought back
    into the range of the image, and its brightness (the mean of each channel) is that of the image.
    """

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_images("PhaseScramble", batch)
        return _fit_range(scramble_phases(batch, generator), batch)


def scramble_phases(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Images with the amplitudes and means of those in the batch, and phases of white noise; not kept in any range."""
    images, _, height, width = batch.shape
    # The phases of the spectrum of real white noise have just the symmetry that keeps the result real.
    dtype = torch.float64 if batch.dtype == torch.float64 else torch.float32
    white = torch.randn(images, 1, height, width, generator=generator, device="cpu").to(batch.device, dtype)
    turn = torch.fft.rfft2(white)
    turn = turn / turn.abs().clamp_min(1e-12)
    turn[..., 0, 0] = 1.0  # the mean stays
    return torch.fft.irfft2(torch.fft.rfft2(batch.to(dtype)) * turn, s=(height, width)).to(batch.dtype)


def _fit_range(scrambled: Tensor, batch: Tensor) -> Tensor:
    """Clip to the range of each image; clipping moves the mean, which three rounds of shifting bring back."""
    low, high = (f(batch, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    mean = batch.mean(dim=(2, 3), keepdim=True)
    for _ in range(3):
        scrambled = torch.clamp(scrambled, low, high)
        scrambled = scrambled + mean - scrambled.mean(dim=(2, 3), keepdim=True)
    return torch.clamp(scrambled, low, high)
