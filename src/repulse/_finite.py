"""Whether all numbers are finite, found out quickly."""

from __future__ import annotations

import torch
from torch import Tensor


def all_finite(value: Tensor) -> bool:
    """Check whether all numbers are finite: by their sum, which takes a tenth of the time, unless that overflows."""
    return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())
