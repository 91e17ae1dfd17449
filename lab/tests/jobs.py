"""Work for the tests of jobs, in a module of its own so that other processes can import it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from repulse.errors import DataError, FitWarning
from repulse_lab.jobs.job import work


def _mark(about, place) -> None:
    """Leave a trace of every call."""
    place.data.mkdir(parents=True, exist_ok=True)
    with (place.data / "calls").open("a") as file:
        file.write(f"{about['what']}\n")


@work(seconds=lambda about: 5.0)
def double(about, place):
    _mark(about, place)
    return {"figures": {"value": 2.0 * about["value"]}}


@work()
def doubt(about, place):
    warnings.warn("it has not converged", FitWarning, stacklevel=2)
    return {"figures": {}}


@work(seconds=lambda about: 20.0)
def fail(about, place):
    _mark(about, place)
    raise DataError("nothing came of it.")


@work()
def random_sum(about, place):
    """A sum whose digits depend on how it is split between threads."""
    import torch

    _mark(about, place)
    numbers = torch.randn(3_000_000, generator=torch.Generator().manual_seed(about["seed"]))
    return {"figures": {"value": float(numbers.sum()), "threads": float(torch.get_num_threads())}}


@work()
def interrupt(about, place):
    _mark(about, place)
    if not (place.data / "go").exists():
        raise KeyboardInterrupt
    return {"figures": {"process": float(os.getpid())}}


def calls(folder: Path) -> list[str]:
    """What was called, in order."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []
