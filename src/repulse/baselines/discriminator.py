"""Discriminator: a linear classifier of training features against repulsion samples, without an ensemble."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines._checks import check_features
from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.particles.scaling import Scaling
from repulse.prediction import Prediction
from repulse.recipe import Recipe


@register
@dataclass
class Discriminator(Detector):
    """Score by the logit of a logistic regression between training features and repulsion samples.

    Both sides have the same total weight, whatever their numbers of samples. Fitted by L-BFGS with a small ridge.

    Args:
        layer: the last layer of the network, for predictions.
        repulsion: features of out-of-distribution samples, `(M, d)`.
        taps: number of columns of the features, the last ones, that are taps.
        ridge: weight of the squared norm of the weights, on features of unit scale.
    """

    repulsion: Tensor
    taps: int = 0
    ridge: float = 1e-4
    direction: Tensor = field(init=False, repr=False)
    offset: Tensor = field(init=False, repr=False)

    name = "discriminator"
    family = "outliers"
    uses_repulsion = True

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        check_features(self, self.repulsion, "repulsion")
        scaling = Scaling.of(features, self.taps, Recipe().tap_scale)
        inside, outside = scaling(features).double(), scaling(self.repulsion).double()
        weight = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device, requires_grad=True)
        bias = torch.zeros((), dtype=torch.float64, device=features.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.softplus(inside @ weight + bias).mean() + F.softplus(-(outside @ weight + bias)).mean()
            value = value + self.ridge * weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)  # pyright: ignore[reportArgumentType]
        folded, offset = scaling.fold(weight.detach().view(1, 1, -1), bias.detach().view(1, 1))
        self.direction, self.offset = folded[0, 0].to(features.device), offset[0, 0].to(features.device)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return features.double() @ self.direction + self.offset
