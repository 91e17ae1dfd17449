"""Texts: intents of CLINC150 and emotions of GoEmotions, each with a linear layer on the sentence encoder MiniLM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse.errors import DataError
from repulse_lab import data
from repulse_lab.defaults.last_layer import train_last_layer
from repulse_lab.defaults.problem import Problem, Samples, Trained, trimmed
from repulse_lab.defaults.training import Schedule
from repulse_lab.networks.sentences import SentenceClassifier, minilm

LONGEST = 48
"""Tokens of a text, at most."""
UNKNOWN = ("gratitude", "love", "amusement", "curiosity")
"""Emotions that the network does not know: its near set."""


@cache
def _encoder() -> tuple[Any, nn.Module]:
    return minilm()


def tokens(texts: Sequence[str], targets: Tensor | None = None) -> Samples:
    """Turn texts into token ids, sorted by length so that batches have little padding."""
    encoded = _encoder()[0](
        list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt", return_token_type_ids=False
    )
    order = encoded["attention_mask"].sum(dim=1).argsort(stable=True)
    inputs = {name: encoded[name][order] for name in ("input_ids", "attention_mask")}
    return Samples(inputs, None if targets is None else targets[order], trimmed)


def _drawn(texts: list[str], targets: Tensor, count: int, seed: int) -> Samples:
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))[:count]
    return tokens([texts[i] for i in chosen.tolist()], targets[chosen])


def _classifier(train: Samples, classes: int, steps: int, seed: int, keep: Path) -> nn.Module:
    """Return MiniLM with a linear layer that is trained on its sentence embeddings."""
    network = SentenceClassifier(_encoder()[1], 384, classes).eval()
    train_last_layer(network, "classifier", train, classes, Schedule(steps=steps, lr=1e-2), seed, keep)
    return network


def _texts(name: str, split_name: str, root: Path) -> tuple[list[str], Tensor]:
    contents = data.load(name, split_name, root)
    assert not isinstance(contents.inputs, Tensor)
    return contents.inputs, torch.as_tensor(contents.targets if contents.targets is not None else [])


def clinc150(seed: int, root: Path, keep: Path) -> Trained:
    """Put together CLINC150 with 4,000 training queries; out-of-scope queries are near, Wikipedia is far."""
    train, validation, test = (
        _drawn(*_texts("clinc150", part, root), count, seed)
        for part, count in (("train", 4000), ("val", 1500), ("test", 2500))
    )
    wikipedia = _texts("clinc150", "wikipedia", root)[0]
    return Trained(
        _classifier(train, 150, 2000, seed, keep),
        *(train, validation, test),
        {"out of scope": tokens(_texts("clinc150", "oos", root)[0])},
        {"Wikipedia": tokens(wikipedia[:1000])},
        slow=True,
    )


def goemotions(seed: int, root: Path, keep: Path) -> Trained:
    """Put together the comments with exactly one emotion, 24 of 28 known; intents and Wikipedia are far."""
    folder = root / "files" / "goemotions"
    names = (folder / "labels.txt").read_text(encoding="utf-8").split()
    unknown = [names.index(name) for name in UNKNOWN]
    known = {number: i for i, number in enumerate(n for n in range(len(names)) if n not in unknown)}
    parts = {part: _comments(folder / f"{part}.tsv") for part in ("train", "dev", "test")}

    def drawn(part: str, count: int) -> Samples:
        rows = [(text, known[label]) for text, label in parts[part] if label in known]
        return _drawn([text for text, _ in rows], torch.tensor([label for _, label in rows]), count, seed)

    train, validation, test = drawn("train", 6000), drawn("dev", 1500), drawn("test", 2500)
    strangers = [text for text, label in parts["test"] if label in unknown]
    return Trained(
        _classifier(train, len(known), 1000, seed, keep),
        *(train, validation, test),
        {"unknown emotions": tokens(strangers)},
        {
            "Wikipedia": tokens(_texts("clinc150", "wikipedia", root)[0][:1000]),
            "intents": tokens(_texts("clinc150", "test", root)[0][::4]),
        },
        slow=True,
    )


def _comments(path: Path) -> list[tuple[str, int]]:
    """Read the comments with exactly one label, and that label."""
    if not path.exists():
        raise DataError(f"Expected the comments of GoEmotions at {path}, but there is no such file.")
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line)
    return [(text, int(labels)) for text, labels, _ in rows if labels.isdigit()]


PROBLEMS = (
    Problem("clinc150", "CLINC150, 150 intents, MiniLM", "clinc150", "choosing", clinc150),
    Problem(
        "goemotions", "GoEmotions, 24 emotions known and four unknown, MiniLM", "goemotions", "reporting", goemotions
    ),
)
"""All problems on texts."""
