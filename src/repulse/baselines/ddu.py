"""DDU: the density of features under one Gaussian a class (Mukhoti et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.baselines.contract import Detector, class_means
from repulse.errors import DataError, expected
from repulse.prediction import Prediction

LARGEST = 1_000_000_000
"""Entries of all covariances together that are still computed: 8 GB."""


@dataclass
class DDU(Detector):
    """`-log q(z)`, `q = sum_c pi_c N(m_c, S_c)`; all of it in float64 and in log space.

    A class with at most 2 d samples has its covariance drawn towards that of all features about their class means, the
    more the fewer they are; one with a single sample has just that one. Classes without samples have no part in q.
    """

    log_share: Tensor = field(init=False, repr=False)
    means: Tensor = field(init=False, repr=False)
    factors: Tensor = field(init=False, repr=False)

    name: ClassVar[str] = "DDU"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        d = features.shape[1]
        means, count = class_means(features, targets, self.classes)
        seen = (count > 0).nonzero().flatten()
        if len(seen) * d * d > LARGEST:
            wanted = f"at most {LARGEST:,} entries; `Mahalanobis` shares one covariance"
            raise DataError(expected(f"{len(seen)} covariances of {d} dimensions", wanted, f"{len(seen) * d * d:,}"))
        centred = features.double() - means[targets]
        shared = centred.T @ centred / len(features)
        covariances = torch.empty(len(seen), d, d, dtype=torch.float64, device=features.device)
        for at, label in enumerate(seen.tolist()):
            own, n = centred[targets == label], int(count[label])
            weight = min(1.0, (n - 1) / (2 * d))
            covariances[at] = weight * (own.T @ own) / max(n - 1, 1) + (1 - weight) * shared
        self.log_share = (count[seen].double() / len(features)).log()
        self.means, self.factors = means[seen], cholesky(covariances)

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        rows = max(1, 20_000_000 // self.means.numel())
        parts = [log_normal(part.double(), self.means, self.factors) for part in features.split(rows)]
        return -(torch.cat(parts) + self.log_share).logsumexp(dim=1)


def log_normal(
    x: Float[Tensor, "B d"], means: Float[Tensor, "K d"], factors: Float[Tensor, "K d d"]
) -> Float[Tensor, "B K"]:
    """Log density of every sample under every Gaussian with covariance `L L^T`."""
    centred = (x - means.unsqueeze(1)).transpose(1, 2)  # (K, d, B)
    distance = torch.linalg.solve_triangular(factors, centred, upper=False).square().sum(dim=1)
    log_determinant = 2 * factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    return -0.5 * (distance.T + log_determinant + x.shape[1] * math.log(2 * math.pi))


def cholesky(covariances: Float[Tensor, "K d d"]) -> Float[Tensor, "K d d"]:
    """Cholesky factors, each with the least jitter (1e-10 of the mean variance, times ten each try) that works."""
    d = covariances.shape[-1]
    typical = covariances.diagonal(dim1=1, dim2=2).mean(dim=1)
    typical = torch.where(typical > 0, typical, torch.ones_like(typical))
    factors, bad = torch.linalg.cholesky_ex(covariances)
    jitter = 1e-10
    while bool((bad > 0).any()):
        if jitter > 1:
            raise DataError(expected("features", "with finite covariances", "some that no jitter makes positive"))
        eye = torch.eye(d, dtype=covariances.dtype, device=covariances.device)
        left = bad > 0
        more = covariances[left] + jitter * typical[left].view(-1, 1, 1) * eye
        factors[left], bad[left] = torch.linalg.cholesky_ex(more)
        jitter *= 10
    return factors
