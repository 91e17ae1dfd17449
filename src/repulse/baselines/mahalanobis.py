"""Mahalanobis distance to the nearest class mean under one shared covariance, plain and relative."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from repulse.baselines._gaussians import cholesky, class_means
from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.prediction import Prediction


@register
@dataclass
class Mahalanobis(Detector):
    """Score by `min_c (z - m_c)^T S^-1 (z - m_c)` (Lee et al., 2018).

    S is the covariance of features about their class means; distances are Euclidean after multiplication by the inverse
    of its Cholesky factor.
    """

    means: Tensor = field(init=False, repr=False)
    whiten: Tensor = field(init=False, repr=False)

    name = "Mahalanobis"
    family = "distance"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        means, count = class_means(features, targets, self.classes)
        self.whiten = _whitening(features.double() - means[targets])
        self.means = means[count > 0] @ self.whiten

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        return _nearest(features.double() @ self.whiten, self.means)


@register
@dataclass
class RelativeMahalanobis(Mahalanobis):
    """Score by the Mahalanobis distance minus that to one Gaussian of all training features (Ren et al., 2021)."""

    centre: Tensor = field(init=False, repr=False)
    background: Tensor = field(init=False, repr=False)

    name = "relative Mahalanobis"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        super()._fit(features, targets)
        self.centre = features.double().mean(dim=0)
        self.background = _whitening(features.double() - self.centre)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        whole = ((features.double() - self.centre) @ self.background).square().sum(dim=1)
        return super()._score(features, prediction) - whole


def _whitening(centred: Tensor) -> Tensor:
    """Compute `L^-T` of the covariance `L L^T`, so that `z L^-T` has unit covariance."""
    factor = cholesky((centred.T @ centred / len(centred)).unsqueeze(0))[0]
    eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye, upper=False).T


def _nearest(points: Tensor, means: Tensor) -> Tensor:
    return torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1).square()
