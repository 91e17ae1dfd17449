"""Folders of image files as one tensor: opened one by one, made small with antialiasing, always in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from repulse.errors import DataError, expected

SUFFIXES = (".png", ".jpg", ".jpeg")


def image_paths(folder: Path) -> list[Path]:
    """Return all images below a folder, sorted by their path below it."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    if not found:
        raise DataError(expected(f"the folder {folder}", "one with images in it", "none"))
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def read_photos(paths: Sequence[Path], size: int, progress: bool, title: str) -> Tensor:
    """Read colour images, each the largest square around its middle, scaled to `size` pixels."""

    def prepare(image: Image.Image) -> np.ndarray:
        square = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
        return np.asarray(square).transpose(2, 0, 1)

    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)
    return _fill(images, paths, prepare, progress, title)


def read_drawings(paths: Sequence[Path], size: int, progress: bool, title: str) -> Tensor:
    """Read black on white as white on black, each pixel the mean of the area it covers."""

    def prepare(image: Image.Image) -> np.ndarray:
        return 255 - np.asarray(image.convert("L").resize((size, size), Image.Resampling.BOX))[None]

    images = np.empty((len(paths), 1, size, size), dtype=np.uint8)
    return _fill(images, paths, prepare, progress, title)


def _fill(images: np.ndarray, paths: Sequence[Path], prepare: Any, progress: bool, title: str) -> Tensor:
    for i, path in enumerate(tqdm(paths, desc=title, unit=" images", delay=2, disable=not progress)):
        try:
            with Image.open(path) as image:
                images[i] = prepare(image)
        except OSError as reason:
            raise DataError(expected(f"the file {path}", "a whole image", reason)) from reason
    return torch.from_numpy(images)
