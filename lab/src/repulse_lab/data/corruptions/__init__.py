"""The 19 corruptions of CIFAR-10-C at five severities, for images of any size.

Parameters are those of the benchmark's CIFAR version (Hendrycks and Dietterich, 2019); lengths given for 32 pixels grow
with the short side of the image. Ice and drops of water are of our own making, see `frost` and `spatter`.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from repulse.errors import DataError, RecipeError, check_choice, expected
from repulse_lab.data.corruptions import blur, digital, noise, weather

_FUNCTIONS = {
    function.__name__: function
    for function in (
        noise.gaussian_noise,
        noise.shot_noise,
        noise.impulse_noise,
        blur.defocus_blur,
        blur.glass_blur,
        blur.motion_blur,
        blur.zoom_blur,
        weather.snow,
        weather.frost,
        weather.fog,
        weather.brightness,
        digital.contrast,
        digital.elastic_transform,
        digital.pixelate,
        digital.jpeg_compression,
        noise.speckle_noise,
        blur.gaussian_blur,
        weather.spatter,
        digital.saturate,
    )
}
KINDS = tuple(_FUNCTIONS)
"""Names of the corruptions, in the benchmark's order; the last four are its extra ones."""
SEVERITIES = (1, 2, 3, 4, 5)

_AT_ONCE = 2**17  # values: what fits a cache, and bounds memory


@torch.no_grad()
def corrupt(images: Tensor, kind: str, severity: int, generator: Generator | None = None) -> Tensor:
    """Corrupt images, keeping their shape and type.

    Args:
        images: `(N, C, H, W)` with one or three channels of at least 8 x 8 pixels; bytes, or floats between 0 and 1.
        kind: one of `KINDS`.
        severity: 1 to 5.
        generator: on the CPU; the only source of randomness. None is one with seed 0: a benchmark stays as it is.

    Raises:
        RecipeError: no such kind or severity.
        DataError: these are no such images.

    Examples:
        >>> grey = torch.full((1, 1, 32, 32), 0.5)
        >>> round(corrupt(grey, "gaussian_noise", 5).std().item(), 2)
        0.1
    """
    _check_choice_of(kind, severity)
    _check_images(images)
    generator = generator or torch.Generator().manual_seed(0)
    parts = images.split(max(1, _AT_ONCE // images[0].numel()))
    return torch.cat([_corrupt(part, kind, severity, generator) for part in parts])


def _corrupt(images: Tensor, kind: str, severity: int, generator: Generator) -> Tensor:
    whole = images.dtype == torch.uint8
    out = _FUNCTIONS[kind](images.float() / 255 if whole else images.float(), severity - 1, generator).clamp(0, 1)
    return (out * 255).round().byte() if whole else out.to(images.dtype)


def _check_choice_of(kind: str, severity: int) -> None:
    check_choice("kind", kind, KINDS)
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise RecipeError(expected("severity", "an integer from 1 to 5", repr(severity)))


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 8 or not len(images):
        wanted = "images (N, C, H, W) with 1 or 3 channels of at least 8 x 8 pixels"
        raise DataError(expected("images", wanted, f"the shape {tuple(images.shape)}"))
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise DataError(expected("images", "bytes (torch.uint8), or floats between 0 and 1", images.dtype))
    low, high = (value.item() for value in images.aminmax())
    if not (low >= 0 and high <= 1):  # so that NaN is caught, too
        raise DataError(expected("floating-point `images`", "between 0 and 1", f"values from {low:g} to {high:g}"))
