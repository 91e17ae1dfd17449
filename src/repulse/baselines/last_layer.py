"""The last layer of a network, which most baselines start from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.particles.fit import fit_heads
from repulse.recipe import LL_E


@dataclass(frozen=True, eq=False)
class LastLayer:
    """A linear layer from features to logits: that of the network, or one fitted on wider features.

    Attributes:
        weight: `(K, d)`.
        bias: `(K,)`.
    """

    weight: Float[Tensor, "K d"]
    bias: Float[Tensor, " K"]

    def __post_init__(self) -> None:
        if not bool(self.weight.isfinite().all() and self.bias.isfinite().all()):
            raise DataError(expected("the last layer", "finite", "NaN or infinite weights"))

    @classmethod
    def fit(
        cls, features: Tensor, targets: Tensor, classes: int | None = None, taps: int = 0, seed: int = 0
    ) -> LastLayer:
        """Fit one linear layer in the same way as one head of an ensemble."""
        recipe = LL_E.replace(heads=1, seed=seed)
        head = fit_heads(features, targets, None, recipe, classes=classes, taps=taps, progress=False)
        return cls(head.weight[0].detach(), head.bias[0].detach())

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return len(self.bias)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B K"]:
        """Compute the logits."""
        return torch.addmm(self.bias, features.to(self.weight.dtype), self.weight.T)
