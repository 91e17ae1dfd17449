"""What the tests of kept features share: how a folder of them is read and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from children import BATCHES, ROWS
from repulse import Recipe
from repulse.backbone import split
from repulse.backbone.features import Features, compute_features

ALL = 1 + 2 * BATCHES
"""Passes of a whole build: the first batch to see what there is, then each batch and the samples drawn from it."""

QUICK = Recipe(epochs=2, heads=4, lr=1e-2, repulsion_samples=ROWS * BATCHES)


def same(a: Features, b: Features) -> bool:
    pairs = [(a.train, b.train), (a.targets, b.targets)]
    if a.repulsion is not None or b.repulsion is not None:
        pairs.append((a.repulsion, b.repulsion))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


def journal(folder: Path, part: str = "train") -> list[dict[str, Any]]:
    """The lines of a journal, up to one that was cut short."""
    path = folder / f"{part}.journal"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def batches_in(folder: Path) -> int:
    """How many batches the journals of a folder know."""
    return sum("rows" in line for part in ("train", "repulsion") for line in journal(folder, part))


def is_complete(folder: Path, part: str = "train") -> bool:
    return bool(journal(folder, part)) and "complete" in journal(folder, part)[-1]


def features_of(model: nn.Module, data: Iterable[Any], repulsion: Any = None, **settings: Any) -> Features:
    first = next(iter(data))
    inputs = {k: v for k, v in first.items() if k != "labels"} if isinstance(first, dict) else first[0]
    settings = {"samples": ROWS * BATCHES, **settings}
    return compute_features(split(model, inputs), data, repulsion, progress=False, **settings)


def mapped_from(values: Tensor) -> str:
    """The file that the numbers of a tensor are mapped from, if any."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= values.data_ptr() < end:
            return path if path.startswith("/") else ""
    return ""


def drop_lines(path: Path, count: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) - count]))
