"""What random calls are given, right, odd and wrong; and what every prediction promises."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from repulse_lab.campaign.finding import inputs

X, Y = inputs(), torch.arange(60) % 3
ODD = [None, 3, "x", [], {}, [1.0, 2.0], torch.tensor(1.0), float("nan")]
FLOATS = [
    *(X, X.double(), X.half(), X.bfloat16(), X[:1], X[:0], X[:, 0], X[:, :0], X[:, :1], X.unsqueeze(0), X.T),
    *(1e20 * X, 1e-30 * X, 3e38 * X.clamp(-1, 1), 0 * X, X.long(), X > 0, X.to(torch.complex64), X.to_sparse()),
    *(X / 0, torch.where(X > 2, torch.nan, X), torch.where(X > 2, 1e20, X), X.to("meta"), X.requires_grad_(False)),
]
TARGETS = [
    *(Y, Y, Y, Y.int(), Y.to(torch.uint8), Y.to(torch.uint16), Y.float(), Y - 1, Y + 10**6 * (Y > 1), Y[:9], Y > 0),
    *(0 * Y, Y.unsqueeze(1), nn.functional.one_hot(Y), X[:, 0], X[:, 0] / 0, X[:, :1], Y.to_sparse()),
]


def some(draw: random.Random, usual: list[Any], odd: float = 0.1) -> Any:
    """Draw one of the usual things, or now and then an odd one."""
    return draw.choice(ODD) if draw.random() < odd else draw.choice(usual)


def fine(prediction: Any, count: int) -> None:
    """Check what every prediction promises."""
    assert len(prediction) == count
    for value in (prediction.total, prediction.aleatoric, prediction.epistemic):
        assert bool(value.isfinite().all()), "not finite"
    if hasattr(prediction, "probs"):
        sums = prediction.probs.sum(dim=-1)
        assert bool(((sums - 1).abs() < 1e-3).all()), "probabilities do not add up"
        assert bool((prediction.epistemic >= -1e-5).all()), "negative"
