"""Kill `repulse score` again and again under one engine, and check that nothing is lost and nothing is there twice.

    python benchmarks/kills.py --engine processes --kills 50
    python benchmarks/kills.py --engine ray --kills 50        likewise spark and dask

Each run is killed (SIGKILL) at a random moment, in turn the command itself or one of the processes that it started. A
command whose worker was killed must end well, and have done all; one that was killed is started again. After every run
each output file must be, byte for byte, the one of an undisturbed run; at the end all must be there, with every key
once, and nothing else. Whenever all files are done the outputs are removed and it begins again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

NETWORK = """
import time
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), slowly


def slowly(rows):
    time.sleep(0.05)
    return rows
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="processes", choices=["processes", "ray", "spark", "dask"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), options.engine, options.kills, options.files, random.Random(options.seed))
    print(json.dumps(found))


def campaign(folder: Path, engine: str, kills: int, files: int, rng: random.Random) -> dict[str, object]:
    """Run it; raise AssertionError at the first thing that is not as it should be."""
    prepare(folder, files)
    finish(start(folder, "processes", "wanted", workers=1), folder)
    wanted = contents(folder / "wanted")
    assert len(wanted) == files
    begun = time.perf_counter()
    finish(start(folder, engine, "out"), folder)
    whole = time.perf_counter() - begun
    assert contents(folder / "out") == wanted
    shutil.rmtree(folder / "out")
    counts = Counter({f"killed {victim}": 0 for victim in ("command", "worker")})
    while sum(counts.values()) < kills:
        process = start(folder, engine, "out")
        time.sleep(rng.uniform(0.3, 1.0) * whole)
        workers = children(process.pid) if sum(counts.values()) % 2 else []
        victim = rng.choice(workers) if workers else process.pid
        killed = process.poll() is None
        if killed:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(victim, signal.SIGKILL)
                counts["killed worker" if workers else "killed command"] += 1
        if workers or not killed:
            finish(process, folder)
        process.wait()
        there = contents(folder / "out")
        assert all(wanted[name] == content for name, content in there.items()), "a file is not what it should be"
        if len(there) == files:
            shutil.rmtree(folder / "out")
        elif workers or not killed:
            raise AssertionError(f"a command ended well with {len(there)} of {files} files")
    finish(start(folder, engine, "out"), folder)
    assert contents(folder / "out") == wanted, "a file is missing or different"
    left = {path.name for path in (folder / "out").iterdir()} - set(wanted)
    assert not left, f"{left} is left"
    keys = Counter(key for name in wanted for key in parquet.read_table(folder / "out" / name)["key"].to_pylist())
    assert len(keys) == files * 32, "keys are lost"
    assert set(keys.values()) == {1}, "keys are there twice"
    return {"engine": engine, "files": files, **counts, "lost": 0, "twice": 0}


def prepare(folder: Path, files: int) -> None:
    (folder / "slow.py").write_text(NETWORK)
    (folder / "data").mkdir()
    for number in range(files + 1):
        rows = np.random.default_rng(number).normal(size=(32, 4))
        columns = {name: rows[:, i] for i, name in enumerate("abcd")}
        keys = [f"{number}-{i}" for i in range(32)]
        table = pa.table({"key": keys, **columns, "label": [int(v > 0) for v in rows[:, 0]]})
        path = folder / "train.parquet" if number == files else folder / "data" / f"part-{number:02}.parquet"
        parquet.write_table(table, path)
    fit = [sys.executable, "-m", "repulse", "fit", "slow.py:network", "train.parquet", "--batch-size", "8"]
    subprocess.run(fit, cwd=folder, check=True, capture_output=True)


def start(folder: Path, engine: str, out: str, workers: int = 2) -> subprocess.Popen[bytes]:
    command = ["score", "heads", "data", "--out", out, "--engine", engine, "--threads", 1, "--workers", workers]
    with (folder / "log.txt").open("ab") as log:
        whole = [sys.executable, "-m", "repulse", *map(str, command)]
        return subprocess.Popen(whole, cwd=folder, stdout=log, stderr=log)


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    code = process.wait(timeout=600)
    said = (folder / "log.txt").read_text(errors="replace")[-2000:]
    assert code == 0, f"the command ended with {code}: {said}"


def contents(folder: Path) -> dict[str, bytes]:
    """The output files; those that are being written have names that begin with a point."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet")) if path.name[0] != "."}


def children(parent: int) -> list[int]:
    """Processes of this Python below a process: its workers, or those of an engine that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, below = [], [parent]
    while below:
        above = below.pop()
        new = [pid for pid, other in parents.items() if other == above]
        found += [pid for pid in new if is_worker(pid)]
        below += new
    return found


def is_worker(pid: int) -> bool:
    """Tell workers by what they run: those of Ray, Spark, Dask and of multiprocessing."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(word in command for word in (b"ray::", b"pyspark.daemon", b"spawn_main"))


if __name__ == "__main__":
    main()
