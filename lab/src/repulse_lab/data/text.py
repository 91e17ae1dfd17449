"""CLINC150: queries to an assistant with their intents, queries out of scope, and sentences of Wikipedia."""

from __future__ import annotations

import json

import torch

from repulse_lab.data.dataset import Contents
from repulse_lab.data.registry import Found, Layouts


def clinc150_layouts(split: str) -> Layouts:
    """Return the one file of all queries, or that of the sentences next to it."""
    name = "all_wiki_sents.txt" if split == "wikipedia" else "data_full.json"
    return [[f"{folder}/{name}"] for folder in ("oos-eval/data", "files/clinc150", "clinc150")]


def read_clinc150(found: Found) -> Contents:
    """Read queries with their intents; those out of scope, and sentences of Wikipedia, have none."""
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
