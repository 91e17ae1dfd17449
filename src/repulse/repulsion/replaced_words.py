"""Texts in which some words are replaced by others."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.errors import check_number
from repulse.repulsion.texts import TextSource


class ReplacedWords(TextSource):
    """Replace some tokens of each text by tokens of other texts: for predictions at every token.

    Heads are made to disagree at the tokens that were replaced; around them, tokens keep their targets.

    Args:
        share: share of the tokens of a text that are replaced.
    """

    takes_copies = True

    def __init__(self, share: float = 0.3) -> None:
        check_number("share", share, positive=True)
        self.share = share

    def sample_ids(self, ids: Tensor, content: Tensor, generator: torch.Generator) -> Tensor:
        known = ids[content]
        if not len(known):
            return ids
        chosen = torch.randint(len(known), ids.shape, generator=generator, device="cpu").to(ids.device)
        replaced = torch.rand(ids.shape, generator=generator, device="cpu").to(ids.device) < self.share
        return torch.where(replaced & content, known[chosen], ids)

    def __repr__(self) -> str:
        return f"ReplacedWords(share={self.share:g})"
