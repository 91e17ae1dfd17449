"""ReAct: unusually strong activations are cut before the energy is taken (Sun, Guo and Li, 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from repulse.baselines.contract import Detector
from repulse.errors import RecipeError, expected
from repulse.prediction import Prediction


@dataclass
class ReAct(Detector):
    """Energy of `min(z, c)`, where c is a quantile of all training activations.

    Args:
        layer: the network's last layer.
        quantile: share of the training activations that stay as they are.
    """

    quantile: float = 0.9
    ceiling: Tensor = field(init=False, repr=False)

    name: ClassVar[str] = "ReAct"

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise RecipeError(expected("quantile", "above 0 and at most 1", self.quantile))

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        values = features.flatten()
        rank = max(1, round(self.quantile * len(values)))
        self.ceiling = values.kthvalue(rank).values  # torch.quantile refuses more than 16 million values

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(torch.minimum(features, self.ceiling)).logsumexp(dim=-1)
