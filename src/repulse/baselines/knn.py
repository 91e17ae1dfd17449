"""KNN: distance to the k-th nearest training feature (Sun et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from repulse.baselines.method import Detector
from repulse.errors import check_positive_integer
from repulse.prediction import Prediction


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
        likeness = F.normalize(features.float(), dim=1) @ self.bank.T
        nearest = likeness.topk(min(self.k, len(self.bank)), dim=1).values[:, -1]
        return (2 - 2 * nearest.double()).clamp_min(0).sqrt()
