"""Ray Data: a pool of actors, each of which opens the network once; a dead one is replaced by Ray."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from typing import Any

from repulse.files.samples import need
from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file


class _Actor:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [score_file(pickle.loads(task)) for task in batch["task"]]
        return {"outcome": [pickle.dumps(outcome) for outcome in done]}


def run(tasks: list[Task], workers: int) -> Iterator[Outcome]:
    """Score files, and iterate over what became of each.

    An initialised Ray, or one that `RAY_ADDRESS` names, is used as it is; otherwise one is started here, and ended.

    Args:
        tasks: the files, which every node must see under the same path.
        workers: number of actors.
    """
    need("ray", 'engine="ray"', "ray")
    import ray  # pyright: ignore[reportMissingImports]

    ours = not ray.is_initialized()
    context = ray.data.DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        if ours:
            _start(workers)
        items = ray.data.from_items([{"task": pickle.dumps(task)} for task in tasks], override_num_blocks=len(tasks))
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=workers)
        for row in items.map_batches(_Actor, batch_size=1, compute=pool, num_cpus=1).iter_rows():
            yield pickle.loads(row["outcome"])
    finally:
        context.enable_progress_bars = bars
        if ours:
            ray.shutdown()


def _start(workers: int) -> None:
    """Connect to the Ray that the environment names, or start one on this machine, whatever else runs on it."""
    import ray  # pyright: ignore[reportMissingImports]

    quietly = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quietly)
    else:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what Ray says to its developers
        ray.init("local", num_cpus=workers, include_dashboard=False, **quietly)
