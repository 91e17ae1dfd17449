"""Token ids in any form: what sources of texts have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from repulse.errors import RepulsionError, expected
from repulse.repulsion.source import Source, tensors_of

IDS, MASK = "input_ids", "attention_mask"
"""Names that Hugging Face gives to token ids, and to the mask that is 0 at padding."""


class TextSource(Source):
    """Makes texts from texts: token ids `(B, T)`, alone or with a mask in a mapping or a tuple.

    Padding and special tokens stay where they are, so the mask fits as before. The first and the last token of a text,
    and others of the same kind within it (as between two sentences), are taken for special ones. Without a mask, two or
    more equal tokens at the end of a text are taken for padding.
    """

    takes_mappings = True

    def sample(self, batch: Any, generator: torch.Generator) -> Any:
        key = ids_in(batch)
        if key is None:
            got = ", ".join(f"{value.dtype} of shape {tuple(value.shape)}" for value in tensors_of(batch).values())
            wanted = f"token ids of shape (texts, tokens) for {type(self).__name__}"
            raise RepulsionError(expected("inputs", wanted, got))
        ids = tensors_of(batch)[key]
        samples = self.sample_ids(ids, _content(ids, _mask_in(batch, key)), generator)
        if isinstance(batch, Tensor):
            return samples
        if isinstance(batch, Mapping):
            return {**batch, key: samples}
        return tuple(samples if i == key else value for i, value in enumerate(batch))

    @abstractmethod
    def sample_ids(
        self, ids: Int[Tensor, "B T"], content: Bool[Tensor, "B T"], generator: torch.Generator
    ) -> Int[Tensor, "B T"]:
        """Draw token ids, equal to those given wherever there is no content."""


def ids_in(inputs: Any) -> Any:
    """Find the name or the position of the token ids among some inputs; None if there are none."""
    tensors = tensors_of(inputs)
    if isinstance(inputs, Mapping) and IDS in tensors:
        return IDS if _are_ids(tensors[IDS]) else None
    found = [key for key, value in tensors.items() if _are_ids(value) and int(value.max()) > 1]
    return found[0] if len(found) == 1 and not any(v.is_floating_point() for v in tensors.values()) else None


def _are_ids(value: Tensor) -> bool:
    return value.ndim == 2 and value.dtype in (torch.int64, torch.int32) and value.numel() > 0


def _mask_in(inputs: Any, key: Any) -> Tensor | None:
    """Find the mask that is 0 at padding: by its name, or as the second of a tuple."""
    tensors = tensors_of(inputs)
    mask = tensors.get(MASK) if isinstance(inputs, Mapping) else tensors.get(1) if key == 0 else None
    return mask if mask is not None and mask.shape == tensors[key].shape else None


def _content(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Tell which tokens are neither padding nor special."""
    if mask is None:
        tail = (ids == ids[:, -1:]).flip(1).int().cumprod(dim=1).flip(1)
        mask = 1 - tail * (tail.sum(dim=1, keepdim=True) > 1)
    attended = mask > 0
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    first = position.masked_fill(~attended, ids.shape[1] - 1).amin(dim=1, keepdim=True)
    last = position.masked_fill(~attended, 0).amax(dim=1, keepdim=True)
    special = (ids == ids.gather(1, first)) | (ids == ids.gather(1, last))
    return attended & ~special


def content_first(content: Tensor) -> Tensor:
    """Return positions of the content of each text, in order, and then the other positions."""
    return (~content).int().argsort(dim=1, stable=True)
