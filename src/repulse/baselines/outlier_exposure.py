"""Outlier exposure: one head that is told to be undecided on repulsion samples, without an ensemble."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.baselines._checks import check_features
from repulse.baselines.contract import Method
from repulse.baselines.last_layer import LastLayer
from repulse.baselines.registry import register
from repulse.particles.scaling import Scaling
from repulse.prediction import ClassPrediction
from repulse.recipe import Recipe


@register
@dataclass
class OutlierExposure(Method):
    """Fit one linear head that is uniform on the repulsion samples (Hendrycks, Mazeika and Dietterich, 2019).

    Minimises `CE(train) + weight * CE(uniform, repulsion)` with the number of steps, the learning rate and the batch
    size of the default recipe. The score is the entropy.

    Args:
        repulsion: features of out-of-distribution samples, `(M, d)`.
        outputs: number of classes.
        weight: weight of the second term.
        taps: number of columns of the features, the last ones, that are taps.
        seed: for the start and the batches.
    """

    repulsion: Tensor
    outputs: int
    weight: float = 0.5
    taps: int = 0
    seed: int = 0
    layer: LastLayer = field(init=False, repr=False)

    name = "outlier exposure"
    family = "outliers"
    random = True
    uses_repulsion = True

    @property
    def classes(self) -> int:
        return self.outputs

    @property
    def columns(self) -> int:
        return self.repulsion.shape[-1]

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        recipe = Recipe()
        check_features(self, self.repulsion, "repulsion")
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


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer
