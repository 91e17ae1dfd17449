"""Let torchvision, and timm with it, be imported with a build of torch it was not made for.

Some torchvision wheels expect operators that a CPU build of torch does not have; importing them fails at the first one.
Nothing tested here uses those operators, so their names are enough.
"""

from __future__ import annotations

import importlib.util

import torch

_kept: list[torch.library.Library] = []


def define_missing() -> None:
    """Define the names of the operators that torchvision looks for at import, if its own library does not load."""
    if _kept or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # its definitions go when it goes
