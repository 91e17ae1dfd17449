"""Outlier exposure: one head that is told to be undecided on repulsion samples, without an ensemble."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.baselines._checks import check_features
from repulse.baselines._search import smallest
from repulse.baselines.contract import Method
from repulse.baselines.last_layer import LastLayer
from repulse.baselines.registry import register
from repulse.errors import DataError, expected
from repulse.particles import loop
from repulse.particles.scaling import TAP_SCALE, Scaling
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
        weight: weight of the second term; 0.5 is its authors'.
        taps: number of columns of the features, the last ones, that are taps.
        seed: for the start and the batches.
        steps: minimum number of steps, that of our heads if not given; three passes if these are more.
    """

    repulsion: Tensor
    outputs: int
    weight: float = 0.5
    taps: int = 0
    seed: int = 0
    steps: int = field(default_factory=lambda: loop.MIN_STEPS)
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
        check_features(self, self.repulsion, "repulsion")
        self.layer = self._head(features, targets, self.weight)

    def _head(self, features: Tensor, targets: Tensor, outlier_weight: float) -> LastLayer:
        recipe = Recipe()
        scaling = Scaling.of(features, self.taps, TAP_SCALE)
        inside, outside = scaling(features), scaling(self.repulsion)
        generator = torch.Generator().manual_seed(self.seed)
        head = _linear(features.shape[1], self.outputs, generator).to(features.device)
        size = min(recipe.batch_size, len(inside))
        optimizer = torch.optim.Adam(head.parameters(), lr=recipe.lr)
        for _ in range(max(3 * (len(inside) // size), self.steps)):
            batch = torch.randint(len(inside), (size,), generator=generator)
            other = torch.randint(len(outside), (size,), generator=generator)
            log_probs = head(outside[other]).log_softmax(dim=-1)
            loss = F.cross_entropy(head(inside[batch]), targets[batch]) - outlier_weight * log_probs.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weight, bias = scaling.fold(head.weight.detach().unsqueeze(0), head.bias.detach().unsqueeze(0))
        return LastLayer(weight[0].to(head.weight), bias[0].to(head.bias))

    def _predict(self, features: Tensor) -> ClassPrediction:
        return ClassPrediction(self.layer(features).log_softmax(dim=-1).unsqueeze(0))


@register
class TunedOutlierExposure(OutlierExposure):
    """Outlier exposure with the weight that `calibrate` finds: the one whose head has the smallest NLL.

    Larger weights detect better and are worse calibrated; nothing but labels of unseen samples can say where to stop.
    """

    name = "tuned outlier exposure"
    calibrates = True
    chosen = ("weight",)
    seconds = 15.0

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        super()._fit(features, targets)
        self._known = features, targets
        self._heads = {self.weight: self.layer}

    @torch.inference_mode(False)
    @torch.enable_grad()
    def calibrate(self, features: Tensor, targets: Tensor) -> TunedOutlierExposure:
        """Choose the weight whose head has the smallest NLL on these samples."""
        if not hasattr(self, "_known"):  # neither tensors nor heads of other weights are saved
            raise DataError(expected("the method", "one that was fitted here", "one that was loaded"))

        def loss(weight: float) -> float:
            if weight not in self._heads:
                self._heads[weight] = self._head(*self._known, weight)
            return float(F.cross_entropy(self._heads[weight](features), targets))

        self.weight = smallest(loss, OutlierExposure.weight, steps=10)
        self.layer = self._heads[self.weight]
        return self


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer
