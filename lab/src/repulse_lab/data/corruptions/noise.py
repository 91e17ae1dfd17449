"""Noise: each value of each channel for itself, whatever the size of the image."""

from __future__ import annotations

import torch
from torch import Generator

from repulse_lab.data.corruptions.fields import Images, normal, uniform


def gaussian_noise(x: Images, level: int, generator: Generator) -> Images:
    std = (0.04, 0.06, 0.08, 0.09, 0.10)[level]
    return x + std * normal(x.shape, generator, x)


def shot_noise(x: Images, level: int, generator: Generator) -> Images:
    """Draw counts of photons, of which white has this many."""
    photons = (500, 250, 100, 75, 50)[level]
    return torch.poisson(x.cpu() * photons, generator).to(x) / photons


def impulse_noise(x: Images, level: int, generator: Generator) -> Images:
    """Add salt and pepper in equal parts."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    chance = uniform(x.shape, 0, 1, generator, x)
    return torch.where(chance < share, (chance < share / 2).to(x), x)


def speckle_noise(x: Images, level: int, generator: Generator) -> Images:
    """Add Gaussian noise in proportion to the value."""
    std = (0.06, 0.1, 0.12, 0.16, 0.2)[level]
    return x + x * std * normal(x.shape, generator, x)
