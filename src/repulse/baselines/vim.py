"""ViM: the residual outside the principal subspace of the features, as one more logit (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.errors import RecipeError, expected
from repulse.prediction import Prediction


@register
@dataclass
class ViM(Detector):
    """Score by `a |P z'| - log sum_k exp f_k`, where P projects onto the complement of the principal subspace.

    Features are relative to the point where all logits vanish, `z' = z + W^+ b`; `a` makes the mean residual of the
    training data equal to its mean maximum logit.

    Args:
        layer: the last layer of the network.
        dimensions: of the principal subspace; None for 1000 of 2048 or more, 512 of 768 or more, else half.
    """

    dimensions: int | None = None
    origin: Tensor = field(init=False, repr=False)
    residual: Tensor = field(init=False, repr=False)
    scale: Tensor = field(init=False, repr=False)

    name = "ViM"
    family = "distance"
    seconds = 4.0

    def __post_init__(self) -> None:
        if self.dimensions is not None and not 0 < self.dimensions < self.columns:
            raise RecipeError(expected("dimensions", f"from 1 to {self.columns - 1}", self.dimensions))

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        d = features.shape[1]
        kept = self.dimensions or (1000 if d >= 2048 else 512 if d >= 768 else d // 2)
        weight, bias = self.layer.weight.double(), self.layer.bias.double()
        self.origin = -torch.linalg.pinv(weight) @ bias
        centred = features.double() - self.origin
        vectors = torch.linalg.eigh(centred.T @ centred / len(centred)).eigenvectors  # smallest first
        self.residual = vectors[:, : max(d - kept, 1)].contiguous()
        norms = (centred @ self.residual).norm(dim=1).mean()
        self.scale = self.layer(features).amax(dim=1).double().mean() / norms.clamp_min(1e-12)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        residual = ((features.double() - self.origin) @ self.residual).norm(dim=1)
        return self.scale * residual - self.layer(features).double().logsumexp(dim=-1)
