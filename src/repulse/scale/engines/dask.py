"""Dask: one future per file; workers open the network once, and a dead one's files go to others."""

from __future__ import annotations

from collections.abc import Iterator

from repulse.files.samples import need
from repulse.scale.tasks import Task
from repulse.scale.worker import Outcome, score_file


def run(tasks: list[Task], workers: int) -> Iterator[Outcome]:
    """Score files, and iterate over what became of each.

    The current Dask client is used as it is; otherwise a cluster of processes is started on this machine, and ended.

    Args:
        tasks: the files, which every worker must see under the same path.
        workers: number of processes of a cluster that is started here.
    """
    need("distributed", 'engine="dask"', "dask")
    from distributed import Client, LocalCluster, as_completed, get_client

    try:
        client, cluster = get_client(), None
    except ValueError:
        local = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
        cluster = LocalCluster(n_workers=workers, **local)
        client = Client(cluster)
    try:
        futures = client.map(score_file, tasks, pure=False, retries=3)
        for future in as_completed(futures):
            yield future.result()
    finally:
        if cluster is not None:
            client.close()
            cluster.close()
