"""Digits, letters and things of 28 x 28 grey pixels: MNIST, its kin in the same format, and Omniglot."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from repulse_lab.data.dataset import Contents
from repulse_lab.data.folders import image_paths, read_drawings
from repulse_lab.data.mnist import read_idx
from repulse_lab.data.registry import Found, Layouts

DIGITS = tuple(string.digits)
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
LETTERS = tuple(string.ascii_lowercase)
BALANCED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
"""Small letters that look like their capitals share a class with them."""


def idx_pair(folder: str, split: str) -> list[str]:
    """Return the two files of a split of MNIST."""
    start = "train" if split == "train" else "t10k"
    return [f"{folder}/raw/{start}-images-idx3-ubyte", f"{folder}/raw/{start}-labels-idx1-ubyte"]


def kmnist_layouts(split: str) -> Layouts:
    """Return where files in the format of MNIST lie, or the publisher's arrays."""
    arrays = [f"kmnist-{split}-{kind}.npz" for kind in ("imgs", "labels")]
    return [idx_pair("KMNIST", split), [f"KMNIST/{name}" for name in arrays], [f"files/{name}" for name in arrays]]


def read_pair(found: Found) -> Contents:
    """Read images and labels from two files of the idx format or of numpy's; without the second, images alone."""
    images, *labels = (_array(path) for path in found.paths)
    return Contents(images.unsqueeze(1), labels[0].long() if labels else None)


def read_upscaled(found: Found) -> Contents:
    """Read images as `read_pair` does, scaled to 32 x 32 pixels of three equal colours, as OpenOOD has them."""
    grey = read_pair(found)
    assert isinstance(grey.inputs, Tensor)
    large = F.interpolate(grey.inputs.float(), size=(32, 32), mode="bilinear", antialias=True).round().to(torch.uint8)
    return Contents(large.expand(-1, 3, -1, -1).contiguous(), grey.targets)


def emnist_layouts(part: str, split: str) -> Layouts:
    """Return the publisher's files, where torchvision or the archive itself puts them."""
    names = [f"emnist-{part}-{split}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    return [[f"{folder}/{name}" for name in names] for folder in ("EMNIST/raw", "EMNIST/raw/gzip", "gzip")]


def read_emnist(found: Found) -> Contents:
    """Read EMNIST, which stores each image with its rows and columns swapped, and counts letters from 1."""
    images, labels = (read_idx(path) for path in found.paths)
    first = 1 if "letters" in found.paths[0].name else 0
    return Contents(images.transpose(1, 2).contiguous().unsqueeze(1), labels.long() - first)


def omniglot_layouts(split: str) -> Layouts:
    """Return the publisher's folders, or the evaluation images at 28 x 28 in one file."""
    folders = [[f"{folder}/images_{split}"] for folder in ("omniglot-py", "omniglot/python", "omniglot")]
    return [*folders, ["files/omniglot_evaluation_28x28.npz"]] if split == "evaluation" else folders


def read_omniglot(found: Found) -> Contents:
    """Read white strokes on black; a class is a character of an alphabet, which the one file does not tell."""
    if found.paths[0].suffix == ".npz":
        return Contents(_array(found.paths[0]).unsqueeze(1))
    paths = image_paths(found.paths[0])
    characters = [path.parent.relative_to(found.paths[0]).as_posix() for path in paths]
    classes = tuple(sorted(set(characters)))
    number = {name: i for i, name in enumerate(classes)}
    images = read_drawings(paths, 28, found.progress, "Omniglot")
    return Contents(images, torch.tensor([number[name] for name in characters]), classes)


def _array(path: Path) -> Tensor:
    if path.suffix != ".npz":
        return read_idx(path)
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file[file.files[0]])
