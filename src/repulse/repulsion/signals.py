"""What sources of signals have in common."""

from __future__ import annotations

from torch import Tensor

from repulse.errors import RepulsionError, expected


def check_signals(name: str, batch: Tensor, shortest: int) -> None:
    """Refuse what is no batch of signals of some length."""
    if batch.ndim not in (2, 3) or not batch.is_floating_point() or batch.shape[-1] < shortest:
        wanted = f"float signals (batch, channels, time) or (batch, time) of at least {shortest} steps for {name}"
        raise RepulsionError(expected("inputs", wanted, f"{batch.dtype} of shape {tuple(batch.shape)}"))
