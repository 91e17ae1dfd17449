"""Mixup: blends of two training inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.source import Source, check_company, check_floats, uniform


class Mixup(Source):
    """Blend two inputs of the batch with weights between 0.3 and 0.7, so that neither dominates.

    Kept for comparison and in no default: blends lie between the classes, where doubt should be aleatoric. On three of
    three tables heads that repel there find out-of-distribution rows worse, by 5 to 20 points of AUROC.
    """

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        check_floats("Mixup", batch)
        check_company("Mixup", len(batch))
        shift = int(torch.randint(1, len(batch), (), generator=generator, device="cpu"))
        partner = batch.roll(shift, dims=0)  # never with itself
        weight = 0.3 + 0.4 * uniform((len(batch), *[1] * (batch.ndim - 1)), generator, batch)
        return weight * batch + (1 - weight) * partner
