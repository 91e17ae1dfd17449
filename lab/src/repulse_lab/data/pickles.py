"""Arrays and names out of pickled files, without running what a pickle asks to run.

A pickle is a program: it names functions and calls them. Here every name it may use stands for an inert class of this
file, which only remembers what it was given; any other name is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from repulse.errors import DataError, expected


class _Array:
    """Stands for numpy's array, and for the function that rebuilds one."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes(self) -> np.ndarray:
        _, shape, kind, columns_first, content = self.state
        if not isinstance(kind, _Kind) or kind.name not in {"u1", b"u1"} or not isinstance(content, bytes):
            raise DataError(expected("a pickled array", "of bytes", "another type"))
        return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Kind:
    """Stands for numpy's type of elements."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, _: Any) -> None:
        pass


class _Encoded:
    """Stands for the function by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # pyright: ignore[reportInconsistentConstructor]
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"the encoding {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, _: Any) -> None:
        pass


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _Encoded,
}


class _Inert(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _ALLOWED:
            raise DataError(
                expected("a pickled file", "of arrays, lists and texts only", f"a call of {module_name}.{global_name}")
            )
        return _ALLOWED[module_name, global_name]


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickled file: arrays of bytes, lists, numbers and texts; keys and texts as `str`."""
    try:
        with path.open("rb") as file:
            value = _Inert(file, encoding="bytes").load()
        if not isinstance(value, dict):
            raise DataError(expected("a pickled file", "a dictionary", type(value).__name__))
        return {_plain(key): _plain(item) for key, item in value.items()}
    except DataError as reason:
        raise DataError(f"{reason} Nothing in {path} was run.") from None
    except Exception as reason:  # the machine that reads pickles lets anything through
        raise DataError(
            expected(f"the file {path}", "a whole pickle", f"{type(reason).__name__}: {reason}")
        ) from reason


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.bytes()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("latin1") if isinstance(value, bytes) else value
