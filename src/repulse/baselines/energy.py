"""MaxLogit and Energy: scores that need nothing but the logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.prediction import Prediction


@register
@dataclass
class MaxLogit(Detector):
    """Score by `-max_k f_k` (Hendrycks et al., 2022)."""

    name = "MaxLogit"
    family = "logits"
    seconds = 3.0

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(features).amax(dim=-1)


@register
@dataclass
class Energy(Detector):
    """Score by `-log sum_k exp f_k`, which is small where any logit is large (Liu et al., 2020)."""

    name = "Energy"
    family = "logits"
    seconds = 3.0

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(features).logsumexp(dim=-1)
