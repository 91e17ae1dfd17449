"""Nearest training inputs in whitened features, and how near they usually are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse._mapped import MAX_ROWS, read_blocks, row_chunks
from repulse.kept import KeptFeatures
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.whitening import Whitening

MAX_USUAL = 500
"""Inputs by which it is judged how near neighbours usually are."""

MAX_COMPARED = 5000
"""Training inputs, and as many repulsion samples, among which it is judged what an input looks like."""

FEW, EXACT, FAST = 32, "donot_use_mm_for_euclid_dist", "use_mm_for_euclid_dist"
"""Inputs up to which distances are exact; a matrix product is faster, but gives copies a distance above zero."""

MAX_HELD = 2**26
"""Whitened numbers of the training data that are held for the next search (268 MB)."""

LOOKED_AT = 10
"""Nearest of these that are looked at."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Training features, ready to be searched.

    Distances are Euclidean in whitened coordinates, `|((x - y) / scale) A|`, so that directions in which the data
    hardly varies count as much as others.

    Attributes:
        kept: the features.
        scale: standard deviation of each feature.
        axes: A.
    """

    kept: KeptFeatures
    scale: Float[Tensor, " d"]
    axes: Float[Tensor, "d k"]

    @classmethod
    def of(cls, kept: KeptFeatures, heads: Heads) -> Neighbours:
        """Take the whitening of the heads, or that of the training data if they have none."""
        if isinstance(heads, CentredHeads):
            end = int(heads.distance_ends[heads.bands - 1])
            return cls(kept, heads.distance_scale, heads.distance_axes[:, :end])
        whitening = Whitening.of(kept.train)
        return cls(kept, whitening.scale.float(), whitening.axes.float())

    @cached_property
    def usual(self) -> float:
        """Median distance to the nearest training input: of validation data, or of training inputs to all others."""
        own = self.kept.validation is None
        ordinary = self.kept.train if self.kept.validation is None else self.kept.validation
        rows = read_blocks(ordinary, range(0, len(ordinary), -(-len(ordinary) // MAX_USUAL)), 1)
        distances, _ = self.nearest(rows, 2 if own and len(self.kept.train) > 1 else 1)
        return max(float(distances[:, -1].median()), 1e-12)

    def whitened(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B k"]:
        """Return features in whitened coordinates, up to a shift."""
        return (features.to(self.axes) / self.scale) @ self.axes

    def nearest(self, features: Float[Tensor, "B d"], k: int) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """Return distances to the k nearest training inputs, and their indices; nearest first."""
        return _search(self.whitened(features), self._whitened_train(), k)

    def _whitened_train(self) -> Iterator[Tensor]:
        """Iterate over the training data in whitened coordinates."""
        if len(self.kept.train) * self.axes.shape[1] > MAX_HELD:
            return (self.whitened(part.float()) for part in row_chunks(self.kept.train))
        return iter(self._held.split(MAX_ROWS))

    @cached_property
    def _held(self) -> Float[Tensor, "N k"]:
        """All of them, for the next search."""
        return torch.cat([self.whitened(part.float()) for part in row_chunks(self.kept.train)])

    def repelled_share(self, features: Float[Tensor, "B d"]) -> Float[Tensor, " B"] | None:
        """Return the share of repulsion samples among the ten nearest of equally many of them and training inputs."""
        far = self.kept.repulsion
        if far is None:
            return None
        most = min(len(self.kept.train), len(far), MAX_COMPARED)
        both = [read_blocks(rows, range(0, len(rows), -(-len(rows) // most)), 1) for rows in (self.kept.train, far)]
        _, found = _search(self.whitened(features), (self.whitened(part.float()) for part in both), LOOKED_AT)
        return (found >= len(both[0])).float().mean(dim=1)


def _search(queries: Tensor, parts: Iterable[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return distances to the k nearest rows of all parts, and their indices; nearest first."""
    distances = queries.new_empty(len(queries), 0)
    indices = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    begin = 0
    for part in parts:
        here = torch.cdist(queries, part, compute_mode=EXACT if len(queries) <= FEW else FAST)
        near = here.topk(min(k, len(part)), largest=False)
        distances = torch.cat([distances, near.values], dim=1)
        indices = torch.cat([indices, near.indices + begin], dim=1)
        best = distances.topk(min(k, distances.shape[1]), largest=False)
        distances, indices = best.values, indices.gather(1, best.indices)
        begin += len(part)
    return distances, indices
