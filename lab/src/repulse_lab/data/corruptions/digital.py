"""Digital corruptions: contrast, saturation, warps, pixels and JPEG."""

from __future__ import annotations

import io

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F

from repulse_lab.data.corruptions.fields import Images, along_axes, coarse, enlarge, scale, smooth, uniform


def contrast(x: Images, level: int, generator: Generator) -> Images:
    mean = x.mean(dim=(2, 3), keepdim=True)
    return mean + (0.75, 0.5, 0.4, 0.3, 0.15)[level] * (x - mean)


def saturate(x: Images, level: int, generator: Generator) -> Images:
    """Fade colours at severities 1 and 2, boost them from 3 on; grey pixels of colour images turn red (hue 0).

    Images of one channel have no saturation and stay as they are.
    """
    if x.shape[1] == 1:
        return x
    factor, more = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[level]
    value = x.amax(dim=1, keepdim=True)
    below = value - x
    chroma = below.amax(dim=1, keepdim=True)
    saturation = (factor * chroma / value.clamp(min=1e-12) + more).clamp(max=1)
    red = x.new_tensor((0.0, 1.0, 1.0)).view(1, 3, 1, 1)
    return value * (1 - saturation * torch.where(chroma > 0, below / chroma.clamp(min=1e-12), red))


def elastic_transform(x: Images, level: int, generator: Generator) -> Images:
    """Apply a random affine map, then displacement by smoothed noise.

    From one severity to the next the affine part shrinks while displacements grow and get rougher.
    """
    shift, sigma, corner = (
        (0.0, 0.0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    )[level]
    height, width = x.shape[2:]
    down, right = torch.meshgrid(*(torch.arange(n, device=x.device).to(x) for n in (height, width)), indexing="ij")
    grid = torch.stack((right, down), dim=-1)
    moved = _from(x, _affine(x, corner * scale(x), generator, grid))
    if shift == 0:
        return moved
    noise = uniform((len(x), 2, *coarse(x)), -1, 1, generator, x)
    displaced = enlarge(smooth(noise, sigma), x) * (shift * scale(x))
    return _from(moved, grid + displaced.permute(0, 2, 3, 1))


def _affine(x: Images, corner: float, generator: Generator, grid: Float[Tensor, "H W 2"]) -> Float[Tensor, "N H W 2"]:
    """Return where each pixel comes from if three corners of the middle square each move by up to `corner` pixels."""
    middle, half = x.new_tensor((x.shape[3] // 2, x.shape[2] // 2)), min(x.shape[2:]) // 3
    corners = middle + half * x.new_tensor(((1, 1), (1, -1), (-1, -1)))
    moved = corners + uniform((len(x), 3, 2), -corner, corner, generator, x)
    back = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), corners.expand(len(x), -1, -1))
    return (F.pad(grid, (0, 1), value=1.0).view(1, -1, 3) @ back).view(len(x), *grid.shape)


def _from(x: Images, places: Float[Tensor, "N H W 2"]) -> Images:
    """Return pixels at places (column, row), linearly interpolated, edges mirrored."""
    last = x.new_tensor((x.shape[3] - 1, x.shape[2] - 1))
    return F.grid_sample(x, 2 * places / last - 1, padding_mode="reflection", align_corners=True)


def pixelate(x: Images, level: int, generator: Generator) -> Images:
    """Reduce to fewer pixels by averages, and enlarge again by repetition."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level] / max(1.0, scale(x))
    maps = [_boxes(int(size * share), size) @ _boxes(size, int(size * share)) for size in x.shape[2:]]
    return along_axes(x, *maps)


def _boxes(inside: int, outside: int) -> Float[Tensor, "outside inside"]:
    """Return the matrix that makes `outside` pixels of `inside`: means of those whose centres are in the new pixel."""
    ratio = inside / outside
    reach = max(ratio, 1.0) / 2
    gap = (
        torch.arange(inside, dtype=torch.float64)
        + 0.5
        - (torch.arange(outside, dtype=torch.float64)[:, None] + 0.5) * ratio
    )
    taken = ((gap > -reach) & (gap <= reach)).float()
    return taken / taken.sum(dim=1, keepdim=True)


def jpeg_compression(x: Images, level: int, generator: Generator) -> Images:
    """Compress by Pillow's JPEG, image by image."""
    from PIL import Image

    quality = (80, 65, 58, 50, 40)[level]
    pictures = (x * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    out = np.empty_like(pictures)
    for i, picture in enumerate(pictures):
        buffer = io.BytesIO()
        Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture).save(buffer, "JPEG", quality=quality)
        out[i] = np.asarray(Image.open(buffer)).reshape(picture.shape)
    return torch.from_numpy(out).permute(0, 3, 1, 2).to(x) / 255
