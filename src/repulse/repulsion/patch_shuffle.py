"""Patch shuffling: the paper's label-destroying augmentation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_positive_integer, expected
from repulse.repulsion.images import ImageSource
from repulse.repulsion.source import permutations

MAX_TILES = 2**20
"""Tiles of an image, at most: one for each of a million pixels."""


class PatchShuffle(ImageSource):
    """Cut each image into equal tiles and permute them; never the identity.

    The paper's Patches-x has x tiles in all, in a grid as near to square as x allows: 16 is 4 x 4, 8 is 2 x 4.

    Args:
        tiles: total number of tiles, at least 2.
    """

    def __init__(self, tiles: int = 16) -> None:
        check_positive_integer("tiles", tiles)
        if tiles < 2:
            raise RecipeError(expected("tiles", "at least 2", tiles))
        if tiles > MAX_TILES:
            raise RecipeError(expected("tiles", f"at most {MAX_TILES:,}", f"{tiles:,}"))
        self.tiles = tiles
        self.rows = max(r for r in range(1, math.isqrt(tiles) + 1) if tiles % r == 0)
        self.columns = tiles // self.rows

    def sample_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        if height % self.rows or width % self.columns:
            wanted = f"images that {self.rows} x {self.columns} equal tiles fill"
            raise RepulsionError(expected("inputs", wanted, f"{height} x {width} pixels"))
        grid = (count, channels, self.rows, height // self.rows, self.columns, width // self.columns)
        tiles = images.reshape(grid).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, tiles, C, h, w)
        order = permutations(count, self.tiles, generator).to(images.device)
        tiles = tiles[torch.arange(count, device=images.device).unsqueeze(1), order]
        tiles = tiles.unflatten(1, (self.rows, self.columns)).permute(0, 3, 1, 4, 2, 5)
        return tiles.reshape(images.shape)

    def __repr__(self) -> str:
        return f"PatchShuffle(tiles={self.tiles})"
