"""Sources that work for any input, not only for images."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_number, expected
from repulse.repulsion.source import Source, check_floats, uniform


class UniformBox(Source):
    """Uniform samples of a box.

    Args:
        low: lower corner, a number or a tensor that broadcasts to one input; None takes the smallest value of each
            coordinate in the batch, less `margin`.
        high: upper corner, likewise.
        margin: how far the box reaches beyond the batch where a corner is None, as a share of its extent.
    """

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


class Noise(Source):
    """Gaussian noise around the mean of the batch, with its spread; per channel for images, per coordinate otherwise.

    Args:
        scale: factor on the spread.
    """

    def __init__(self, scale: float = 1.0) -> None:
        check_number("scale", scale, positive=True)
        self.scale = scale

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_floats("Noise", batch)
        axes = (0, *range(2, batch.ndim))
        mean = batch.mean(dim=axes, keepdim=True)
        spread = batch.std(dim=axes, keepdim=True, correction=0)
        return mean + self.scale * spread * torch.randn(batch.shape, generator=generator, device="cpu").to(batch)

    def __repr__(self) -> str:
        return f"Noise(scale={self.scale})"


class Mixup(Source):
    """Convex combinations of two inputs of the batch, with weights between 0.3 and 0.7 so that neither dominates."""

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_floats("Mixup", batch)
        if len(batch) < 2:
            raise RepulsionError(expected("inputs", "at least two inputs a batch for Mixup", len(batch)))
        partner = batch.roll(
            int(torch.randint(1, len(batch), (), generator=generator, device="cpu")), dims=0
        )  # never with itself
        weight = 0.3 + 0.4 * uniform((len(batch), *[1] * (batch.ndim - 1)), generator, batch)
        return weight * batch + (1 - weight) * partner
