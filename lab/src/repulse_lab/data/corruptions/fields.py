"""What several corruptions are made of: random fields, smoothing, streaks and clouds, on batches `(N, C, H, W)`.

The benchmark's lengths are pixels of 32-pixel images. `scale` says how many pixels here make one of those.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

Images = Float[Tensor, "N C H W"]
LUMA = (0.299, 0.587, 0.114)


def scale(x: Images) -> float:
    """Return the length of one pixel of a 32-pixel image in these images, by their short side."""
    return min(x.shape[2:]) / 32


def normal(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=generator, device="cpu").to(like)


def uniform(shape: tuple[int, ...], low: float, high: float, generator: Generator, like: Tensor) -> Tensor:
    return (low + (high - low) * torch.rand(shape, generator=generator, device="cpu")).to(like)


def grey(x: Images) -> Float[Tensor, "N 1 H W"]:
    """Return the luminance; one channel is its own."""
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def colour(rgb: tuple[float, float, float], like: Images) -> Float[Tensor, "1 C 1 1"]:
    """Return a colour of as many channels as the images have."""
    tint = like.new_tensor(rgb).view(1, 3, 1, 1)
    return grey(tint) if like.shape[1] == 1 else tint


def coarse(x: Images) -> tuple[int, int]:
    """Return the size of these images if their short side were 32 pixels: where thresholded noise is drawn.

    Drawn pixel by pixel, noise smoothed over twice the length would be weaker, and cross a threshold elsewhere.
    """
    return round(x.shape[2] / scale(x)), round(x.shape[3] / scale(x))


def enlarge(field: Float[Tensor, "N c h w"], like: Float[Tensor, "N C H W"]) -> Float[Tensor, "N c H W"]:
    """Enlarge a field drawn at the coarse size to the size of the images."""
    if field.shape[2:] == like.shape[2:]:
        return field
    return F.interpolate(field, size=like.shape[2:], mode="bilinear", align_corners=False)


def along_axes(x: Images, rows: Float[Tensor, "H2 H"], columns: Float[Tensor, "W2 W"]) -> Float[Tensor, "N C H2 W2"]:
    """Apply a separable linear map, `rows @ image @ columns.T`, which for small images beats convolution."""
    flat = x.flatten(0, 1)
    wide = torch.bmm(flat, columns.to(x).T.expand(len(flat), -1, -1))
    return torch.bmm(rows.to(x).expand(len(flat), -1, -1), wide).unflatten(0, x.shape[:2])


def map_of(index: Int[Tensor, "out taps"], weight: Float[Tensor, "out taps"], size: int) -> Float[Tensor, "out size"]:
    """Return the matrix whose row `i` takes `weight[i]` of the pixels `index[i]`, with edge pixels repeated."""
    matrix = torch.zeros(len(index), size, dtype=weight.dtype)
    return matrix.scatter_add_(1, index.clamp(0, size - 1), weight)


def smooth(x: Images, sigma: float) -> Images:
    """Blur with a Gaussian, cut off at four standard deviations, edges repeated."""
    if sigma == 0:
        return x
    reach = int(4 * sigma + 0.5)
    weight = torch.softmax(-torch.arange(-reach, reach + 1).square() / (2 * sigma**2), dim=0)
    return along_axes(x, *(filter_of(weight, size) for size in x.shape[2:]))


def filter_of(weight: Float[Tensor, " taps"], size: int) -> Float[Tensor, "size size"]:
    """Return the matrix that correlates a row of pixels with an odd number of weights."""
    reach = len(weight) // 2
    index = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
    return map_of(index, weight.expand(size, -1).contiguous(), size)


def streak(x: Images, reach: float, sigma: float, angle: Float[Tensor, " N"]) -> Images:
    """Blur by half a Gaussian of whole-pixel steps along an angle of each image's own, edges repeated."""
    count, channels, height, width = x.shape
    steps = torch.arange(2 * math.ceil(reach) + 1, device=x.device)
    kernel = torch.exp(-steps.square() / (2 * sigma**2))
    kernel = kernel[kernel > 1e-3] / kernel[kernel > 1e-3].sum()
    down, right = (torch.ceil(torch.outer(turn, steps) - 0.5).long() for turn in (angle.sin(), angle.cos()))
    flat, out = x.flatten(2), torch.zeros_like(x).flatten(2)
    for i, weight in enumerate(kernel.tolist()):
        row = (torch.arange(height, device=x.device) + down[:, i, None]).clamp(0, height - 1)
        column = (torch.arange(width, device=x.device) + right[:, i, None]).clamp(0, width - 1)
        index = (row[:, :, None] * width + column[:, None, :]).view(count, 1, -1)
        out.add_(flat.gather(2, index.expand(-1, channels, -1)), alpha=weight)
    return out.view_as(x)


def clouds(x: Images, decay: float, generator: Generator) -> Float[Tensor, "N 1 H W"]:
    """Draw plasma fractals between 0 and 1, one for each image: diamond-square on a torus.

    Args:
        x: the images whose number and size are wanted.
        decay: each halving of the grid divides the displacement by the square of this; large is smooth.
        generator: where the displacements come from.
    """
    heights, size = x.new_zeros(len(x), 1, 1, 1), 1
    while size < max(x.shape[2:]):
        shift = decay ** (-2 * math.log2(size))
        centres, above, beside = uniform((3, *heights.shape), -shift, shift, generator, x)
        right = heights.roll(-1, dims=3)
        centres = centres + (heights + right + (heights + right).roll(-1, dims=2)) / 4
        above = above + (heights + right + centres + centres.roll(1, dims=2)) / 4
        beside = beside + (heights + heights.roll(-1, dims=2) + centres + centres.roll(1, dims=3)) / 4
        rows = torch.stack((heights, above), dim=-1).flatten(3), torch.stack((beside, centres), dim=-1).flatten(3)
        heights, size = torch.stack(rows, dim=3).flatten(2, 3), 2 * size
    low, high = heights.amin(dim=(2, 3), keepdim=True), heights.amax(dim=(2, 3), keepdim=True)
    return ((heights - low) / (high - low))[:, :, : x.shape[2], : x.shape[3]]
