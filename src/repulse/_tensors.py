"""Tensors in safetensors files that carry a digest of all they say, which is checked when they are read."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from repulse._files import read_regular, write_whole
from repulse.errors import CheckpointError, expected

DIGEST = "digest"


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> Path:
    """Write tensors, and strings that say what they are, whole or not at all."""
    kept: dict[str, Tensor] = {}
    for name, value in tensors.items():
        shared = any(
            value.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in kept.values()
        )
        kept[name] = value.detach().clone() if shared else value.detach()  # safetensors refuses views of one memory
        kept[name] = kept[name].contiguous()
    about = dict(about or {})
    return write_whole(path, save(kept, {**about, DIGEST: _digest(kept, about)}))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote; refuse a file that was damaged or is another."""
    path = Path(path)
    try:
        content = read_regular(path)
        tensors = load(content)
        about = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]]).get("__metadata__", {})
    except (OSError, SafetensorError, struct.error, ValueError, KeyError) as reason:  # of a type that torch lacks
        raise CheckpointError(expected(f"the file {path}", "a whole safetensors file", reason)) from reason
    if about.pop(DIGEST, None) != _digest(tensors, about):
        raise CheckpointError(expected(f"the file {path}", "as it was written", "one that was changed since"))
    return tensors, about


def kept_tensors(path: str | Path) -> dict[str, Tensor] | None:
    """Read what was kept in a file; None if it is not there or was damaged, so that it is made again."""
    with suppress(CheckpointError):
        return read_tensors(path)[0]
    return None


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].cpu()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
