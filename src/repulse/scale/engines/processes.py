"""Local processes, each of which opens the network once; one file, or one worker, needs none besides this one."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file

ATTEMPTS = 3
"""How often in a row workers may die without one file done before that is an error."""


def run(tasks: list[Task], workers: int, on_batch: Callable[[int, int], None] | None = None) -> Iterator[Outcome]:
    """Score files, and iterate over what became of each.

    Args:
        tasks: the files.
        workers: number of processes.
        on_batch: told the progress within a file, if there is no other process.
    """
    if workers == 1:
        yield from (score_file(task, on_batch) for task in tasks)
        return
    left, attempts = {task.out: task for task in tasks}, 0
    while left:
        before = len(left)
        try:
            yield from _in_pool(left, workers)
        except BrokenProcessPool:  # a worker was killed; what it had not finished is still left
            attempts = 0 if len(left) < before else attempts + 1
            if attempts >= ATTEMPTS:
                why = (
                    "The worker processes were killed again and again before they could finish a file; is there memory?"
                )
                yield from (Outcome(out, error=why) for out in left)
                return


def _in_pool(left: dict[str, Task], workers: int) -> Iterator[Outcome]:
    spawn = multiprocessing.get_context("spawn")  # forked copies of torch's threads would hang
    with ProcessPoolExecutor(min(workers, len(left)), mp_context=spawn, initializer=_die_with_parent) as pool:
        for future in as_completed([pool.submit(score_file, task) for task in list(left.values())]):
            outcome = future.result()
            del left[outcome.out]
            yield outcome


def _die_with_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="repulse watches its parent").start()
