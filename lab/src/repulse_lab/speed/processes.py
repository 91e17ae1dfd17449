"""Fresh Python processes, and what they cost."""

from __future__ import annotations

import os
import subprocess
import sys

from repulse.errors import RepulseError

LONGEST = 300
"""Seconds after which a process is given up."""


class ProcessError(RepulseError, RuntimeError):
    """A process that was to be measured has failed."""


def start(*arguments: str, **environment: str) -> str:
    """Run Python with these arguments to its end; what it printed."""
    command = [sys.executable, "-W", "ignore", *arguments]
    around = os.environ | environment
    try:
        done = subprocess.run(command, env=around, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired as reason:
        raise ProcessError(f"the process took more than {LONGEST // 60} minutes") from reason
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ProcessError(f"the process failed: {why}")
    return done.stdout


def process_seconds() -> float:
    """Return processor seconds of all processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system
