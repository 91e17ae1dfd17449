"""The frequencies of a signal without its events."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.signals import check_signals
from repulse.repulsion.source import Source


class SignalPhaseScramble(Source):
    """Keep the amplitude spectrum and the mean of each signal, and replace its phases by random ones.

    All channels of a signal `(B, C, T)` are turned by the same phases, which keeps their cross-spectra.
    """

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_signals("SignalPhaseScramble", batch, 4)
        signals = batch.to(torch.promote_types(batch.dtype, torch.float32))
        shape = (len(batch), *[1] * (batch.ndim - 2), batch.shape[-1])
        # The phases of the spectrum of real white noise have just the symmetry that keeps the result real.
        turn = torch.fft.rfft(torch.randn(shape, generator=generator, device="cpu").to(signals))
        turn = turn / turn.abs().clamp_min(1e-12)
        turn[..., 0] = 1.0  # the mean stays
        return torch.fft.irfft(torch.fft.rfft(signals) * turn, n=batch.shape[-1]).to(batch.dtype)
