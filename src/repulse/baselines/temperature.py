"""Temperature scaling around any method (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines._checks import check_share
from repulse.baselines._search import smallest
from repulse.baselines.contract import Method
from repulse.baselines.map import MAP
from repulse.baselines.registry import register
from repulse.baselines.resources import Resources
from repulse.errors import DataError, expected
from repulse.prediction import ClassPrediction, Prediction


@dataclass
class Temperature(Method):
    """Divide the logits of every member by the temperature with the smallest NLL on held-back training data.

    A network is overconfident on its training data; if there are data that it has not seen, pass them to `calibrate`.

    Args:
        method: what to wrap.
        share: share of the training data that `fit` holds back to find the temperature; always the same samples.
    """

    method: Method
    share: float = 0.1
    temperature: float = field(init=False)

    calibrates = True
    chosen = ("temperature",)

    def __post_init__(self) -> None:
        check_share(self.share)
        self.name = f"{self.method.name} + temperature"
        self.takes, self.random = self.method.takes, self.method.random

    @property
    def classes(self) -> int | None:
        return self.method.classes

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0)).to(features.device)
        held_back = order[: max(1, round(self.share * len(features)))]
        kept = order[len(held_back) :] if len(held_back) < len(order) else order
        self.method.fit(features[kept], targets[kept])
        self.calibrate(features[held_back], targets[held_back])

    def calibrate(self, features: Tensor, targets: Tensor) -> Temperature:
        """Find the temperature with the smallest NLL on these samples; the wrapped method must be fitted."""
        prediction = self.method.predict(features)
        if not isinstance(prediction, ClassPrediction):
            raise DataError(expected("method", "a classifier", type(prediction).__name__))
        log_probs = prediction.log_probs.double().clamp_min(-1e4)

        def loss(temperature: float) -> float:
            return float(F.nll_loss(_tempered(log_probs, temperature), targets))

        self.temperature = smallest(loss, 1.0, sections=40)
        return self

    def _predict(self, features: Tensor) -> ClassPrediction:
        prediction = self.method.predict(features)
        assert isinstance(prediction, ClassPrediction)
        return ClassPrediction((prediction.log_probs.clamp_min(-1e30) / self.temperature).log_softmax(dim=-1))

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return self.method._score(features, prediction)


@register
class TemperatureScaledMAP(Temperature):
    """The network alone, with a temperature."""

    name = "MAP + temperature"
    family = "network"

    @classmethod
    def build(cls, resources: Resources) -> TemperatureScaledMAP:
        """Return a temperature around the last layer of the network."""
        return cls(MAP(resources.layer))


def _tempered(log_probs: Tensor, temperature: float) -> Tensor:
    """Compute the log of the mean, over members, of their tempered probabilities."""
    return (log_probs / temperature).log_softmax(dim=-1).logsumexp(dim=0) - torch.tensor(float(len(log_probs))).log()
