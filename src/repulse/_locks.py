"""Locks between processes, in a file beside what they protect: whoever waits is told for whom, and nothing is left."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm


@contextmanager
def locked(path: Path, why: str) -> Iterator[None]:
    """Hold a lock file inside; wait for a process that holds it, and say which one, and why.

    The file is removed before the lock is given back. Whoever opened it meanwhile holds a file that has no name any
    more, which filelock notices since 3.24, and opens the new one.

    Args:
        path: the lock file; its folder must exist.
        why: what the other process may be doing, for the message.
    """
    lock, holder = FileLock(path), path.with_name(f"{path.name}.holder")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tqdm.write(f"repulse: waiting for {_name_in(holder)}, which {why}", file=sys.stderr)
        lock.acquire()
    try:
        with suppress(OSError):
            _write_name(holder)
        yield
    finally:
        for file in (holder, path):
            with suppress(OSError):  # Windows removes no open file
                file.unlink()
        lock.release()


def _write_name(holder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(holder, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(f"process {os.getpid()} on {socket.gethostname()}")


def _name_in(holder: Path) -> str:
    with suppress(OSError, UnicodeError):
        if holder.is_file() and not holder.is_symlink():
            return holder.read_text(encoding="utf-8")[:200] or "another process"
    return "another process"
