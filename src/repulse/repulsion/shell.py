"""A shell around the training data in feature space."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.repulsion.feature_rows import check_range, sample_dtype, some_rows
from repulse.repulsion.source import FeatureSource

MOST_AXES = 1024
"""Maximum number of directions of a shell: bounds the cost where features are wide."""


class Shell(FeatureSource):
    """Draw from a shell around the training data: Gaussian, with its correlations, and with a larger radius.

        phi = mu + sigma * V diag(sqrt w) (rho g),   g ~ N(0, I),   log rho uniform on [log `smallest`, log `largest`]

    where mu and sigma are mean and standard deviation of each feature and V diag(w) V^T are its correlations. At most
    20,000 samples and 1,024 directions are used, random ones if there are more.

    Args:
        smallest: smallest radius, relative to that of the data.
        largest: largest radius.
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
        rows = some_rows(features, generator)
        mean, spread = rows.mean(dim=0), rows.std(dim=0, correction=0)
        factor = correlation_factor((rows - mean) / torch.where(spread > 0, spread, 1.0), generator)
        radius = _log_uniform(self.smallest, self.largest, count, generator)
        draws = radius * torch.randn(count, len(factor), generator=generator, device="cpu")
        return (mean + spread * (draws.to(factor) @ factor)).to(sample_dtype(features))

    def __repr__(self) -> str:
        return f"Shell(radius {self.smallest:g} to {self.largest:g})"


def correlation_factor(scaled: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "r d"]:
    """Return L with `L^T L = Z^T Z / n` for standardised rows Z, with r of at most 1,024.

    Exact where there are no more rows or columns than that; otherwise a random sketch, right on average.
    """
    count, width = scaled.shape
    scaled = scaled.float() / math.sqrt(count)
    if count <= MOST_AXES:
        return scaled
    if width <= MOST_AXES:
        variances, axes = torch.linalg.eigh((scaled.T @ scaled).double())
        return (variances.clamp_min(0).sqrt().unsqueeze(1) * axes.T).float()
    sketch = torch.randn(MOST_AXES, count, generator=generator, device="cpu").to(scaled)
    return sketch @ scaled / math.sqrt(MOST_AXES)


def _log_uniform(low: float, high: float, count: int, generator: torch.Generator) -> Tensor:
    draws = torch.rand(count, 1, generator=generator, device="cpu")
    return (math.log(low) + (math.log(high) - math.log(low)) * draws).exp()
