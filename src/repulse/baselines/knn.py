"""KNN: distance to the k-th nearest training feature (Sun et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.errors import check_positive_integer
from repulse.prediction import Prediction

MAX_PAIRS = 100_000_000
"""Maximum number of pairs of samples compared at once: 400 MB."""


@register
@dataclass
class KNN(Detector):
    """Score by the Euclidean distance, between features of unit length, to the k-th nearest training sample.

    Args:
        layer: the last layer of the network.
        k: which neighbour; the farthest one if there are fewer.
    """

    k: int = 50
    bank: Tensor = field(init=False, repr=False)

    name = "KNN"
    family = "distance"
    seconds = 8.0

    def __post_init__(self) -> None:
        check_positive_integer("k", self.k)

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        self.bank = F.normalize(features.float(), dim=1)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        k, rows = min(self.k, len(self.bank)), max(1, MAX_PAIRS // len(self.bank))
        parts = F.normalize(features.float(), dim=1).split(rows)
        nearest = torch.cat([(part @ self.bank.T).topk(k, dim=1).values[:, -1] for part in parts])
        return (2 - 2 * nearest.double()).clamp_min(0).sqrt()
