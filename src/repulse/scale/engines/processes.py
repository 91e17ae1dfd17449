"""Local processes, each of which opens the network once; one file, or one worker, needs none besides this one."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait

from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file


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
    spawn = multiprocessing.get_context("spawn")  # forked copies of torch's threads would hang
    count = min(workers, len(tasks))
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_die_with_parent) as pool:
        for future in as_completed([pool.submit(score_file, task) for task in tasks]):
            yield future.result()


def _die_with_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="repulse watches its parent").start()
