"""Rows of a box that is wider than a table."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import check_number
from repulse.repulsion.source import uniform
from repulse.repulsion.tables import TableSource


class WideBox(TableSource):
    """Draw rows of a box that is wider than the batch in every column; categories come from any row.

    Args:
        margin: how far the box reaches beyond the batch on either side, as a share of the extent of a column.
    """

    def __init__(self, margin: float = 1.0) -> None:
        check_number("margin", margin, positive=True)
        self.margin = margin

    def sample_columns(self, columns: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
        if not columns.is_floating_point():
            rows = torch.randint(len(columns), columns.shape, generator=generator, device="cpu").to(columns.device)
            return columns.gather(0, rows)
        low, high = columns.amin(dim=0), columns.amax(dim=0)
        extent = high - low
        return low - self.margin * extent + (1 + 2 * self.margin) * extent * uniform(columns.shape, generator, columns)

    def __repr__(self) -> str:
        return f"WideBox(margin={self.margin:g})"
