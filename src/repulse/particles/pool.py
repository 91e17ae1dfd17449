"""Batches drawn at random from features that may be larger than memory, through a pool of rows.

Random rows of a file are slow, so rows come into the pool in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from repulse._mapped import read_blocks
from repulse.particles.fit_data import identity

MAX_PRESCALED = 2**26
"""Maximum number of elements that are scaled before the fit and held in memory (268 MB); more go through a pool."""

POOL_ELEMENTS, BLOCK_ELEMENTS = 2**25, 2**13
"""Number of elements in a pool (134 MB), and in a block of consecutive rows (32 KB)."""

READ_ELEMENTS = 2**19
"""Number of elements read into a pool at once (about 2 MB); larger reads would fragment the heap."""


def batches(size: int, batch: int, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Iterate for ever over indices of random batches: each sample once per pass; incomplete batches are dropped."""
    batch = min(batch, size)
    while True:
        order = torch.randperm(size, generator=generator, device="cpu").to(device)
        yield from order[: size - size % batch].split(batch)


class Pool:
    """Rows in memory, prepared, from which batches are drawn: all there are, or some at once.

    Rows that need no preparation are taken as they are. If all others fit, they are prepared once, and batches are
    those of `batches`. If not, blocks of consecutive rows come in random order, as many as the pool holds; batches are
    drawn from all of these in random order; then the next blocks come. So every row comes once an epoch, and memory
    does not depend on how many there are.

    With rows in random order, as a loader that shuffles leaves them in the cache, this is as good as a full shuffle.
    With rows sorted by class, the share of one of K classes in a pool of P blocks is off by a fraction of about
    sqrt(K / P). P is 4,096 (half of that if features are whitened), so this is 5 % for 10 classes and 16 % for 100,
    which a decaying learning rate forgets; with 1000 classes it is a half, and rows should be shuffled before their
    features are computed.

    Args:
        x: features, `(N, d)`; any inputs, if they need no preparation.
        y: a target for each.
        prepare: applied to rows of features as they come in.
        batch: how many rows are drawn at once.

    Attributes:
        x: the rows in the pool, overwritten as batches are drawn.
        y: their targets.
    """

    def __init__(self, x: Tensor, y: Tensor, prepare: Callable[[Tensor], Tensor], batch: int) -> None:
        self.whole, self.prepare, self.batch = (x, y), prepare, batch
        self.x, self.y = x, y
        if prepare is not identity:
            like = prepare(x[:1])
            self.rows = max(BLOCK_ELEMENTS // x.shape[1], 1)
            self.blocks = max(POOL_ELEMENTS // like.shape[1] // self.rows, 1)
            room = min(self.blocks * self.rows + batch, len(x))  # what is left of the last blocks makes no batch
            self.x, self.y = like.new_empty(room, like.shape[1]), y.new_empty(room, *y.shape[1:])

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Iterate for ever over rows of `x` and `y` that make a random batch; use each before requesting the next."""
        size = len(self.whole[0])
        if self.prepare is not identity:
            blocks = -(-size // self.rows)
            if len(self.x) < size:
                while True:
                    order = torch.randperm(blocks, generator=generator)
                    yield from self._pass(order.tensor_split(-(-blocks // self.blocks)), generator)
            self._fill(torch.arange(blocks), 0)
        yield from batches(size, self.batch, generator, self.x.device)

    def _pass(self, fills: Sequence[Tensor], generator: torch.Generator) -> Iterator[Tensor]:
        """Run one epoch: fill, draw all whole batches, keep the rest for the next."""
        kept = 0
        for blocks in fills:
            held = self._fill(blocks, kept)
            order = torch.randperm(held, generator=generator).to(self.x.device)
            drawn, rest = order.split([held - held % self.batch, held % self.batch])
            yield from drawn.split(self.batch) if len(drawn) else ()
            kept = len(rest)
            for column in (self.x, self.y):
                column[:kept] = column[rest]

    def _fill(self, blocks: Tensor, held: int) -> int:
        """Read blocks into the pool after the rows that are held; return how many rows there are then."""
        for some in blocks.split(READ_ELEMENTS // BLOCK_ELEMENTS):
            begins = [self.rows * block for block in some.tolist()]
            x, y = (read_blocks(column, begins, self.rows) for column in self.whole)
            self.x[held : held + len(x)], self.y[held : held + len(x)] = self.prepare(x), y
            held += len(x)
        return held
