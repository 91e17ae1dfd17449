"""Colour images at 32 x 32 compared with CIFAR: house numbers, textures, Tiny ImageNet, places."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, expected
from repulse_lab.data.dataset import Contents
from repulse_lab.data.folders import image_paths, read_photos
from repulse_lab.data.registry import Found, Layouts

SIZE = 32


def svhn_layouts(split: str) -> Layouts:
    """Return the file in a folder of its own, or in none, as torchvision has it."""
    return [[f"svhn/{split}_32x32.mat"], [f"SVHN/{split}_32x32.mat"], [f"{split}_32x32.mat"]]


def read_svhn(found: Found) -> Contents:
    """Read house numbers; the file calls the digit 0 ten."""
    from scipy.io import loadmat

    content = loadmat(found.paths[0], variable_names=["X", "y"])
    labels = torch.from_numpy(content["y"].astype(np.int64)).flatten() % 10
    return Contents(torch.from_numpy(content["X"].transpose(3, 2, 0, 1).copy()), labels)


def read_svhn_crops(found: Found) -> Contents:
    """Read crops of the photographs of house numbers; the file calls the digit 0 ten."""
    with np.load(found.paths[0], allow_pickle=False) as file:
        pixels, names = file["x"], file["name"]
    return Contents(torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.from_numpy(names.astype(int) % 10))


def dtd_layouts(split: str) -> Layouts:
    """Return the publisher's folder, or its first ten classes at 32 x 32 in one file."""
    if split in {"train", "val", "test"}:
        return [[f"{folder}/images", f"{folder}/labels/{split}1.txt"] for folder in ("dtd", "dtd/dtd")]
    folders = [["dtd/images"], ["dtd/dtd/images"]]
    return [*folders, ["files/dtd_10_classes_32x32.npz"]] if split == "ten-classes" else folders


def read_dtd(found: Found) -> Contents:
    """Read textures with their classes: a third of the images (the publisher's first partition), or all."""
    folder = found.paths[0]
    if folder.suffix == ".npz":
        return _from_file(folder, "texture")
    if len(found.paths) == 2:
        paths = [folder / line for line in found.paths[1].read_text().split()]
    else:
        paths = image_paths(folder)
    classes = sorted({path.parent.name for path in paths})
    if found.split == "ten-classes":
        classes = classes[:10]
        paths = [path for path in paths if path.parent.name in classes]
    return _photos(paths, [path.parent.name for path in paths], classes, found, "textures")


def tiny_imagenet_layouts(split: str) -> Layouts:
    """Return the publisher's folder, or the validation images at 32 x 32 in one file."""
    if split == "train":
        return [["tiny-imagenet-200/train"]]
    val = "tiny-imagenet-200/val"
    return [[f"{val}/images", f"{val}/val_annotations.txt"], ["files/tiny_imagenet_val_32x32.npz"]]


def read_tiny_imagenet(found: Found) -> Contents:
    """Read all classes, or those of one half; labels count within what is read."""
    source = found.paths[0]
    if source.suffix == ".npz":
        return _from_file(source, "wnid", found.split)
    if found.split == "train":
        paths = image_paths(source)
        names = [path.relative_to(source).parts[0] for path in paths]
    else:
        lines = [line.split("\t") for line in found.paths[1].read_text().splitlines() if line]
        paths, names = [source / line[0] for line in lines], [line[1] for line in lines]
    classes = _half(sorted(set(names)), found.split)
    kept = [i for i, name in enumerate(names) if name in set(classes)]
    return _photos([paths[i] for i in kept], [names[i] for i in kept], classes, found, "Tiny ImageNet")


SHEETS = "files/tiny-imagenet-sheets"
COLUMNS = 20
"""Pictures beside each other on a sheet, and sheets have as many rows."""


def hundred_classes_layouts(split: str) -> Layouts:
    """Return the folder of sheets, one per class, or the file of validation pictures."""
    return [[SHEETS]] if split == "train" else [["files/tiny_imagenet_val_32x32.npz"]]


def read_hundred_classes(found: Found) -> Contents:
    """Read the training pictures of the first hundred classes from sheets of 20 x 20, or their validation pictures."""
    source = found.paths[0]
    if found.split == "test":
        return _from_file(source, "wnid", "repulsion")
    sheets = sorted(source.glob("*.jpg"))
    pages = read_photos(sheets, COLUMNS * SIZE, found.progress, "Tiny ImageNet")
    tiles = pages.view(len(sheets), 3, COLUMNS, SIZE, COLUMNS, SIZE).permute(0, 2, 4, 1, 3, 5)
    targets = torch.arange(len(sheets)).repeat_interleave(COLUMNS**2)
    return Contents(tiles.reshape(-1, 3, SIZE, SIZE).contiguous(), targets, tuple(path.stem for path in sheets))


def places_layouts(_: str) -> Layouts:
    """Return where the validation images lie, with labels if they are there."""
    full = [[f"{folder}val_256", f"{folder}places365_val.txt"] for folder in ("places365/", "")]
    return [*full, ["places365/val_256"], ["val_256"]]


def read_places(found: Found) -> Contents:
    """Read places, with their categories where the publisher's lists are next to the images."""
    if len(found.paths) == 1:
        return Contents(read_photos(image_paths(found.paths[0]), SIZE, found.progress, "Places365"))
    lines = [line.split() for line in found.paths[1].read_text().splitlines() if line]
    images = read_photos([found.paths[0] / name for name, _ in lines], SIZE, found.progress, "Places365")
    categories = found.paths[1].with_name("categories_places365.txt")
    classes = tuple(line.split()[0] for line in categories.read_text().splitlines()) if categories.is_file() else ()
    return Contents(images, torch.tensor([int(label) for _, label in lines]), classes)


def _half(classes: list[str], split: str) -> list[str]:
    """Return the first hundred classes for repulsion, the others for evaluation: never the same."""
    if split in {"repulsion", "evaluation"} and len(classes) != 200:
        raise DataError(expected("Tiny ImageNet", "of 200 classes, to be halved", f"{len(classes)} classes"))
    return {"repulsion": classes[:100], "evaluation": classes[100:]}.get(split, classes)


def _from_file(path: Path, key: str, split: str = "") -> Contents:
    with np.load(path, allow_pickle=False) as file:
        images, names = file["x"], file[key].tolist()
    classes = _half(sorted(set(names)), split)
    number = {name: i for i, name in enumerate(classes)}
    kept = np.array([name in number for name in names])
    pixels = torch.from_numpy(images[kept].transpose(0, 3, 1, 2).copy())
    return Contents(pixels, _numbers([name for name in names if name in number], classes), tuple(classes))


def _photos(paths: Sequence[Path], names: list[str], classes: list[str], found: Found, title: str) -> Contents:
    images = read_photos(paths, SIZE, found.progress, title)
    return Contents(images, _numbers(names, classes), tuple(classes))


def _numbers(names: list[str], classes: list[str]) -> Tensor:
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[name] for name in names], dtype=torch.int64)
