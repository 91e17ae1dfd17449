"""Spark: `mapInArrow` over a table of files, one partition each; Python workers open the network once."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from repulse.files.samples import need
from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]


def run(tasks: list[Task], workers: int) -> Iterator[Outcome]:
    """Score files, and iterate over what became of each.

    An active Spark session is used as it is; otherwise one is started on this machine, and ended.

    Args:
        tasks: the files, which every executor must see under the same path.
        workers: number of tasks at a time of a session that is started here.
    """
    need("pyspark", 'engine="spark"', "spark")
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    session, ours = SparkSession.getActiveSession(), False
    if session is None:
        session, ours = _local(workers), True
    try:
        numbered = list(enumerate(pickle.dumps(task) for task in tasks))
        rows = session.sparkContext.parallelize(numbered, len(tasks)).toDF("number long, task binary")
        scored = rows.mapInArrow(_score, "outcome binary")
        for row in scored.toLocalIterator() if not ours else scored.collect():
            yield pickle.loads(row["outcome"])
    finally:
        if ours:
            session.stop()


def _local(workers: int) -> SparkSession:
    """Start Spark on this machine, with this Python in its workers: by itself it takes the first `python3` it finds."""
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = before or sys.executable  # read once, when it starts
    try:
        return (
            SparkSession.builder.master(f"local[{workers},4]")  # a task may fail three times, as on a cluster
            .appName("repulse")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
    finally:
        if before is None:
            del os.environ["PYSPARK_PYTHON"]


def _score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        done = [score_file(pickle.loads(task.as_py())) for task in batch.column("task")]
        yield pa.RecordBatch.from_pydict({"outcome": pa.array([pickle.dumps(o) for o in done], pa.binary())})
