"""Full and read-only disks: an error of the library that names the place, and what was there before is still there."""

from __future__ import annotations

import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from repulse import RepulseError
from repulse_lab.campaign.finding import Finding
from repulse_lab.campaign.writers import writers

NOBODY = 65534


def disks(times: int, seed: int) -> Iterator[Finding]:
    """Let each writer meet a disk that is full after some bytes, and a folder it may not write to."""
    draw = random.Random(seed)
    for writer in writers():
        found = Finding("a disk that is full after some bytes, under", writer.name)
        for _ in range(times):
            room = draw.choice([0, 1, 10, 100, 300, 1000])
            with tempfile.TemporaryDirectory() as name, found.trial(f"{room} bytes"):
                folder = Path(name)
                writer.prepare(folder)
                _in_child(lambda room=room: _fill(room), lambda folder=folder, writer=writer: writer.write(folder))
                writer.check(folder)
        yield found
        found = Finding("a folder that may not be written to, under", writer.name)
        for _ in range(max(times // 5, 1)):
            with tempfile.TemporaryDirectory() as name, found.trial("read-only"):
                folder = Path(name)
                writer.prepare(folder)
                _let_read(folder)
                _in_child(_become_nobody, lambda folder=folder, writer=writer: writer.write(folder))
                folder.chmod(0o700)
                writer.check(folder)
        yield found


def _fill(room: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error then, as of a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


def _become_nobody() -> None:
    if os.geteuid() == 0:  # whom no folder refuses
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _let_read(folder: Path) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o555)


def _in_child(before: Callable[[], None], write: Callable[[], object]) -> None:
    """Run a writer in a copy of this process; fail if it raises anything but an error of the library."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            before()
            write()
            code = 0
        except RepulseError:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"signal {status}"
    assert os.WEXITSTATUS(status) in (0, 1), "an error that is not the library's"
