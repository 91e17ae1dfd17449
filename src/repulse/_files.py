"""Files that are written whole or not at all, and numbers that JSON has no name for."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it: a kill leaves the old file or the new one, never half of one."""
    path = Path(path)
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
