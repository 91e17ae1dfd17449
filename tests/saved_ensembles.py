"""What the tests of saved ensembles share: how to make, read, change and compare them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import repulse
from children import batches, network
from repulse import CheckpointError, Ensemble, Recipe, retrofit
from repulse.repulsion import UniformBox

QUICK = Recipe(epochs=2, heads=3, lr=1e-2)


def fitted(model: nn.Module, **settings: Any) -> Ensemble:
    settings = {"recipe": QUICK, "repulsion": UniformBox(-3, 3), **settings}
    return retrofit(model, settings.pop("data", None) or batches(), progress=False, **settings)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def heads_file(folder: Path) -> Path:
    (path,) = folder.glob("heads-*.safetensors")
    return path


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ensemble.json").read_text())


def write(folder: Path, content: dict[str, Any], *, sealed: bool) -> None:
    """Write the JSON of a folder, with the digest that belongs to it if `sealed`."""

    def text(content: dict[str, Any]) -> str:
        return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    if sealed:
        content = {key: value for key, value in content.items() if key != "digest"}
        content = {**content, "digest": hashlib.sha256(text(content).encode()).hexdigest()}
    (folder / "ensemble.json").write_text(text(content), encoding="utf-8")


def tensors_of(prediction: Any) -> list[Tensor]:
    return [value for value in vars(prediction).values() if isinstance(value, Tensor)]


def check_same(a: Ensemble, b: Ensemble, x: Tensor) -> None:
    assert (a.recipe, a.history, a.class_names, a.layers, a.repulsion) == (
        b.recipe,
        b.history,
        b.class_names,
        b.layers,
        b.repulsion,
    )
    assert (a.heads.task, a.backbone.ending, a.backbone.taps) == (b.heads.task, b.backbone.ending, b.backbone.taps)
    assert repr(a) == repr(b)
    first, second = tensors_of(a.predict(x)), tensors_of(b.predict(x))
    assert first
    assert all(p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert torch.equal(a(x), b(x))
    assert torch.equal(a.score(x), b.score(x))


def refused(folder: Path, model: Any = None, what: str = "it") -> str:
    """The sentence with which a folder is refused."""
    try:
        repulse.load(folder, network() if model is None else model)
    except CheckpointError as reason:
        words = str(reason)
    else:
        pytest.fail(f"{what} was not refused")
    assert words.startswith("Expected ")
    assert words.endswith(".")
    assert "\n" not in words
    return words
