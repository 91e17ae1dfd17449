"""KNN: distance to the k-th nearest training feature (Sun et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines.contract import Detector
from repulse.errors import check_positive_integer
from repulse.prediction import Prediction

LIKENESSES = 100_000_000
"""Pairs of samples that are compared at a time (400 MB)."""


@dataclass
class KNN(Detector):
    """Euclidean distance, between features scaled to unit length, to the k-th nearest training sample.

    Args:
        layer: the network's last layer.
        k: which neighbour; the last one there is if there are fewer.
    """

    k: int = 50
    bank: Tensor = field(init=False, repr=False)

    name: ClassVar[str] = "KNN"

    def __post_init__(self) -> None:
        check_positive_integer("k", self.k)

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        self.bank = F.normalize(features.float(), dim=1)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        k, rows = min(self.k, len(self.bank)), max(1, LIKENESSES // len(self.bank))
        parts = F.normalize(features.float(), dim=1).split(rows)
        nearest = torch.cat([(part @ self.bank.T).topk(k, dim=1).values[:, -1] for part in parts])
        return (2 - 2 * nearest.double()).clamp_min(0).sqrt()
