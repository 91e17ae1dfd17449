"""Random crops and mirror images of a batch, as one lookup of pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def augment(images: Tensor, crop: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by up to `crop` pixels, with black coming in, and mirror half of them if `flip`.

    Args:
        images: `(B, C, H, W)` on the CPU, of any type.
        crop: pixels of padding on each side, from which a window of the old size is cut.
        flip: whether to mirror at all.
        generator: of windows and mirrors, on the CPU.
    """
    if not crop and not flip:
        return images
    count, _, height, width = images.shape
    down, right = (torch.randint(2 * crop + 1, (count, 1), generator=generator) for _ in range(2))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (crop, crop, crop, crop)).permute(0, 2, 3, 1)
    which = torch.arange(count).view(-1, 1, 1)
    return padded[which, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)
