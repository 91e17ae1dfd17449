"""Tables in any form: what sources of rows have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from repulse.errors import RepulsionError, expected
from repulse.repulsion.source import Source, check_company, map_tensors, other_rows, tensors_of


class TableSource(Source):
    """Makes rows from rows: a tensor `(B, D)`, or a mapping or tuple of columns `(B,)` and blocks `(B, D)`.

    Columns may be of any scale and type; integers are taken for categories.
    """

    takes_mappings = True

    def sample(self, batch: Any, generator: torch.Generator) -> Any:
        columns = tensors_of(batch).values()
        rows = {len(column) if 0 < column.ndim < 3 else None for column in columns}
        if len(rows) != 1 or None in rows:
            got = ", ".join(str(tuple(column.shape)) for column in columns)
            name = type(self).__name__
            raise RepulsionError(expected("inputs", f"columns (rows,) or (rows, columns) for {name}", f"shapes {got}"))
        (count,) = rows
        assert count is not None
        check_company(type(self).__name__, count)
        partner = other_rows(count, generator)
        return map_tensors(lambda column: self.sample_columns(column, partner, generator), batch)

    @abstractmethod
    def sample_columns(self, columns: Tensor, partner: Tensor, generator: torch.Generator) -> Tensor:
        """Draw new values of some columns, `(B,)` or `(B, D)`, given for each row the index of another one."""
