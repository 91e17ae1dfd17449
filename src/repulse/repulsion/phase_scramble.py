"""Phase scrambling: the spatial frequencies of an image without its objects."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.images import ImageSource


class PhaseScramble(ImageSource):
    """Keep the amplitude spectrum of each training image, and replace its phases by random ones.

    All channels of an image are turned by the same phases, which keeps its colours together. The result is brought back
    into the range of the image, and its brightness (the mean of each channel) is that of the image.
    """

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return _fit_range(scramble_phases(images, generator), images)


def scramble_phases(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images with the amplitudes and means of those given, and phases of white noise; not kept in any range."""
    count, _, height, width = images.shape
    # The phases of the spectrum of real white noise have just the symmetry that keeps the result real.
    white = torch.randn(count, 1, height, width, generator=generator, device="cpu").to(images)
    turn = torch.fft.rfft2(white)
    turn = turn / turn.abs().clamp_min(1e-12)
    turn[..., 0, 0] = 1.0  # the mean stays
    return torch.fft.irfft2(torch.fft.rfft2(images) * turn, s=(height, width))


def _fit_range(scrambled: Tensor, images: Tensor) -> Tensor:
    """Clip to the range of each image; clipping moves the mean, which three rounds of shifting bring back."""
    low, high = (f(images, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    mean = images.mean(dim=(2, 3), keepdim=True)
    for _ in range(3):
        scrambled = torch.clamp(scrambled, low, high)
        scrambled = scrambled + mean - scrambled.mean(dim=(2, 3), keepdim=True)
    return torch.clamp(scrambled, low, high)
