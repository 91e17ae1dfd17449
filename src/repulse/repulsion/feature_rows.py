"""Rows of training features: what sources in feature space have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import RecipeError, check_number, expected

MOST_ROWS = 20_000
"""Maximum number of training samples that decide the mean and the shape of what is drawn."""

MOST_NUMBERS = 2**26
"""Maximum number of their features (512 MB in double precision); of wide features fewer samples are taken."""


def some_rows(features: Tensor, generator: torch.Generator) -> Tensor:
    """Return some samples in double precision: all of them, or random ones if there are many."""
    most = min(MOST_ROWS, max(MOST_NUMBERS // features.shape[1], 2))
    if len(features) <= most:
        return features.double()
    index = torch.randint(len(features), (most,), generator=generator, device="cpu").sort().values
    return features[index.to(features.device)].double()


def take(features: Tensor, index: Tensor) -> Tensor:
    """Return samples by their index, of the type of what is drawn."""
    return features[index.to(features.device)].to(sample_dtype(features))


def sample_dtype(features: Tensor) -> torch.dtype:
    """Return the type of samples: that of the features, but at least single precision."""
    return torch.promote_types(features.dtype, torch.float32)


def check_range(smallest: float, largest: float) -> tuple[float, float]:
    """Refuse a range of factors that is empty or not positive."""
    check_number("smallest", smallest, positive=True)
    check_number("largest", largest, positive=True)
    if smallest > largest:
        raise RecipeError(expected("smallest", "at most `largest`", f"smallest={smallest}, largest={largest}"))
    return smallest, largest
