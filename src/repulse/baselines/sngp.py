"""SNGP, post hoc: a Gaussian process on the features, through random Fourier features (Liu et al., 2020)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from repulse.baselines._checks import check_share
from repulse.baselines._gaussians import cholesky
from repulse.baselines._search import smallest
from repulse.baselines.contract import Method
from repulse.baselines.last_layer import LastLayer
from repulse.baselines.registry import register
from repulse.errors import FitWarning, check_positive_integer
from repulse.particles.fit import fit_heads
from repulse.prediction import ClassPrediction
from repulse.recipe import LL_E

FACTOR = math.pi / 8
"""Factor of the variance in the mean-field logits that theory gives, from which the search for the best starts."""


@register
@dataclass
class SNGP(Method):
    """Predict `softmax(f / sqrt(1 + factor * variance))` and score by its entropy.

    Standardised features z become `r = sqrt(2/D) cos(O z / l + b)`, with orthogonal random O, b uniform in [0, 2 pi)
    and l the median distance of training features. The output layer is linear; its precision `I + sum r r^T` comes
    from one pass over the training data, in float64. The factor has the smallest NLL on held-back training data, where
    the network is overconfident; if there are data that it has not seen, pass them to `calibrate`. Factors are tried
    until larger and smaller ones are worse.

    Args:
        outputs: number of classes.
        width: D, the number of random features.
        epochs: passes over the data to fit the output layer.
        share: share of the data held back to choose the factor.
        seed: for the random features, the start and the split.
    """

    outputs: int
    width: int = 1024
    epochs: int = 30
    share: float = 0.1
    seed: int = 0
    shift: Tensor = field(init=False, repr=False)
    projection: Tensor = field(init=False, repr=False)
    phase: Tensor = field(init=False, repr=False)
    layer: LastLayer = field(init=False, repr=False)
    root: Tensor = field(init=False, repr=False)
    factor: float = field(default=0.0, init=False)

    name = "SNGP"
    family = "density"
    random = True
    calibrates = True
    chosen = ("factor",)
    seconds = 22.0

    def __post_init__(self) -> None:
        check_positive_integer("width", self.width)
        check_positive_integer("epochs", self.epochs)
        check_share(self.share)

    @property
    def classes(self) -> int:
        return self.outputs

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(features), generator=generator).to(features.device)
        held_back = order[: round(self.share * len(features))]
        kept = order[len(held_back) :]
        self.shift = features.double().mean(dim=0).float()
        std = (features - self.shift).double().square().mean(dim=0).sqrt().float()
        std = torch.where(std > 1e-6 * std.median(), std, torch.full_like(std, torch.inf))
        some = ((features - self.shift) / std)[kept[:1000]]
        length = torch.pdist(some.double()).median() if len(some) > 1 else torch.ones(())
        length = float(length) if float(length) > 0 else 1.0
        directions = orthogonal_features(features.shape[1], self.width, generator).to(features.device)
        self.projection = (directions / length / std.unsqueeze(1)).contiguous()
        self.phase = (2 * math.pi * torch.rand(self.width, generator=generator)).to(features.device)
        inside = torch.cat([self.random_features(part) for part in features[kept].split(4096)])
        recipe = LL_E.replace(heads=1, epochs=self.epochs, lr=1e-3, seed=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # the number of epochs is a setting, not a mistake
            head = fit_heads(inside, targets[kept], None, recipe, classes=self.outputs, progress=False)
        self.layer = LastLayer(head.weight[0].detach(), head.bias[0].detach())
        precision = torch.eye(self.width, dtype=torch.float64, device=features.device)
        for part in inside.split(4096):
            precision += part.double().T @ part.double()
        factor = cholesky(precision.unsqueeze(0))[0]
        eye = torch.eye(self.width, dtype=torch.float64, device=features.device)
        self.root = torch.linalg.solve_triangular(factor, eye, upper=False).T.contiguous()  # variance = |r^T root|^2
        self.factor = FACTOR
        if len(held_back):
            self.calibrate(features[held_back], targets[held_back])

    @torch.no_grad()
    def calibrate(self, features: Tensor, targets: Tensor) -> SNGP:
        """Choose the factor with the smallest NLL on these samples."""
        parts = [self._outputs(part) for part in features.split(4096)]
        logits, variance = (torch.cat(both) for both in zip(*parts, strict=True))

        def loss(factor: float) -> float:
            return float(F.cross_entropy(_mean_field(logits, variance, factor), targets))

        self.factor = smallest(loss, FACTOR, sections=12)
        return self

    def random_features(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B D"]:
        """Compute `sqrt(2/D) cos(O z / l + b)`."""
        return math.sqrt(2 / self.width) * torch.cos((features.float() - self.shift) @ self.projection + self.phase)

    def variance(self, features: Float[Tensor, "B d"]) -> Float[Tensor, " B"]:
        """Compute the posterior variance of the logits, the same for every class; 1 far from all data."""
        return self._outputs(features)[1]

    def _outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        random = self.random_features(features)
        return self.layer(random), (random.double() @ self.root).square().sum(dim=1).float()

    def _predict(self, features: Tensor) -> ClassPrediction:
        logits, variance = self._outputs(features)
        return ClassPrediction(_mean_field(logits, variance, self.factor).log_softmax(dim=-1).unsqueeze(0))


def orthogonal_features(inputs: int, width: int, generator: torch.Generator) -> Float[Tensor, "d D"]:
    """Draw columns that are orthogonal within blocks of d, with the lengths of independent normal columns."""
    blocks = []
    for _ in range(-(-width // inputs)):
        q = torch.linalg.qr(torch.randn(inputs, inputs, generator=generator)).Q
        lengths = torch.randn(inputs, inputs, generator=generator).norm(dim=0)
        blocks.append(q * lengths)
    return torch.cat(blocks, dim=1)[:, :width]


def _mean_field(logits: Tensor, variance: Tensor, factor: float) -> Tensor:
    return logits / (1 + factor * variance).sqrt().unsqueeze(1)
