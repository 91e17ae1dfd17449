"""Temperature scaling around any method (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines.contract import Method, check_share
from repulse.errors import DataError, expected
from repulse.prediction import ClassPrediction, Prediction


@dataclass
class Temperature(Method):
    """Every member's logits divided by one number, that with the least NLL on data held back from the fit.

    A network fits its training data too well to tell from them; give `calibrate` data it has not seen if there are any.

    Args:
        method: what to wrap.
        share: of the training data that `fit` holds back to find the temperature.
        seed: which samples that is.
    """

    method: Method
    share: float = 0.1
    seed: int = 0
    temperature: float = field(init=False)

    def __post_init__(self) -> None:
        check_share(self.share)

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"{self.method.name} + temperature"

    @property
    def takes(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.takes

    @property
    def seeded(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.seeded

    @property
    def classes(self) -> int | None:
        return self.method.classes

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(self.seed)).to(features.device)
        held = order[: max(1, round(self.share * len(features)))]
        kept = order[len(held) :] if len(held) < len(order) else order
        self.method.fit(features[kept], targets[kept])
        self.calibrate(features[held], targets[held])

    def calibrate(self, features: Tensor, targets: Tensor) -> Temperature:
        """Find the temperature on these samples; the method must be fitted."""
        prediction = self.method.predict(features)
        if not isinstance(prediction, ClassPrediction):
            raise DataError(expected("method", "a classifier", type(prediction).__name__))
        log_probs = prediction.log_probs.double().clamp_min(-1e4)

        def loss(log_temperature: float) -> float:
            return float(F.nll_loss(_tempered(log_probs, 2.718281828**log_temperature), targets))

        low, high = -3.0, 3.0  # temperatures of 0.05 to 20; golden section, for the loss has one minimum
        ratio = (5**0.5 - 1) / 2
        for _ in range(40):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, right) if loss(left) <= loss(right) else (left, high)
        self.temperature = 2.718281828 ** ((low + high) / 2)
        return self

    def _predict(self, features: Tensor) -> ClassPrediction:
        prediction = self.method.predict(features)
        assert isinstance(prediction, ClassPrediction)
        return ClassPrediction((prediction.log_probs.clamp_min(-1e30) / self.temperature).log_softmax(dim=-1))

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return self.method._score(features, prediction)


def _tempered(log_probs: Tensor, temperature: float) -> Tensor:
    """Log of the mean over members of their tempered probabilities."""
    return (log_probs / temperature).log_softmax(dim=-1).logsumexp(dim=0) - torch.tensor(float(len(log_probs))).log()
