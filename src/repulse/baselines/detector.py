"""Methods that keep the predictions of the network and only rank inputs in their own way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from repulse.baselines.contract import Method
from repulse.baselines.last_layer import LastLayer
from repulse.prediction import ClassPrediction


@dataclass
class Detector(Method):
    """Base class of methods with the predictions of the network; subclasses define `_score`, most also `_fit`.

    Args:
        layer: the last layer of the network.
    """

    layer: LastLayer

    @property
    def classes(self) -> int:
        return self.layer.classes

    @property
    def columns(self) -> int:
        return self.layer.weight.shape[1]

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        """Learn nothing, unless a subclass does."""

    def _predict(self, features: Tensor) -> ClassPrediction:
        return ClassPrediction(self.layer(features).log_softmax(dim=-1).unsqueeze(0))
