"""Images as bytes, and as a network takes them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from repulse.errors import DataError


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats in the network's input space."""
    shape = (1, -1, 1, 1)
    return (images.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def existing(root: str | Path, name: str) -> Path:
    path = Path(root) / name
    if not path.is_file():
        raise DataError(
            f"Expected the file `{name}` in {Path(root)}, but it is not there; `make data` says how to get it."
        )
    return path
