"""Rows of a table that are half of one row and half of another."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.tables import TableSource


class HalfShuffle(TableSource):
    """Take each column of a row, with probability 1/2, from another row of the batch.

    Every value is one that its column has, every row is half of one and half of another: only how columns depend on
    each other is broken.
    """

    def sample_columns(self, columns: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
        stays = torch.rand(columns.shape, generator=generator, device="cpu").to(columns.device) < 0.5
        return torch.where(stays, columns, columns[partner.to(columns.device)])
