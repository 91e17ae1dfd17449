"""Signals with their segments in random order."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import RecipeError, check_positive_integer, expected
from repulse.repulsion.signals import check_signals
from repulse.repulsion.source import Source, permutations


class SegmentShuffle(Source):
    """Cut each signal into segments of equal length in time and permute them; never the identity.

    Signals are `(B, C, T)`, of which all channels are cut alike, or `(B, T)`. Segments differ by one step in length
    where their number does not divide T.

    Args:
        segments: number of segments, at least 2.
    """

    def __init__(self, segments: int = 8) -> None:
        check_positive_integer("segments", segments)
        if segments < 2:
            raise RecipeError(expected("segments", "at least 2", segments))
        self.segments = segments

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_signals("SegmentShuffle", batch, self.segments)
        steps = batch.shape[-1]
        segment = torch.arange(steps, device="cpu") * self.segments // steps
        place = permutations(len(batch), self.segments, generator)[:, segment]  # where the segment of a step goes
        order = place.argsort(dim=1, stable=True).to(batch.device)
        order = order if batch.ndim == 2 else order.unsqueeze(1).expand(batch.shape)
        return batch.gather(-1, order)

    def __repr__(self) -> str:
        return f"SegmentShuffle(segments={self.segments})"
