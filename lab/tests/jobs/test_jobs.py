"""Jobs: keys that see what matters, work that is done once, alone or in several processes, and goes on after a stop."""

from __future__ import annotations

import importlib
import json
import pickle
import random
import sys
import threading
from pathlib import Path

import pytest
import torch

import jobs
from repulse import RepulseError
from repulse.errors import CheckpointError
from repulse_lab.jobs import runner
from repulse_lab.jobs.job import Job, Place, digest_of_code, digest_of_function, execute, result
from repulse_lab.jobs.runner import in_order, minutes, missing, run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data", tmp_path / "keep")


def chain() -> tuple[Job, Job, Job]:
    first = Job(jobs.double, {"what": "first", "value": 1})
    second = Job(jobs.double, {"what": "second", "value": 2}, (first,))
    return first, second, Job(jobs.double, {"what": "third", "value": 3}, (first, second))


def test_a_key_follows_function_arguments_and_needs():
    base = Job(jobs.double, {"what": "a", "value": 1})
    assert base.key == Job(jobs.double, {"value": 1, "what": "a"}).key
    others = [
        Job(jobs.fail, {"what": "a", "value": 1}),
        Job(jobs.double, {"what": "a", "value": 2}),
        Job(jobs.double, {"what": "a", "value": 1}, (base,)),
        Job(jobs.double, {"what": "a", "value": 1}, code=("repulse.recipe",)),
    ]
    assert len({job.key for job in (base, *others)}) == 5


def test_a_key_sees_code_but_not_comments(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = []
    for text in (
        "def f(x):\n    return x\n",
        "# why\ndef f(x):\n    '''What.'''\n\n    return (x)\n",
        "def f(x):\n    return -x\n",
    ):
        (tmp_path / "thing.py").write_text(text)
        digest_of_code.cache_clear()
        digests.append(digest_of_code("thing"))
    assert digests[0] == digests[1] != digests[2]
    package = tmp_path / "several"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("x = 1\n")
    before = digest_of_code("several")
    (package / "part.py").write_text("x = 2\n")
    digest_of_code.cache_clear()
    assert digest_of_code("several") != before
    digest_of_code.cache_clear()


def test_a_key_sees_what_the_function_uses_of_its_module_and_nothing_else(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = {
        "import": "from repulse_lab.jobs.job import work\n",
        "used": "LIMIT = 3\n",
        "low": "LOW = 0\n",
        "helper": "def helper(x, low=LOW):\n    figures = x\n    return [min(v, LIMIT) for v in figures]\n",
        "guess": "SECONDS = 5.0\n",
        "main": "@work(seconds=lambda about: SECONDS)\ndef main(about, place):\n    return helper(about)\n",
        "other": "def other():\n    return 1\n",
        "figures": "def figures():\n    helper = 1\n    return helper\n",
    }

    def digest(**changes: str) -> str:
        (tmp_path / "own.py").write_text("\n".join((parts | changes).values()))
        importlib.invalidate_caches()
        sys.modules.pop("own", None)
        return digest_of_function(importlib.import_module("own").main)

    before = digest()
    assert digest(other="def other():\n    return 2\n") == before
    assert digest(guess="SECONDS = 6.0\n") == before
    assert digest(used="# three\nLIMIT = 3\n") == before
    assert digest(used="LIMIT = 40\n") != before
    assert digest(helper="def helper(x):\n    return max(x, LIMIT)\n") != before
    assert digest(low="LOW = 1\n") != before
    assert digest(figures="def figures():\n    return 7\n") == before
    sys.modules.pop("own", None)


def test_work_is_done_once_and_kept_with_all_it_takes_to_repeat_it(place: Place):
    job = Job(jobs.double, {"what": "one", "value": 21})
    assert execute(job, place) > 0
    assert execute(job, place) == 0
    assert jobs.calls(place.data) == ["one"]
    assert result(job, place)["figures"] == {"value": 42.0}
    kept = json.loads(job.path(place).read_text())
    assert kept["function"] == "jobs:double"
    assert kept["about"] == {"what": "one", "value": 21}
    assert kept["code"] == {"jobs:double": digest_of_function(jobs.double)}
    assert kept["versions"]["torch"] == torch.__version__


def test_warnings_are_kept_with_the_result(place: Place):
    job = Job(jobs.doubt, {})
    execute(job, place)
    assert json.loads(job.path(place).read_text())["warnings"] == ["it has not converged"]


def test_two_at_once_do_the_work_once(place: Place):
    job = Job(jobs.double, {"what": "one", "value": 1})
    threads = [threading.Thread(target=execute, args=(job, place)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs.calls(place.data) == ["one"]


def test_a_damaged_result_is_named(place: Place):
    job = Job(jobs.double, {"what": "one", "value": 1})
    execute(job, place)
    job.path(place).write_text('{"resu')
    with pytest.raises(CheckpointError, match=job.key):
        result(job, place)


def test_work_runs_in_one_thread_and_gives_the_threads_back(place: Place, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        job = Job(jobs.random_sum, {"what": "sum", "seed": 0})
        execute(job, place)
        assert result(job, place)["figures"]["threads"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_worker_with_other_code_does_nothing(place: Place):
    job = Job(jobs.double, {"what": "one", "value": 1})
    there = pickle.loads(pickle.dumps(job))
    assert "_key" not in there.__dict__  # so that it is that of the code over there
    assert runner._after(there, job.key, place, []) > 0
    with pytest.raises(RepulseError, match="code of repulse on a worker"):
        runner._after(there, "0" * 24, place, [])


def test_order_puts_needs_first_and_each_once():
    first, _, third = chain()
    assert [job.about["what"] for job in in_order([third, first])] == ["first", "second", "third"]


def test_what_only_finished_jobs_need_is_not_needed(place: Place):
    _, second, third = chain()
    execute(second, place)  # without its need, as if that had been deleted
    assert missing([second], place) == []
    assert [job.about["what"] for job in missing([third], place)] == ["first", "third"]


def test_minutes_are_work_over_workers_or_the_longest_chain():
    wide = [Job(jobs.double, {"what": "w", "value": i}) for i in range(24)]
    assert minutes(wide, 2) == pytest.approx(24 * 5 / 2 / 60)
    assert minutes(chain(), 8) == pytest.approx(15 / 60)
    assert minutes([], 2) == 0


def test_a_failure_stops_only_what_needs_it(place: Place):
    bad = Job(jobs.fail, {"what": "bad"})
    after = Job(jobs.double, {"what": "after", "value": 1}, (bad,))
    later = Job(jobs.double, {"what": "later", "value": 1}, (after,))
    other = Job(jobs.double, {"what": "other", "value": 1})
    tally = run([later, other], place, progress=False)
    assert jobs.calls(place.data) == ["bad", "other"]
    assert (tally.done, [job.about["what"] for job in tally.skipped]) == (1, ["after", "later"])
    assert [(job.about["what"], reason) for job, reason in tally.failed] == [("bad", "nothing came of it.")]


def test_a_stop_keeps_what_was_finished_and_the_next_run_goes_on(place: Place):
    todo = [Job(jobs.double, {"what": "one", "value": 1}), Job(jobs.interrupt, {"what": "two"})]
    todo.append(Job(jobs.double, {"what": "three", "value": 3}, (todo[1],)))
    with pytest.raises(KeyboardInterrupt):
        run(todo, place, progress=False)
    (place.data / "go").touch()
    tally = run(todo, place, progress=False)
    assert tally.done == 2
    assert jobs.calls(place.data) == ["one", "two", "two", "three"]


@pytest.fixture
def importable(monkeypatch):
    """Workers are new processes, which must find the module of the work."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.mark.usefixtures("importable")
@pytest.mark.filterwarnings("ignore")  # of the engine's own event loop
def test_several_processes_find_the_same_numbers_and_survive_failures(tmp_path: Path):
    alone, spread = (Place(tmp_path / name / "data", tmp_path / name / "keep") for name in ("alone", "spread"))
    first = Job(jobs.double, {"what": "first", "value": 1})
    sums = [Job(jobs.random_sum, {"what": f"sum{i}", "seed": i}, (first,)) for i in range(4)]
    bad = Job(jobs.fail, {"what": "bad"}, (first,))
    after = Job(jobs.double, {"what": "after", "value": 1}, (bad,))
    tallies = [run([*sums, after], p, workers=w, progress=False) for p, w in ((alone, 0), (spread, 2))]
    for tally in tallies:
        assert (tally.done, len(tally.failed), len(tally.skipped)) == (5, 1, 1)
        assert tally.failed[0][1] == "nothing came of it."
    for job in sums:
        assert result(job, alone)["figures"] == result(job, spread)["figures"]
    assert jobs.calls(spread.data)[0] == "first"
    assert sorted(jobs.calls(spread.data)) == sorted(jobs.calls(alone.data))


def test_without_the_engine_the_way_out_is_named(place: Place, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RepulseError, match=r"dask.*--workers 0"):
        run([Job(jobs.double, {"what": "one", "value": 1})], place, workers=2, progress=False)


def test_a_damaged_cell_is_done_again(place: Place):
    """Whatever byte of it was flipped, or wherever it was cut."""
    job = Job(jobs.double, {"what": "one", "value": 21})
    execute(job, place)
    path = job.path(place)
    content, draw = path.read_bytes(), random.Random(0)
    for number in range(60):
        damaged = bytearray(content)
        if number % 3:
            damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        else:
            del damaged[draw.randrange(len(content)) :]
        path.write_bytes(damaged)
        run([job], place, progress=False)
        assert result(job, place)["figures"] == {"value": 42.0}
        path.write_bytes(content)


def test_what_killed_writers_left_is_swept_up(place: Place):
    job = Job(jobs.double, {"what": "one", "value": 21})
    job.path(place).parent.mkdir(parents=True)
    stray = job.path(place).with_name(f".{job.path(place).name}.abcd")
    stray.write_text("half of it")
    execute(job, place)
    assert list(job.path(place).parent.iterdir()) == [job.path(place)]
    assert not any((place.keep / "locks").iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path):
    (tmp_path / "keep").write_text("a file")
    with pytest.raises(CheckpointError, match="Expected the folder of results to be a file that can be written"):
        execute(Job(jobs.double, {"what": "one", "value": 1}), Place(tmp_path, tmp_path / "keep"))
