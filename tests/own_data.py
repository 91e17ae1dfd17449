"""Somebody's own networks and files, as small as they can be: what commands, workers and services open."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

WORDS = ("red", "green", "blue", "one", "two", "three")


def rows_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def number_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def two_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def image_network() -> tuple[nn.Module, object]:
    torch.manual_seed(0)
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *pool, nn.Linear(4, 2)), small


def small(image) -> Tensor:
    return torch.from_numpy(np.asarray(image.resize((12, 12)), dtype=np.float32) / 255).permute(2, 0, 1)


class Bag(nn.Module):
    """A mean of embeddings, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS) + 1, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1)
        return self.last((self.embedding(input_ids) * mask).sum(dim=1) / mask.sum(dim=1))


def tokens(texts: list[str]) -> dict[str, Tensor]:
    ids = [[1 + WORDS.index(word) for word in text.split()] for text in texts]
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


def text_network() -> tuple[nn.Module, object]:
    torch.manual_seed(0)
    return Bag(), tokens


def not_a_network() -> int:
    return 3


def fails() -> nn.Module:
    raise RuntimeError("the weights are\nsomewhere else")


def numbers(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return rows, (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)


def write_rows(path: Path, count: int = 60, seed: int = 0, names: tuple[str, ...] = ("no", "so", "yes")) -> Path:
    """A table of four numbers, a key and a label."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows, labels = numbers(count, seed)
    columns = {name: rows[:, i] for i, name in enumerate("abcd")}
    table = pa.table({"id": [f"k{i}" for i in range(count)], **columns, "label": [names[i] for i in labels]})
    path.parent.mkdir(parents=True, exist_ok=True)
    (parquet.write_table if path.suffix == ".parquet" else csv.write_csv)(table, path)
    return path


def write_texts(path: Path, count: int = 40, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    lines = ["text,label"]
    for i in range(count):
        words = generator.choice(WORDS[:3] if i % 2 else WORDS[3:], size=generator.integers(3, 6))
        lines.append(f"{' '.join(words)},{'colour' if i % 2 else 'number'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def picture(seed: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (14, 14, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "png")
    return held.getvalue()


def write_images(folder: Path, count: int = 8) -> Path:
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (folder / name / f"{i}.png").write_bytes(picture(100 * number + i))
    return folder


def write_tar(path: Path, count: int = 6) -> Path:
    with tarfile.open(path, "w") as file:
        for i in range(count):
            for name, content in ((f"{i:03}.png", picture(i)), (f"{i:03}.cls", str(i % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    return path
