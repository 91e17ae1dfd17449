"""Spark: `mapInArrow` over a table of files, one partition each; Python workers open the network once."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from repulse.files.samples import need
from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file

if TYPE_CHECKING:
    import pyarrow as pa


def run(tasks: list[Task], workers: int) -> Iterator[Outcome]:
    """Score files, and iterate over what became of each.

    An active Spark session is used as it is; otherwise one is started on this machine, and ended.

    Args:
        tasks: the files, which every executor must see under the same path.
        workers: number of tasks at a time of a session that is started here.
    """
    need("pyspark", 'engine="spark"', "spark")
    from pyspark.sql import SparkSession

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


def _local(workers: int):
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(f"local[{workers},4]")  # a task may fail three times, as on a cluster
        .appName("repulse")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.pyspark.driver.python", sys.executable)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def _score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        done = [score_file(pickle.loads(task.as_py())) for task in batch.column("task")]
        yield pa.RecordBatch.from_pydict({"outcome": pa.array([pickle.dumps(o) for o in done], pa.binary())})
