"""Small files in the formats in which publishers offer their data."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes() + values.tobytes()


def write(root: Path, name: str, content: bytes | str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def plain(colour: int, height: int = 40, width: int = 48) -> np.ndarray:
    return np.full((height, width, 3), colour, dtype=np.uint8)


def old_pickle(value) -> bytes:
    """As Python 2 with the numpy of its day wrote it: the format of the publisher's files."""

    def emit(value) -> bytes:
        if isinstance(value, dict):
            return b"}(" + b"".join(emit(k) + emit(v) for k, v in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(emit, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(emit, value)) + b"t"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, str):
            return b"U" + bytes([len(value)]) + value.encode()
        kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        content = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
        array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return array + b"(K\x01" + emit(value.shape) + kind + b"\x89" + content + b"tb"

    return b"\x80\x02" + emit(value) + b"."


def new_pickle(value) -> bytes:
    return pickle.dumps(value, protocol=2)
