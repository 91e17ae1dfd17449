"""Bulk scoring in one process: which file becomes which, what is skipped, and what a kill leaves behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jaxtyping
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import repulse
from own_data import write_images, write_rows, write_tar
from repulse import DataError, RecipeError, cli, scale
from repulse.files import Columns
from repulse.scale import worker
from repulse.scale.run import _outcomes
from repulse.scale.tasks import Settings, Task, tasks_of
from repulse.scale.worker import Outcome

TESTS = str(Path(__file__).parents[1])
SLOW = """
import time
from own_data import rows_network

def slowly(rows):
    time.sleep(0.2)
    return rows

def network():
    return rows_network(), slowly
"""


def fit(folder: Path, *arguments: object) -> Path:
    done = CliRunner().invoke(cli.app, ["fit", *map(str, arguments), "--out", str(folder)])
    assert done.exit_code == 0, (done.output, done.exception)
    return folder


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        return fit(folder / "heads", "own_data:rows_network", write_rows(folder / "train.parquet"))


@pytest.fixture
def as_users_run_it():
    """Without the checks of types in annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def image_heads(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        return fit(folder / "heads", "own_data:image_network", write_images(folder / "pets"))


def score(source, out, heads, **settings):
    return scale.score(source, out, heads, workers=1, threads=1, progress=False, **settings)


def shards(folder: Path, count: int = 3) -> Path:
    for i in range(count):
        write_rows(folder / f"part-{i}.parquet", 5, seed=i)
    write_rows(folder / "deep" / "more.csv", 4)
    return folder


def test_one_file_out_for_each_file_in(heads, tmp_path):
    done = score(shards(tmp_path / "in"), tmp_path / "out", heads)
    names = {str(path.relative_to(tmp_path / "out")) for path in done.files}
    assert names == {"part-0.parquet", "part-1.parquet", "part-2.parquet", "deep/more.csv.parquet"}
    assert (done.rows, done.skipped) == (19, 0)
    assert "4 files done; 19 samples" in str(done)
    table = parquet.read_table(tmp_path / "out" / "part-1.parquet")
    assert table["id"].to_pylist() == [f"k{i}" for i in range(5)]
    said = table.schema.metadata
    assert said[b"repulse.version"].decode() == repulse.__version__
    assert said[b"repulse.heads"].decode() == json.loads((heads / "ensemble.json").read_text())["digest"]


def test_done_files_are_skipped_until_something_changes(heads, tmp_path):
    source, out = shards(tmp_path / "in"), tmp_path / "out"
    score(source, out, heads)
    before = {path: path.read_bytes() for path in out.rglob("*.parquet")}
    assert score(source, out, heads).skipped == 4
    (out / "part-0.parquet").unlink()
    (out / "part-1.parquet").write_bytes(b"PAR1 half of it")
    (out / ".part-2.parquet.abc").write_bytes(b"left by a worker that was killed")
    done = score(source, out, heads)
    assert (done.skipped, done.rows) == (2, 10)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    later = time.time() + 60
    os.utime(source / "part-2.parquet", (later, later))
    assert score(source, out, heads).skipped == 3
    assert score(source, out, heads, probs=True).skipped == 0
    assert score(source, out, heads, probs=True, columns=Columns(key="label")).skipped == 0


def test_other_heads_score_again(heads, tmp_path):
    source = shards(tmp_path / "in", 1)
    score(source, tmp_path / "out", heads)
    other = tmp_path / "heads"
    other.mkdir()
    for path in heads.glob("*.*"):
        (other / path.name).write_bytes(path.read_bytes())
    assert score(source, tmp_path / "out", other).skipped == 2
    about = json.loads((other / "ensemble.json").read_text())
    (other / "ensemble.json").write_text(json.dumps({**about, "digest": "another"}))
    with pytest.raises(DataError, match="changed since"):  # and so is not opened
        score(source, tmp_path / "out", other)


def test_folders_of_images_and_tars(image_heads, tmp_path):
    pets = write_images(tmp_path / "pets", 3)
    score(pets, tmp_path / "by-folder", image_heads)
    score(pets, tmp_path / "whole.parquet", image_heads)
    parts = [parquet.read_table(tmp_path / "by-folder" / f"{name}.parquet") for name in ("cat", "dog")]
    keys = [key for part in parts for key in part["path"].to_pylist()]
    assert keys == parquet.read_table(tmp_path / "whole.parquet")["path"].to_pylist()
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "a.tar")
    score(tmp_path / "tars", tmp_path / "tarred", image_heads)
    assert parquet.read_table(tmp_path / "tarred" / "a.tar.parquet")["path"].to_pylist()[0] == "000.png"


def test_outputs_inside_the_source_are_no_inputs(heads, tmp_path):
    source = shards(tmp_path, 1)
    score(source, source / "scores", heads)
    assert score(source, source / "scores", heads).skipped == 2


def test_one_bad_file_does_not_hold_up_the_others(heads, tmp_path):
    source = shards(tmp_path / "in")
    (source / "part-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"part-1\.parquet.* to be a whole table"):
        score(source, tmp_path / "out", heads)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "hadoop"}, "Expected `engine` to be one of 'processes', 'ray', 'spark', 'dask'"),
        ({"workers": 0}, "Expected `workers` to be a positive integer"),
        ({"batch_size": 0}, "Expected `batch_size` to be a positive integer"),
    ],
)
def test_settings_that_make_no_sense(settings, said, heads, tmp_path, as_users_run_it):
    with pytest.raises(RecipeError) as caught:
        scale.score(write_rows(tmp_path / "a.csv"), tmp_path / "out", heads, **settings)
    assert said in str(caught.value)


def test_an_empty_folder_and_a_second_run_are_refused(heads, tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match="a folder without any"):
        score(tmp_path / "in", tmp_path / "out", heads)
    from repulse.scale.run import _alone

    with _alone(tmp_path / "out"), pytest.raises(DataError, match="one run at a time"):
        score(shards(tmp_path / "in"), tmp_path / "out", heads)


@pytest.mark.parametrize("engine", scale.ENGINES)
def test_an_engine_that_fails_is_started_again_with_the_files_that_are_left(engine, monkeypatch):
    """As Ray does now and then on a busy machine, whose node is not up in time, and pools whose workers are killed."""
    tasks = [Task(str(i), None, str(i), {}, Settings("heads")) for i in range(3)]
    asked: list[list[str]] = []

    def fails(left, workers):
        asked.append([task.out for task in left])
        if len(asked) in (2, 4):
            yield Outcome(left[0].out, 1)
        if len(asked) == 3:
            return  # without a word
        if len(asked) < 5:
            raise RuntimeError("The current node timed out during startup.\nMore of it")
        yield from (Outcome(task.out, 1) for task in left)

    monkeypatch.setattr(importlib.import_module(f"repulse.scale.engines.{engine}"), "run", fails)
    assert [outcome.out for outcome in _outcomes(tasks, engine, 2)] == ["0", "1", "2"]
    assert asked == [["0", "1", "2"], ["0", "1", "2"], ["1", "2"], ["1", "2"], ["2"]]


def test_a_kill_loses_nothing(tmp_path, monkeypatch):
    """A real command, killed as soon as its first file is there; the next one does the rest, and only that."""
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)
    (tmp_path / "slow.py").write_text(SLOW)
    heads = fit(tmp_path / "heads", f"{tmp_path / 'slow.py'}:network", write_rows(tmp_path / "train.csv"))
    source, out = shards(tmp_path / "in"), tmp_path / "out"
    score(source, tmp_path / "wanted", heads)
    command = ["score", heads, source, "--out", out, "--workers", 1, "--threads", 1]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    process = subprocess.Popen([sys.executable, "-m", "repulse", *map(str, command)], env=here)
    while not list(out.rglob("*.parquet")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = len([path for path in out.rglob("*.parquet") if not path.name.startswith(".")])
    done = score(source, out, heads)
    assert 0 < done.skipped == before < 4
    for path in (tmp_path / "wanted").rglob("*.parquet"):
        assert (out / path.relative_to(tmp_path / "wanted")).read_bytes() == path.read_bytes()
    assert len([path for path in out.rglob("*") if path.is_file()]) == 4


def test_an_engine_that_gives_up_is_one_sentence(heads, tmp_path, monkeypatch):
    attempts = []

    def gives_up(*_, **__):
        attempts.append(1)
        raise RuntimeError("no cluster\nand a long story")
        yield

    monkeypatch.setattr("repulse.scale.engines.processes.run", gives_up)
    said = r"^Scoring with processes gave up \(RuntimeError: no cluster\): in 3 attempts no file was done; [^\n]*$"
    with pytest.raises(DataError, match=said):
        score(shards(tmp_path / "in"), tmp_path / "out", heads)
    assert len(attempts) == 3


def test_a_file_on_which_the_network_fails_does_not_hold_up_the_others(heads, tmp_path, monkeypatch):
    source, read = shards(tmp_path / "in"), worker.read_samples

    def fails_on_one(path, *rest):
        if path.endswith("part-1.parquet"):
            raise KeyError("colour")
        return read(path, *rest)

    monkeypatch.setattr(worker, "read_samples", fails_on_one)
    with pytest.raises(DataError, match=r"part-1\.parquet` to be a file that .* fail \(KeyError: 'colour'\)\.$"):
        score(source, tmp_path / "out", heads)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 3


def test_the_order_of_tasks_is_that_of_names(tmp_path, heads):
    found = tasks_of(shards(tmp_path), tmp_path / "out", Settings(str(heads)))
    assert [Path(task.source).name for task in found] == [
        "more.csv",
        "part-0.parquet",
        "part-1.parquet",
        "part-2.parquet",
    ]
