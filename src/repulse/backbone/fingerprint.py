"""Fingerprints: which network, with which weights, computed something that was kept."""

from __future__ import annotations

import hashlib
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor, nn

from repulse.backbone.batches import as_bytes, digest_of


def architecture_of(model: nn.Module) -> dict[str, str]:
    """The class of a network, and a digest of the modules it is made of and of the shapes of all they hold."""
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name}|{type(module).__name__}\n".encode())
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}\n".encode())
    return {"class": type(model).__name__, "shapes": digest.hexdigest()[:32]}


def weights_of(model: nn.Module) -> str:
    """A digest of all parameters and buffers of a network, wherever they are."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}\n".encode())
            digest.update(as_bytes(value))
    return digest.hexdigest()[:32]


def settings_of(thing: Any) -> Any:
    """What an object was made with, as something that can be written down and compared."""
    if isinstance(thing, Tensor):
        return digest_of(thing)
    if isinstance(thing, np.ndarray):
        return [str(thing.dtype), list(thing.shape), hashlib.sha256(thing.tobytes()).hexdigest()[:32]]
    if isinstance(thing, FunctionType):
        held = [cell.cell_contents for cell in thing.__closure__ or ()]
        return ["function", settings_of(thing.__code__), settings_of(held)]
    if isinstance(thing, CodeType):
        return [hashlib.sha256(thing.co_code).hexdigest()[:32], settings_of(thing.co_consts)]
    if isinstance(thing, bool | int | float | str) or thing is None:
        return thing
    if isinstance(thing, tuple | list):
        return [settings_of(part) for part in thing]
    if isinstance(thing, dict):
        return {str(key): settings_of(value) for key, value in thing.items()}
    return {"class": type(thing).__qualname__, **settings_of(getattr(thing, "__dict__", {"is": repr(thing)}))}
