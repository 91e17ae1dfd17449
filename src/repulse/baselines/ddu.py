"""DDU: the density of features under one Gaussian per class (Mukhoti et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from repulse.baselines._gaussians import cholesky, class_means, log_normal
from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.errors import DataError, expected
from repulse.prediction import Prediction

LARGEST = 1_000_000_000
"""Maximum number of entries of all covariances together: 8 GB."""


@register
@dataclass
class DDU(Detector):
    """Score by `-log q(z)`, `q = sum_c pi_c N(m_c, S_c)`, in float64 and in log space.

    The covariance of a class with n <= 2 d samples is shrunk towards the one shared by all classes, with the weight
    `(n - 1) / (2 d)` of its own. Classes without samples have no part in q.
    """

    log_share: Tensor = field(init=False, repr=False)
    means: Tensor = field(init=False, repr=False)
    factors: Tensor = field(init=False, repr=False)

    name = "DDU"
    family = "density"
    seconds = 4.0

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
