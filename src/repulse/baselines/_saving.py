"""Fitted methods as safetensors files: tensors and last layers as tensors, all other settings as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from repulse._files import explaining_writes
from repulse._tensors import read_tensors, write_tensors
from repulse.baselines.last_layer import LastLayer
from repulse.errors import CheckpointError, expected

if TYPE_CHECKING:
    from repulse.baselines.contract import Method

M = TypeVar("M")


def save(method: Method, path: str | Path) -> Path:
    """Write every field of a fitted method; refuse fields that are no tensors, last layers, numbers or strings."""
    tensors: dict[str, Tensor] = {}
    settings: dict[str, Any] = {}
    for field in fields(method):  # pyright: ignore[reportArgumentType]
        value = getattr(method, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif isinstance(value, LastLayer):
            tensors[f"{field.name}.weight"] = value.weight
            tensors[f"{field.name}.bias"] = value.bias
        elif value is None or isinstance(value, bool | int | float | str):
            settings[field.name] = value
        else:
            raise CheckpointError(f"{method.name} cannot be saved: its `{field.name}` is no tensor or number.")
    about = {"method": type(method).__name__, "settings": json.dumps(settings)}
    with explaining_writes(path):
        return write_tensors(path, tensors, about)


def load(kind: type[M], path: str | Path) -> M:
    """Read a fitted method of this class."""
    tensors, about = read_tensors(path)
    if about.get("method") != kind.__name__:
        raise CheckpointError(expected(f"the file {path}", f"a saved {kind.__name__}", about.get("method")))
    values: dict[str, Any] = {**json.loads(about["settings"]), **tensors}
    for name in {key.split(".")[0] for key in tensors if "." in key}:
        values[name] = LastLayer(values.pop(f"{name}.weight"), values.pop(f"{name}.bias"))
    known = {field.name: field.init for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    if set(values) != set(known):
        raise CheckpointError(expected(f"the file {path}", f"{sorted(known)}", f"{sorted(values)}"))
    method = kind(**{name: value for name, value in values.items() if known[name]})
    for name, value in values.items():
        setattr(method, name, value)
    return method
