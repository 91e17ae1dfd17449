"""Uniform samples of a box: for inputs of few dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_number, expected
from repulse.repulsion.source import Source, check_floats, uniform


class UniformBox(Source):
    """Draw uniform samples of a box.

    Args:
        low: lower corner, a number or a tensor that broadcasts to one input; None takes the smallest value of each
            coordinate in the batch, less `margin`.
        high: upper corner, likewise.
        margin: how far the box reaches beyond the batch where a corner is None, as a share of its extent.
    """

    takes_copies = True

    def __init__(
        self, low: float | Tensor | None = None, high: float | Tensor | None = None, margin: float = 0.25
    ) -> None:
        check_number("margin", margin, positive=False)
        try:
            ordered = low is None or high is None or bool((torch.as_tensor(low) < torch.as_tensor(high)).all())
        except RuntimeError:
            ordered = False
        if not ordered:
            raise RecipeError(expected("low", "below `high` in every coordinate", f"low={low}, high={high}"))
        self.low, self.high, self.margin = low, high, margin

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_floats("UniformBox", batch)
        smallest, largest = batch.amin(dim=0), batch.amax(dim=0)
        reach = self.margin * (largest - smallest)
        low = smallest - reach if self.low is None else self._corner("low", self.low, batch)
        high = largest + reach if self.high is None else self._corner("high", self.high, batch)
        if (self.low is None) != (self.high is None) and bool((low > high).any()):
            if self.high is None:
                raise RepulsionError(expected("low", "below the largest values of the batch", self.low))
            raise RepulsionError(expected("high", "above the smallest values of the batch", self.high))
        return low + (high - low) * uniform(batch.shape, generator, batch)

    @staticmethod
    def _corner(name: str, value: float | Tensor, batch: Tensor) -> Tensor:
        corner = torch.as_tensor(value).to(batch)
        try:
            return corner.expand(batch.shape[1:])
        except RuntimeError:
            wanted = f"a number or of shape {tuple(batch.shape[1:])} like one input"
            raise RepulsionError(expected(name, wanted, f"shape {tuple(corner.shape)}")) from None

    def __repr__(self) -> str:
        return f"UniformBox(low={self.low}, high={self.high})"
