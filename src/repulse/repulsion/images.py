"""Images in any layout: a source is given floats with channels first, and gives back what the model takes."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from repulse.errors import RepulsionError, expected
from repulse.repulsion.source import Source

SMALLEST_SIDE = 4
"""Pixels along the shorter side of the smallest thing that is called an image."""

MOST_COLOURS = 4
"""Channels that a last axis may have for it to be taken for the axis of channels."""


class ImageSource(Source):
    """Makes images from images: floats or bytes, channels first `(B, C, H, W)`, last `(B, H, W, C)`, or none.

    Subclasses see floats of at least single precision with channels first, and return the same.
    """

    takes_copies = True

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_images(type(self).__name__, batch)
        last = has_channels_last(batch)
        images = batch.unsqueeze(1) if batch.ndim == 3 else batch.movedim(3, 1) if last else batch
        images = images.to(torch.promote_types(batch.dtype, torch.float32))
        samples = self.sample_images(images, generator)
        if not batch.is_floating_point():
            samples = samples.round().clamp(0, 255)
        samples = samples.to(batch.dtype)
        return samples.squeeze(1) if batch.ndim == 3 else samples.movedim(1, 3).contiguous() if last else samples

    @abstractmethod
    def sample_images(self, images: Float[Tensor, "B C H W"], generator: torch.Generator) -> Float[Tensor, "B C H W"]:
        """Draw one image for each image of a batch."""


def has_channels_last(batch: Tensor) -> bool:
    """Check whether the last of four axes, and not the second, is that of the channels."""
    return batch.ndim == 4 and batch.shape[3] <= MOST_COLOURS < min(batch.shape[1], batch.shape[2])


def check_images(name: str, batch: Tensor) -> None:
    """Refuse what is no batch of images, with an error that says which source wanted some."""
    if batch.ndim not in (3, 4) or not (batch.is_floating_point() or batch.dtype == torch.uint8):
        wanted = f"float or uint8 images of shape (batch, channels, height, width) for {name}"
        raise RepulsionError(expected("inputs", wanted, f"{batch.dtype} of shape {tuple(batch.shape)}"))
    if not batch.numel():
        raise RepulsionError(expected("inputs", f"images with pixels for {name}", f"shape {tuple(batch.shape)}"))


def resample(images: Float[Tensor, "B C H W"], grid: Float[Tensor, "B H W 2"]) -> Float[Tensor, "B C H W"]:
    """Return images with the colours found at other places; mirrored beyond the border."""
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
