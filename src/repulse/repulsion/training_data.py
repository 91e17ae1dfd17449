"""The training inputs themselves: what the paper warns of, kept for comparison."""

from __future__ import annotations

from typing import Any

import torch

from repulse.repulsion.source import Source


class TrainingData(Source):
    """Return the training inputs themselves: what the paper warns of, kept for comparison."""

    takes_mappings = True

    def sample(self, batch: Any, generator: torch.Generator) -> Any:
        return batch
