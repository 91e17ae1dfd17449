"""Weather, and what it leaves on the lens: snow, frost, fog, brightness, spatter."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F

from repulse_lab.data.corruptions.fields import (
    Images,
    clouds,
    coarse,
    colour,
    enlarge,
    grey,
    normal,
    scale,
    smooth,
    streak,
    uniform,
)

ICE = (0.80, 0.91, 1.0)
WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)


def snow(x: Images, level: int, generator: Generator) -> Images:
    """Draw falling flakes, streaked, over an image that is whitened."""
    mean, std, zoom, threshold, reach, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[level]
    height, width = coarse(x)
    flakes = mean + std * normal((len(x), 1, math.ceil(height / zoom), math.ceil(width / zoom)), generator, x)
    flakes = F.interpolate(flakes, size=(height, width), mode="bilinear", align_corners=True)
    flakes = enlarge(torch.where(flakes < threshold, 0.0, flakes.clamp(max=1)), x)
    angle = uniform((len(x),), -0.75 * math.pi, -0.25 * math.pi, generator, x)
    flakes = streak(flakes, reach * scale(x), sigma * scale(x), angle)
    white = torch.maximum(x, 1.5 * grey(x) + 0.5)
    return kept * x + (1 - kept) * white + flakes + flakes.flip(2, 3)


def frost(x: Images, level: int, generator: Generator) -> Images:
    """Draw ice crystals on the pane.

    The benchmark adds crops of photographs of frost. Here the ice is made up: needles that grow from random seeds in
    six directions, brighter where a fractal film of ice is thick. How dense and bright they are was set by eye and by
    the accuracy of a ResNet-20 on 500 test images of CIFAR-10 (55 % at severity 5). Figures for frost are therefore
    not to be compared with published ones.
    """
    kept, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    return kept * x + ice * colour(ICE, x) * _crystals(x, generator)


def _crystals(x: Images, generator: Generator) -> Float[Tensor, "N 1 H W"]:
    """Return brightness of the ice, between 0 and 1."""
    film = clouds(x, 1.4, generator)
    rarity = uniform((len(x), 1, *x.shape[2:]), 0, scale(x), generator, x)
    grown, length = torch.zeros_like(rarity), max(2, round(8 * scale(x)))
    for turn in range(12):  # even turns grow from one half of the seeds, odd ones from the other
        seeds = (rarity.sub(0.004 + 0.008 * (turn % 2)).abs() < 0.004).to(x)
        down, right = math.sin(turn * math.pi / 6), math.cos(turn * math.pi / 6)
        for step in range(length):
            moved = seeds.roll((round(step * down), round(step * right)), dims=(2, 3))
            grown = torch.maximum(grown, moved * (1 - step / length))
    return (0.25 + 0.5 * film + 0.8 * grown * film).clamp(max=1)


def fog(x: Images, level: int, generator: Generator) -> Images:
    """Add a plasma fractal, then compress all values back to the range they had."""
    thickness, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    most = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + thickness * clouds(x, decay, generator)) * most / (most + thickness)


def brightness(x: Images, level: int, generator: Generator) -> Images:
    """Raise the value of hue, saturation and value: all channels by the factor that raises their largest."""
    value = x.amax(dim=1, keepdim=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[level]).clamp(max=1)
    return torch.where(value > 0, x * (raised / value.clamp(min=1e-12)), raised)


def spatter(x: Images, level: int, generator: Generator) -> Images:
    """Draw drops of water (severities 1 to 3) or splashes of mud (4 and 5).

    Drops are where smoothed noise exceeds a threshold. The benchmark shades those of water by a chain of edge
    detection, distances and equalised histograms; here their height and the slope away from the light do it.
    """
    mean, std, sigma, threshold, finish, mud = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1.0, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    )[level]
    liquid = smooth(mean + std * normal((len(x), 1, *coarse(x)), generator, x), sigma)
    if mud:
        cover = smooth((liquid > threshold).to(x), finish)
        cover = enlarge(torch.where(cover < 0.8, 0.0, cover), x)
        return (1 - cover) * x + cover * colour(MUD, x)
    height = (liquid - threshold).clamp(min=0)
    slope = height - height.roll((1, 1), dims=(2, 3))
    shade = F.avg_pool2d(height + slope.clamp(min=0), 3, stride=1, padding=1) * (height > 0)
    shade = enlarge(finish * shade / shade.amax(dim=(2, 3), keepdim=True).clamp(min=1e-6), x)
    return x + shade * colour(WATER, x)
