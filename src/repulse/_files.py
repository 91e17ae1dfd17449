"""Files that are written whole or not at all, JSON with a digest, and numbers that JSON has no name for."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from repulse.errors import CheckpointError, expected


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it: a kill leaves the old file or the new one, never half of one."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):  # which `replace` would remove
        raise OSError(errno.EINVAL, "it is no regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path.name))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


@contextmanager
def explaining_writes(path: str | Path, argument: str = "path") -> Iterator[None]:
    """Turn what the file system raises inside into an error that names the file."""
    try:
        yield
    except OSError as reason:
        got = f"{path}, where {reason.strerror or reason}"
        raise CheckpointError(expected(argument, "a file that can be written", got)) from reason


@contextmanager
def open_regular(path: str | Path, most: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file to read, unless it is a pipe or a device, which may never end, or has more than `most` bytes."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(handle)
    if stat.S_ISDIR(found.st_mode):  # which `open` closes, but not before it has looked at its name
        os.close(handle)
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    with open(handle, "rb") as file:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if most is not None and found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes where {most:,} would be many")
        yield file


def read_regular(path: str | Path, most: int | None = None) -> bytes:
    """Read what `open_regular` opens."""
    with open_regular(path, most) as file:
        return file.read()


def sealed(content: Mapping[str, Any], *, sort: bool = True) -> str:
    """Return JSON that carries a digest of itself; numbers must be finite. Its keys are sorted, or as they come."""
    content = json.loads(_as_json(content, sort))  # keys that are no strings become some, and sort as such
    return _as_json({**content, "digest": _digest(content)}, sort)


def unsealed(text: str | bytes) -> dict[str, Any]:
    """Return what was sealed, without its digest.

    Raises:
        ValueError: it is no JSON, or was changed since.
    """
    try:
        content = json.loads(text)
    except RecursionError as reason:
        raise ValueError("too many brackets inside each other") from reason
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}, not a mapping")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise ValueError("it was changed since it was written")
    return content


def _as_json(content: Mapping[str, Any], sort: bool = True) -> str:
    return json.dumps(content, indent=1, sort_keys=sort, ensure_ascii=False, allow_nan=False) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_as_json(content).encode()).hexdigest()


def sweep(path: Path) -> None:
    """Remove the temporary files that killed writers of a file have left."""
    for stray in path.parent.glob(f"{_prefix(path.name)}*"):
        stray.unlink(missing_ok=True)


def _prefix(name: str) -> str:
    return f".{name}."


def without_nan(value: Any) -> Any:
    """Replace every number that is not finite by None, as JSON wants it."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(value: Any) -> Any:
    """Replace every None by NaN."""
    if isinstance(value, dict):
        return {key: with_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [with_nan(entry) for entry in value]
    return math.nan if value is None else value
