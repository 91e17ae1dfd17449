"""Score many files on many processors or machines: Parquet, image folders or tars in, Parquet out.

In order of reading: `tasks` (which file becomes which), `worker` (scores one file; the same on every engine), `engines`
(one a file: who runs the worker), `run` (the one call).
"""

from repulse.scale.run import ENGINES, Scored, score

__all__ = ["ENGINES", "Scored", "score"]
