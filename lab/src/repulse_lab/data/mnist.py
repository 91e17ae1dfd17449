"""The idx format of MNIST, and digits made ambiguous by blending two."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, expected


def blend(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make ambiguous images: blends of two of different classes, with the label of one of them, drawn by its weight.

    Args:
        images: `uint8` images.
        labels: their classes.
        count: how many blends.
        generator: of pairs, weights and labels.
    """
    one, two = (torch.randint(len(images), (4 * count,), generator=generator) for _ in range(2))
    other = (labels[one] != labels[two]).nonzero().flatten()[:count]
    one, two = one[other], two[other]
    weight = 0.35 + 0.3 * torch.rand(count, generator=generator)
    shape = (-1, *[1] * (images.ndim - 1))
    # The brighter of the two everywhere, as two pens would draw them, each dimmed by its share.
    mixed = torch.maximum(images[one] * weight.view(shape), images[two] * (1 - weight).view(shape)) * 1.5
    drawn = torch.rand(count, generator=generator) < weight
    return mixed.clamp(0, 255).to(torch.uint8), torch.where(drawn, labels[one], labels[two])


def read_idx(path: Path) -> Tensor:
    """Read a file in the idx format of bytes, gzipped or not."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\x00\x00\x08" else 0
    shape = np.frombuffer(content[4 : 4 + 4 * dimensions], dtype=">u4").astype(np.int64)
    values = np.frombuffer(content[4 + 4 * dimensions :], dtype=np.uint8)
    if not dimensions or len(shape) != dimensions or len(values) != np.prod(shape):
        got = f"{len(content)} bytes that do not add up"
        raise DataError(expected(f"the file {path.name}", "whole and in the idx format of bytes", got))
    return torch.from_numpy(values.reshape(shape).copy())
