"""Find samples that two sets share, by content: a set that heads were repelled on is no fair test of them.

Each sample is kept as a few random projections of its entries, which are first standardised like those of the first
batch. The mean squared difference of projections estimates that of entries, so that copies are found although they
differ by rounding errors (features computed in another batch), and sets of any size are read batch by batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repulse.backbone.batches import input_batches, size_of, tensors_of

PROJECTIONS = 16
TOLERANCE = 2e-4
"""Maximum root mean square difference of equal samples, in standard deviations; rounding errors are far smaller."""
EXACT_TOLERANCE = 1e-9
"""The same for integers, and for samples of a single entry, which may be close by chance."""


def overlap(samples: Any, others: Any) -> float:
    """Compute the share of `others` that are also in `samples`, up to rounding errors; integers must be equal.

    Examples:
        >>> samples = torch.arange(20.0).view(10, 2)
        >>> overlap(samples, torch.cat([samples[:1] * (1 + 1e-5), torch.ones(3, 2)]))
        0.25

    Args:
        samples: a tensor, one batch in a tuple (targets, if any, are ignored), a loader, or a mapping of names to such.
        others: likewise. Samples are compared as they are: an image in [0, 255] is not found among images in [0, 1].
    """
    known = Index()
    for batch in input_batches(samples, "samples"):
        known.add(batch)
    found = [known.find(batch) for batch in input_batches(others, "others")]
    return float(torch.cat(found).double().mean())


class Index:
    """Samples to look up; those of different widths are never equal."""

    def __init__(self) -> None:
        self.by_width: dict[int, ProjectedSamples] = {}

    def add(self, inputs: Any) -> None:
        """Add the samples of a batch."""
        rows, exact = rows_of(inputs)
        if not len(rows):
            return
        if rows.shape[1] not in self.by_width:
            self.by_width[rows.shape[1]] = ProjectedSamples(rows)
        self.by_width[rows.shape[1]].add(rows, exact)

    def find(self, inputs: Any) -> Bool[Tensor, " B"]:
        """Check which samples of a batch were added before."""
        rows, exact = rows_of(inputs)
        same_width = self.by_width.get(rows.shape[1])
        return torch.zeros(len(rows), dtype=torch.bool) if same_width is None else same_width.find(rows, exact)


class ProjectedSamples:
    """Samples of one width, as projections sorted by the one with the largest standard deviation."""

    def __init__(self, rows: Float[Tensor, "B d"]) -> None:
        shift = rows.mean(dim=0)
        spread = rows.std(dim=0, correction=0).maximum(0.1 * shift.abs())  # a large constant must not hide the rest
        scale = spread.clamp_min(0.01 * float(rows.square().mean().sqrt()) + 1e-30)
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(rows.shape[1], PROJECTIONS, generator=generator, dtype=torch.float64)
        self.weight = directions / scale.unsqueeze(1) / rows.shape[1] ** 0.5
        self.bias = -(shift @ self.weight)
        self.kept: list[Tensor] = []
        self.exact = True
        self.key = -1

    def add(self, rows: Float[Tensor, "B d"], exact: bool) -> None:
        self.kept.append(self.project(rows))
        self.exact = self.exact and exact
        self.key = -1

    def project(self, rows: Float[Tensor, "B d"]) -> Float[Tensor, "B p"]:
        return torch.addmm(self.bias, rows, self.weight)

    def find(self, rows: Float[Tensor, "B d"], exact: bool) -> Bool[Tensor, " B"]:
        if self.key < 0:
            kept = torch.cat(self.kept)
            self.key = int(kept.std(dim=0, correction=0).argmax())
            self.kept = [kept[kept[:, self.key].argsort()]]
        wanted, kept = self.project(rows), self.kept[0]
        keys, places = kept[:, self.key].contiguous(), wanted[:, self.key].contiguous()
        tolerance = EXACT_TOLERANCE if (exact and self.exact) or rows.shape[1] == 1 else TOLERANCE
        near = tolerance * wanted.square().mean(dim=1).sqrt().clamp_min(1.0)  # rounding grows with the numbers
        at = torch.searchsorted(keys, places - 6 * near)
        end = torch.searchsorted(keys, places + 6 * near)
        found = torch.zeros(len(rows), dtype=torch.bool)
        asking = (at < end).nonzero().flatten()
        while len(asking):  # compare each with its next neighbour, until it is found or has none left
            same = (wanted[asking] - kept[at[asking]]).square().mean(dim=1).sqrt() <= 1.5 * near[asking]
            found[asking[same]] = True
            at[asking] += 1
            asking = asking[~same & (at[asking] < end[asking])]
        return found


def rows_of(inputs: Any) -> tuple[Float[Tensor, "B d"], bool]:
    """Return samples as rows of numbers, and whether they are integers."""
    tensors = [value for _, value in tensors_of(inputs) if value.ndim]
    size = size_of(inputs)
    whole = [value.detach().cpu().double() for value in tensors if len(value) == size]
    if not whole:  # inputs of a form that nobody else knows
        return torch.zeros(0, 0, dtype=torch.float64), True
    rows = torch.cat([value.reshape(size, math.prod(value.shape[1:])) for value in whole], dim=1)
    return rows, not any(value.is_floating_point() for value in tensors)
