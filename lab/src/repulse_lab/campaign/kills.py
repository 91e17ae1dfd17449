"""Kill every writer at any moment: what is found afterwards is the old state or the new one, and work goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from repulse_lab.campaign.finding import Finding
from repulse_lab.campaign.writers import Writer, writers


def kills(times: int, seed: int) -> Iterator[Finding]:
    """Kill each writer this many times, at moments spread over the time it takes."""
    draw = random.Random(seed)
    for writer in writers():
        found = Finding("killed while it wrote", writer.name)
        seconds = _seconds(writer)
        for _ in range(times):
            moment = 1.1 * seconds * draw.random()
            with tempfile.TemporaryDirectory() as name, found.trial(f"after {1000 * moment:.1f} ms"):
                folder = Path(name)
                writer.prepare(folder)
                killed(lambda folder=folder, writer=writer: writer.write(folder), moment)
                writer.check(folder)
                writer.write(folder)
                writer.check(folder)
        yield found


def _seconds(writer: Writer) -> float:
    """Measure how long a whole write takes."""
    folder = Path(tempfile.mkdtemp())
    try:
        writer.prepare(folder)
        start = time.perf_counter()
        killed(lambda: writer.write(folder), 60.0)
        return time.perf_counter() - start
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def killed(write: Callable[[], object], seconds: float) -> bool:
    """Run something in a copy of this process, and kill that after some time; return whether it was still at it."""
    child = os.fork()
    if child == 0:
        try:
            write()
        finally:
            os._exit(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            return False
        time.sleep(min(0.0005, max(end - time.perf_counter(), 0)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True
