"""Fitted methods as safetensors files: tensors and last layers as tensors, all other settings as JSON."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from repulse._files import write_whole
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
            tensors[field.name] = value.contiguous()
        elif isinstance(value, LastLayer):
            tensors[f"{field.name}.weight"] = value.weight.contiguous()
            tensors[f"{field.name}.bias"] = value.bias.contiguous()
        elif value is None or isinstance(value, bool | int | float | str):
            settings[field.name] = value
        else:
            raise CheckpointError(f"{method.name} cannot be saved: its `{field.name}` is no tensor or number.")
    about = {"method": type(method).__name__, "settings": json.dumps(settings)}
    return write_whole(path, to_bytes(tensors, about))


def load(kind: type[M], path: str | Path) -> M:
    """Read a fitted method of this class."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, struct.error) as reason:
        raise CheckpointError(expected(f"the file {path}", "a saved method", str(reason))) from reason
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
