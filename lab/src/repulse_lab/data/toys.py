"""Data drawn from a seed: images of noise, and the paper's toy problems."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import check_choice, check_positive_integer
from repulse_lab.data.dataset import Contents

SEEDS = {"train": 0, "test": 1, "repulsion": 2, "evaluation": 3}
"""Seed from which each split is drawn."""

NOISE = 0.25
"""Standard deviation around the sine."""


def noise(split: str = "repulsion", count: int = 10_000, shape: tuple[int, int, int] = (3, 32, 32)) -> Contents:
    """Draw `uint8` images of independent uniform pixels."""
    generator = _generator(split, ("repulsion", "evaluation"))
    check_positive_integer("count", count)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    return Contents(images)


def two_moons(split: str = "train", count: int = 1500) -> Contents:
    """Draw two interleaved half circles with noise 0.1; repulsion inputs fill [-3, 4] x [-3, 3.5]."""
    generator = _generator(split, ("train", "test", "repulsion"))
    if split == "repulsion":
        return Contents(_box((-3.0, -3.0), (4.0, 3.5), count, generator))
    angle = torch.pi * torch.rand(count, generator=generator)
    label = torch.arange(count) % 2
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    exact = torch.where(label.unsqueeze(1) == 0, upper, lower)
    return Contents(exact + 0.1 * torch.randn(count, 2, generator=generator), label)


def gaussians(split: str = "train", count: int = 200) -> Contents:
    """Draw five Gaussians (std 1) on a circle of radius 5; repulsion inputs fill [-20, 20] squared."""
    generator = _generator(split, ("train", "test", "repulsion"))
    if split == "repulsion":
        return Contents(_box((-20.0, -20.0), (20.0, 20.0), count, generator))
    label = torch.arange(count) % 5
    angle = 2 * torch.pi * label / 5
    centre = 5 * torch.stack([angle.cos(), angle.sin()], dim=1)
    return Contents(centre + torch.randn(count, 2, generator=generator), label)


def sine(split: str = "train", count: int = 90) -> Contents:
    """Draw `y = x sin x` with noise 0.25.

    Seen on [1.5, 2.5] and [4.5, 6], half of the points each; tested on [0, 7]; repulsion inputs lie in that widened by
    a quarter.
    """
    generator = _generator(split, ("train", "test", "repulsion"))
    if split == "repulsion":
        return Contents(_box((-0.875,), (7.875,), count, generator))
    if split == "train":
        left = _box((1.5,), (2.5,), count // 2, generator)
        x = torch.cat([left, _box((4.5,), (6.0,), count - count // 2, generator)])
    else:
        x = _box((0.0,), (7.0,), count, generator)
    return Contents(x, (x * x.sin()).squeeze(1) + NOISE * torch.randn(count, generator=generator))


def _generator(split: str, splits: tuple[str, ...]) -> torch.Generator:
    check_choice("split", split, splits)
    return torch.Generator().manual_seed(SEEDS[split])


def _box(low: tuple[float, ...], high: tuple[float, ...], count: int, generator: torch.Generator) -> Tensor:
    bottom, top = torch.tensor(low), torch.tensor(high)
    return bottom + (top - bottom) * torch.rand(count, len(low), generator=generator)
