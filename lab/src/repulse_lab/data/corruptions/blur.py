"""Blurs: of the lens, of glass, of motion and of zoom."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F

from repulse_lab.data.corruptions.fields import Images, along_axes, filter_of, map_of, scale, smooth, streak, uniform


def gaussian_blur(x: Images, level: int, generator: Generator) -> Images:
    return smooth(x, (0.4, 0.6, 0.7, 0.8, 1.0)[level] * scale(x))


def defocus_blur(x: Images, level: int, generator: Generator) -> Images:
    """Blur with a disk, applied as a sum of separable filters, of which it needs few."""
    left, strength, right = torch.linalg.svd(_disk(level, scale(x)))
    out = torch.zeros_like(x)
    for u, s, v in zip(left.T, strength, right, strict=True):
        if s > 1e-6:
            out += along_axes(x, filter_of(s * u, x.shape[2]), filter_of(v, x.shape[3]))
    return out


def _disk(level: int, size: float) -> Float[Tensor, "taps taps"]:
    """Return the benchmark's kernel of a few pixels; other sizes have a smooth disk as wide as that, times the size.

    A radius of 0.3 to 1.5 pixels, cut from the grid and softened by three taps, has no larger version of its own.
    """
    radius, rim = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    squares = torch.arange(-2, 3).square()
    taps = torch.exp(-squares[1:4] / (2 * rim**2))
    cut = (squares[:, None] + squares <= radius**2).float()
    kernel = F.conv2d(cut[None, None], torch.outer(taps, taps)[None, None], padding=1)[0, 0]
    if size != 1:
        wide = 2 * size * ((kernel * squares).sum() / kernel.sum()).sqrt().item()  # a disk's radius is twice its spread
        squares = torch.arange(-math.ceil(wide), math.ceil(wide) + 1).square()
        kernel = (wide + 0.5 - (squares[:, None] + squares).sqrt()).clamp(0, 1)
    return kernel / kernel.sum()


def glass_blur(x: Images, level: int, generator: Generator) -> Images:
    """Take every pixel from a random neighbour, between two light Gaussian blurs.

    The benchmark means to swap neighbours, but its swap only copies, from above and left: so does this.
    """
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    count, channels, height, width = x.shape
    reach = max(1, round(scale(x)))
    out = smooth(x, sigma * scale(x))
    for _ in range(rounds):
        steps = torch.randint(-reach, reach, (2, count, height, width), generator=generator, device="cpu")
        down, right = steps.to(x.device)
        row = (torch.arange(height, device=x.device)[:, None] + down).clamp(0, height - 1)
        column = (torch.arange(width, device=x.device) + right).clamp(0, width - 1)
        index = (row * width + column).view(count, 1, -1).expand(-1, channels, -1)
        out = out.flatten(2).gather(2, index).view_as(x)
    return smooth(out, sigma * scale(x))


def motion_blur(x: Images, level: int, generator: Generator) -> Images:
    """Blur along an angle within 45 degrees of level, drawn for each image."""
    reach, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[level]
    angle = uniform((len(x),), -math.pi / 4, math.pi / 4, generator, x)
    return streak(x, reach * scale(x), sigma * scale(x), angle)


def zoom_blur(x: Images, level: int, generator: Generator) -> Images:
    """Average the image and its enlargements by 0, 1, 2, ... percent."""
    zooms = [1 + percent / 100 for percent in range((7, 12, 16, 21, 26)[level])]
    height, width = x.shape[2:]
    out = x.clone()
    for zoom in zooms:
        out += along_axes(x, _zoomed(height, zoom), _zoomed(width, zoom))
    return out / (len(zooms) + 1)


def _zoomed(size: int, zoom: float) -> Float[Tensor, "size size"]:
    """Return the matrix that enlarges the middle of a row of pixels by linear interpolation."""
    kept = math.ceil(size / zoom)
    made = round(kept * zoom)
    position = (torch.arange(size) + (made - size) // 2) * ((kept - 1) / (made - 1)) + (size - kept) // 2
    left = position.floor()
    return map_of(
        torch.stack((left, left + 1), dim=1).long(), torch.stack((1 - position + left, position - left), dim=1), size
    )
