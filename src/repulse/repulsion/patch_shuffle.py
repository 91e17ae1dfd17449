"""Patch shuffling: the paper's label-destroying augmentation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_positive_integer, expected
from repulse.repulsion.source import Source, check_images


class PatchShuffle(Source):
    """Cut each image into equal tiles and permute them; never the identity.

    The paper's Patches-x has x tiles in all, in a grid as near to square as x allows: 16 is 4 x 4, 8 is 2 x 4.

    Args:
        tiles: total number of tiles, at least 2.
    """

    def __init__(self, tiles: int = 16) -> None:
        check_positive_integer("tiles", tiles)
        if tiles < 2:
            raise RecipeError(expected("tiles", "at least 2", tiles))
        self.tiles = tiles
        self.rows = max(r for r in range(1, math.isqrt(tiles) + 1) if tiles % r == 0)
        self.columns = tiles // self.rows

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        images, channels, height, width = check_images("PatchShuffle", batch)
        if height % self.rows or width % self.columns:
            wanted = f"images that {self.rows} x {self.columns} equal tiles fill"
            raise RepulsionError(expected("inputs", wanted, f"{height} x {width} pixels"))
        grid = (images, channels, self.rows, height // self.rows, self.columns, width // self.columns)
        tiles = batch.reshape(grid).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, tiles, C, h, w)
        order = self._permutations(images, generator).to(batch.device)
        tiles = tiles[torch.arange(images, device=batch.device).unsqueeze(1), order]
        tiles = tiles.unflatten(1, (self.rows, self.columns)).permute(0, 3, 1, 4, 2, 5)
        return tiles.reshape(batch.shape)

    def _permutations(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform over all permutations but the identity."""
        order = torch.rand(count, self.tiles, generator=generator, device="cpu").argsort(dim=1)
        identity = torch.arange(self.tiles)
        while bool((same := (order == identity).all(dim=1)).any()):
            order[same] = torch.rand(int(same.sum()), self.tiles, generator=generator, device="cpu").argsort(dim=1)
        return order

    def __repr__(self) -> str:
        return f"PatchShuffle(tiles={self.tiles})"
