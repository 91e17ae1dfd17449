"""Texts with their tokens in random order."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.texts import TextSource, content_first


class WordShuffle(TextSource):
    """Shuffle the tokens of each text: the same words, and nobody's sentence."""

    def sample_ids(self, ids: Tensor, content: Tensor, generator: torch.Generator) -> Tensor:
        keys = torch.rand(ids.shape, generator=generator, device="cpu").to(ids.device)
        shuffled = keys.masked_fill(~content, 2.0).argsort(dim=1, stable=True)
        return ids.scatter(1, content_first(content), ids.gather(1, shuffled))
