"""The real engines: the same bytes from each, and nothing lost or twice when they are killed. See `make engines`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from own_data import write_rows
from repulse import cli

ROOT = Path(__file__).parents[2]
TESTS = str(ROOT / "tests")
PACKAGES = {"processes": "multiprocessing", "ray": "ray", "spark": "pyspark", "dask": "distributed"}
pytestmark = pytest.mark.engine


def need(engine: str) -> None:
    if importlib.util.find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"{PACKAGES[engine]} is not there: pip install 'repulse[{engine}]'")
    if engine == "spark" and shutil.which("java") is None:
        pytest.skip("java is not there: Spark needs it")


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> Path:
    """Heads, files, and the scores of one process."""
    folder = tmp_path_factory.mktemp("bulk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        fit = ["fit", "own_data:rows_network", write_rows(folder / "train.csv"), "--out", folder / "heads"]
        done = CliRunner().invoke(cli.app, list(map(str, fit)))
        assert done.exit_code == 0, done.output
    for i in range(5):
        write_rows(folder / "in" / f"part-{i}.parquet", 20 + i, seed=i)
    command(folder, "out", "--workers", 1)
    return folder


def command(folder: Path, out: str, *more: object) -> None:
    whole = ["score", folder / "heads", folder / "in", "--out", folder / out, "--threads", 1, *more]
    script, here = (
        [sys.executable, "-m", "repulse", *map(str, whole)],
        {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])},
    )
    done = subprocess.run(script, capture_output=True, text=True, check=False, cwd=folder, env=here)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("engine", PACKAGES)
def test_every_engine_writes_the_same_bytes(engine, wanted):
    need(engine)
    command(wanted, engine, "--engine", engine, "--workers", 2)
    one = {path.name: path.read_bytes() for path in (wanted / "out").iterdir()}
    assert {path.name: path.read_bytes() for path in (wanted / engine).iterdir()} == one


@pytest.mark.parametrize("engine", PACKAGES)
def test_kills_lose_nothing_and_nothing_is_there_twice(engine):
    need(engine)
    script = [sys.executable, ROOT / "benchmarks" / "kills.py", "--engine", engine, "--kills", "3"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"lost": 0, "twice": 0' in done.stdout
