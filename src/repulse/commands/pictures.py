"""Samples as pages show them: small pictures of files, and the training data of a fit if it is still there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError
from repulse.files.opening import Opening
from repulse.files.samples import Samples, open_image, read_samples

LARGEST = 160
"""Pixels of the longer side of a picture on a page."""


def picture_of(value: Any) -> Float[Tensor, "3 H W"]:
    """Open an image, small, with values from 0 to 1."""
    image = open_image(value)
    image.thumbnail((LARGEST, LARGEST))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def training_samples(opening: Opening, count: int) -> Samples | None:
    """Read the samples that heads were fitted on; None if they are gone, or are no longer that many."""
    source = opening.sources.get("data")
    if source is None:
        return None
    try:
        found = read_samples(source, opening.columns, opening.kind)
    except DataError:
        return None
    return found if len(found) == count else None
