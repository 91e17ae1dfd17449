"""What outlier samples alone would give: told "this is outside", without an ensemble and without repulsion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.baselines.contract import Detector, LastLayer, Method
from repulse.particles.scaling import Scaling
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import Recipe


@dataclass
class OutlierExposure(Method):
    """One linear head, uniform on the repulsion samples (Hendrycks, Mazeika and Dietterich, 2019).

    Minimises `CE(train) + weight * CE(uniform, repulsion)` with as many steps of Adam, of the same rate and batch size,
    as the default recipe takes; the score is the entropy.

    Args:
        repulsion: features of samples that are outside, `(M, d)`.
        outputs: number of classes.
        weight: of the outlier term.
        taps: how many of the last columns of the features are taps.
        seed: of the start and the batches.
    """

    repulsion: Tensor
    outputs: int
    weight: float = 0.5
    taps: int = 0
    seed: int = 0
    layer: LastLayer = field(init=False, repr=False)

    name: ClassVar[str] = "outlier exposure"
    seeded: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return self.outputs

    @property
    def columns(self) -> int:
        return self.repulsion.shape[-1]

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        recipe = Recipe()
        self._check(self.repulsion, "repulsion")
        scaling = Scaling.of(features, self.taps, recipe.tap_scale)
        inside, outside = scaling(features), scaling(self.repulsion)
        generator = torch.Generator().manual_seed(self.seed)
        head = _linear(features.shape[1], self.outputs, generator).to(features.device)
        size = min(recipe.batch_size, len(inside))
        steps = max(3 * (len(inside) // size), 2000)
        optimizer = torch.optim.Adam(head.parameters(), lr=recipe.lr)
        for _ in range(steps):
            batch = torch.randint(len(inside), (size,), generator=generator)
            other = torch.randint(len(outside), (size,), generator=generator)
            log_probs = head(outside[other]).log_softmax(dim=-1)
            loss = F.cross_entropy(head(inside[batch]), targets[batch]) - self.weight * log_probs.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weight, bias = scaling.fold(head.weight.detach().unsqueeze(0), head.bias.detach().unsqueeze(0))
        self.layer = LastLayer(weight[0].to(head.weight), bias[0].to(head.bias))

    def _predict(self, features: Tensor) -> ClassPrediction:
        return ClassPrediction(self.layer(features).log_softmax(dim=-1).unsqueeze(0))


@dataclass
class Discriminator(Detector):
    """Logistic regression between training features and repulsion samples; its logit is the score.

    Both sides weigh the same however many samples they have; weights are held by a small ridge and found by L-BFGS.

    Args:
        layer: the network's last layer, for predictions.
        repulsion: features of samples that are outside, `(M, d)`.
        taps: how many of the last columns of the features are taps.
        ridge: of the weights, on features of unit scale.
    """

    repulsion: Tensor
    taps: int = 0
    ridge: float = 1e-4
    direction: Tensor = field(init=False, repr=False)
    offset: Tensor = field(init=False, repr=False)

    name: ClassVar[str] = "discriminator"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        self._check(self.repulsion, "repulsion")
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


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer
