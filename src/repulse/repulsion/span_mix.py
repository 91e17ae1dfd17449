"""Texts of which a span comes from another text."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse.repulsion.source import check_company, other_rows
from repulse.repulsion.texts import TextSource, content_first


class SpanMix(TextSource):
    """Replace a span of each text, 30 to 70 % of it, by a span of another text of the batch."""

    def sample_ids(self, ids: Tensor, content: Tensor, generator: torch.Generator) -> Tensor:
        count, length = ids.shape
        check_company("SpanMix", count)
        first = content_first(content)
        tokens, sizes = ids.gather(1, first), content.sum(dim=1, keepdim=True)
        partner = other_rows(count, generator).to(ids.device)
        share, start, offset = torch.rand(3, count, 1, generator=generator, device="cpu").to(ids.device)
        span = ((0.3 + 0.4 * share) * sizes).ceil().long()
        start = (start * (sizes - span + 1)).long()
        rank = torch.arange(length, device=ids.device).expand(count, length)
        theirs = sizes[partner]
        source = (rank - start + (offset * theirs).long()) % theirs.clamp_min(1)
        mixed = tokens[partner].gather(1, source)
        replaced = (rank >= start) & (rank < start + span) & (theirs > 0)
        return ids.scatter(1, first, torch.where(replaced, mixed, tokens))
