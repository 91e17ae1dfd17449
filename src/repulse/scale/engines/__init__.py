"""Who runs the worker: local processes, Ray Data, Spark or Dask. One engine per file, all with the same `run`."""
