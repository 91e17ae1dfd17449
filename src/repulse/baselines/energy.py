"""Energy and the largest logit: scores that need nothing but the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repulse.baselines.contract import Detector
from repulse.prediction import Prediction


@dataclass
class Energy(Detector):
    """`-log sum_k exp f_k`: small where any logit is large (Liu et al., 2020)."""

    name: ClassVar[str] = "Energy"

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(features).logsumexp(dim=-1)


@dataclass
class MaxLogit(Detector):
    """`-max_k f_k` (Hendrycks et al., 2022)."""

    name: ClassVar[str] = "MaxLogit"

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return -self.layer(features).amax(dim=-1)
