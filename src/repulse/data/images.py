"""Image sets as `uint8` tensors `(N, C, H, W)`, read from a folder in their publishers' own formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, check_choice, expected

TINY_IMAGENET, TEXTURES = "files/tiny_imagenet_val_32x32.npz", "files/dtd_10_classes_32x32.npz"
"""Made from the publishers' folders, which are read where these are not."""


def cifar10(root: str | Path, split: str = "train") -> tuple[Tensor, Tensor]:
    """CIFAR-10, binary layout: 50,000 training and 10,000 test images with their labels."""
    check_choice("split", split, ("train", "test"))
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    paths = [existing(root, f"cifar-10-batches-bin/{name}") for name in names]
    raw = np.concatenate([np.fromfile(path, dtype=np.uint8).reshape(-1, 3073) for path in paths])
    return torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(raw[:, 0].astype(np.int64))


def tiny_imagenet(root: str | Path, part: str) -> Tensor:
    """Tiny ImageNet validation images at 32 x 32, in two disjoint halves of the 200 sorted classes.

    Args:
        root: folder of the data.
        part: "repulsion" for the first 100 classes, "evaluation" for the last 100.
    """
    check_choice("part", part, ("repulsion", "evaluation"))
    if (Path(root) / "tiny-imagenet-200").is_dir() and not (Path(root) / TINY_IMAGENET).is_file():
        return _from_publisher("tiny-imagenet", part, root)
    with np.load(existing(root, TINY_IMAGENET), allow_pickle=False) as file:
        images, names = file["x"], file["wnid"]
    first = np.isin(names, np.unique(names)[:100])
    return _channels_first(images[first if part == "repulsion" else ~first])


def textures(root: str | Path) -> Tensor:
    """Ten classes of the Describable Textures at 32 x 32."""
    if (Path(root) / "dtd").is_dir() and not (Path(root) / TEXTURES).is_file():
        return _from_publisher("dtd", "ten-classes", root)
    with np.load(existing(root, TEXTURES), allow_pickle=False) as file:
        return _channels_first(file["x"])


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats in the network's input space."""
    shape = (1, -1, 1, 1)
    return (images.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def _from_publisher(name: str, split: str, root: str | Path) -> Tensor:
    from repulse.data.registry import load  # which reads images itself

    inputs = load(name, split, root).inputs
    if not isinstance(inputs, Tensor):
        raise DataError(expected(name, "a set of images", "another one"))
    return inputs


def _channels_first(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def existing(root: str | Path, name: str) -> Path:
    path = Path(root) / name
    if not path.is_file():
        raise DataError(
            f"Expected the file `{name}` in {Path(root)}, but it is not there; `make data` says how to get it."
        )
    return path
