"""Differences of two training samples in feature space."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import RepulsionError, expected
from repulse.repulsion.feature_rows import check_range, sample_dtype, some_rows, take
from repulse.repulsion.source import FeatureSource


class Difference(FeatureSource):
    """Draw differences of two training samples, enlarged, around their mean.

        phi = mu + c (phi_a - phi_b) / sqrt 2,   c uniform on [`smallest`, `largest`]

    Args:
        smallest: smallest factor.
        largest: largest factor.
    """

    def __init__(self, smallest: float = 1.5, largest: float = 6.0) -> None:
        self.smallest, self.largest = check_range(smallest, largest)

    def sample_features(
        self,
        features: Float[Tensor, "N d"],
        count: int,
        generator: torch.Generator,
        targets: Tensor | None = None,
    ) -> Float[Tensor, "M d"]:
        if len(features) < 2:
            raise RepulsionError(expected("features", "of at least two samples for Difference", len(features)))
        mean = some_rows(features, generator).mean(dim=0)
        one = torch.randint(len(features), (count,), generator=generator, device="cpu")
        two = (one + torch.randint(1, len(features), (count,), generator=generator, device="cpu")) % len(features)
        apart = take(features, one) - take(features, two)
        factor = self.smallest + (self.largest - self.smallest) * torch.rand(
            count, 1, generator=generator, device="cpu"
        )
        return (mean + factor.to(mean) * apart / math.sqrt(2)).to(sample_dtype(features))

    def __repr__(self) -> str:
        return f"Difference(factor {self.smallest:g} to {self.largest:g})"
