"""ReAct: unusually large activations are clipped before the energy is computed (Sun, Guo and Li, 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.errors import RecipeError, expected
from repulse.prediction import Prediction


@register
@dataclass
class ReAct(Detector):
    """Score by the energy of `min(z, c)`, where c is a quantile of all training activations.

    Args:
        layer: the last layer of the network.
        quantile: share of the training activations that is not clipped.
    """

    quantile: float = 0.9
    ceiling: Tensor = field(init=False, repr=False)

    name = "ReAct"
    family = "logits"

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise RecipeError(expected("quantile", "above 0 and at most 1", self.quantile))

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        values = features.flatten()
        rank = max(1, round(self.quantile * len(values)))
        self.ceiling = values.kthvalue(rank).values  # torch.quantile refuses more than 16 million values

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(torch.minimum(features, self.ceiling)).logsumexp(dim=-1)
