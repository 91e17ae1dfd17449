"""CIFAR-10 and CIFAR-100 in both of their layouts, what people said of the images, and corrupted copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, expected
from repulse_lab.data.corruptions import KINDS, SEVERITIES
from repulse_lab.data.dataset import Contents
from repulse_lab.data.pickles import read_pickle
from repulse_lab.data.registry import Found, Layouts

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32


def cifar10_layouts(split: str) -> Layouts:
    """Return where the binary files lie, or those of the python version."""
    names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    return [
        [f"cifar-10-batches-bin/{name}.bin" for name in names],
        [f"cifar-10-batches-py/{name}" for name in names],
    ]


def read_cifar10(found: Found) -> Contents:
    """Read all batches of a split, one after the other."""
    parts = [_binary(path, 1) if path.suffix == ".bin" else _python(path, "labels") for path in found.paths]
    return Contents(torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))


def cifar100_layouts(split: str) -> Layouts:
    """Return where the binary file lies, or that of the python version; each with the names of the classes."""
    return [
        [f"cifar-100-binary/{split}.bin", "cifar-100-binary/fine_label_names.txt"],
        [f"cifar-100-python/{split}", "cifar-100-python/meta"],
    ]


def read_cifar100(found: Found) -> Contents:
    """Read images with their fine labels."""
    path, names = found.paths
    if path.suffix == ".bin":
        return Contents(*_binary(path, 2), tuple(names.read_text().split()))
    return Contents(*_python(path, "fine_labels"), tuple(read_pickle(names)["fine_label_names"]))


def cifar10h_layouts(split: str) -> Layouts:
    """Return where the counts lie (the publisher's repository or a download), and the images."""
    counts = ("cifar-10h/data/cifar10h-counts.npy", "files/cifar10h-counts.npy")
    return [[count, *images] for images in cifar10_layouts(split) for count in counts]


def read_cifar10h(found: Found) -> Contents:
    """Read the test images of CIFAR-10 with the share of people who chose each class."""
    images = read_cifar10(Found(found.root, found.paths[1:], found.split))
    counts = torch.from_numpy(np.load(found.paths[0], allow_pickle=False)).float()
    if counts.shape != (len(images.inputs), 10) or bool((counts.sum(dim=1) <= 0).any()):
        got = f"shape {tuple(counts.shape)}, or an image without any"
        raise DataError(expected("the human counts", f"ten for each of {len(images.inputs)} images", got))
    return Contents(images.inputs, images.targets, soft=counts / counts.sum(dim=1, keepdim=True))


def corrupted_splits() -> tuple[str, ...]:
    """Return `gaussian_noise-1` to `saturate-5`."""
    return tuple(f"{name}-{severity}" for name in KINDS for severity in SEVERITIES)


def corrupted_layouts(folder: str, split: str) -> Layouts:
    """Return the file of a corruption, which holds all severities, and that of the labels."""
    return [[f"{folder}/{split.rsplit('-', maxsplit=1)[0]}.npy", f"{folder}/labels.npy"]]


def read_corrupted(found: Found) -> Contents:
    """Read one severity of one corruption: the files hold all five, the mildest first."""
    severity = int(found.split.rsplit("-", maxsplit=1)[1])
    images, labels = (np.load(path, allow_pickle=False, mmap_mode="r") for path in found.paths)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) % len(SEVERITIES):
        wanted = f"bytes of shape (N, 32, 32, 3) with N a multiple of {len(SEVERITIES)}"
        raise DataError(expected(f"the file {found.paths[0]}", wanted, f"{images.dtype} of {images.shape}"))
    if labels.shape != (len(images),):
        wanted = f"one label for each of {len(images)} images"
        raise DataError(expected(f"the file {found.paths[1]}", wanted, f"the shape {labels.shape}"))
    size = len(images) // len(SEVERITIES)
    rows = slice((severity - 1) * size, severity * size)
    pixels = torch.from_numpy(images[rows].transpose(0, 3, 1, 2).copy())
    return Contents(pixels, torch.from_numpy(labels[rows].astype(np.int64)))


def _binary(path: Path, labels: int) -> tuple[Tensor, Tensor]:
    """Read rows of one or two labels (the last is the fine one) and three planes of pixels."""
    raw = np.fromfile(path, dtype=np.uint8)
    if not len(raw) or len(raw) % (labels + PIXELS):
        raise DataError(expected(f"the file {path}", f"rows of {labels + PIXELS} bytes", f"{len(raw)} bytes"))
    rows = raw.reshape(-1, labels + PIXELS)
    return _images(rows[:, labels:]), torch.from_numpy(rows[:, labels - 1].astype(np.int64))


def _python(path: Path, labels: str) -> tuple[Tensor, Tensor]:
    batch = read_pickle(path)
    return _images(batch["data"]), torch.tensor(batch[labels], dtype=torch.int64)


def _images(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows.reshape(-1, 3, 32, 32).copy())
