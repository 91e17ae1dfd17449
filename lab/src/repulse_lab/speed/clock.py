"""A clock for ratios: what is compared takes turns in one process, so that both share the noise of the machine.

Each round times every run once, one right after the other, and in the next round in the opposite order; a ratio is the
median over rounds of the ratios within a round, and its spread their quartiles. The first calls are not counted. Short
runs are repeated until they fill a slot, after a call that brings their data back into the cache.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Run = Callable[[], object]
Timer = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Seconds that one call of each run took, round after round."""

    rounds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """Return the seconds of one call, the median over rounds."""
        return statistics.median(self.rounds[name])

    def ratios(self, thing: str, baseline: str, factor: float = 1.0) -> list[float]:
        """Return `thing / (factor * baseline)` of every round."""
        return [a / (factor * b) for a, b in zip(self.rounds[thing], self.rounds[baseline], strict=True)]


@dataclass(frozen=True)
class Clock:
    """Times runs against each other.

    Attributes:
        now: what counts: processor seconds of this process, which others cannot take from it, by default. Runs on
            several threads, which wait for each other, need the time on the wall.
        rounds: minimum number of rounds.
        seconds: minimum time of all rounds together, on the wall.
        slot: seconds for which a run is repeated before the next one has its turn.
        wall: what the time on the wall is.
    """

    now: Timer = time.process_time
    rounds: int = 7
    seconds: float = 3.0
    slot: float = 0.01
    wall: Timer = time.perf_counter

    def alternate(self, runs: Mapping[str, Run]) -> Times:
        """Let runs take turns."""
        times: dict[str, list[float]] = {name: [] for name in runs}
        with _no_collection():
            counts = {name: self._count(run) for name, run in runs.items()}
            begun, order, done = self.wall(), list(runs), 0
            while done < self.rounds or self.wall() - begun < self.seconds:
                for name in order:
                    times[name].append(self._time(runs[name], counts[name]))
                order.reverse()
                done += 1
        return Times(times)

    def _count(self, run: Run) -> int:
        """Count the calls that fill a slot; the first call may import and allocate, and tells little of a short run."""
        if self._time(run, 1) > 50 * self.slot:
            return 1
        return max(1, min(1000, math.ceil(self.slot / self._time(run, 1))))

    def _time(self, run: Run, count: int) -> float:
        if count > 1:
            run()  # what came before has used the cache
        begun = self.now()
        for _ in range(count):
            run()
        return max(self.now() - begun, 1e-9) / count


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use this number of torch threads inside (None for as many as there are), and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage before, not in the middle of somebody's turn."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
