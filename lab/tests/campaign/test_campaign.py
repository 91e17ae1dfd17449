"""The campaigns of `make campaign`, each with a few tries: nothing may fail, and what they count is counted right."""

from __future__ import annotations

import ast
import signal
import time
from pathlib import Path

import jaxtyping
import pytest

import repulse
from repulse_lab.campaign import calls, damage, disks, finding, hostile, kills, mutants, repetition, run
from repulse_lab.campaign.page import put_in
from repulse_lab.campaign.reach import Reach, _in_copy

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the checks of shapes, which other tests run with."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("campaign", "times"),
    [
        *((kills.kills, 1), (damage.damage, 1), (disks.disks, 1), (hostile.hostile, 7), (calls.calls, 2)),
        (repetition.threads, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_nothing_fails(campaign, times):
    found = list(campaign(times, seed=1))
    assert found
    assert all(one.tried for one in found)
    assert [failure for one in found for failure in one.failures] == []


def test_failures_are_counted():
    found = finding.Finding("attacked", "something")
    with found.trial("a raw error"), finding.or_refused(found):
        raise KeyError("x")
    with found.trial("an ended program"):
        raise SystemExit(0)
    with found.trial("a sentence"), finding.or_refused(found):
        raise finding.RepulseError("Expected `x` to be right, but got wrong.")
    assert (found.tried, found.refused, len(found.failures)) == (3, 1, 2)
    table = run.table([found])
    assert "| attacked | something | 3 | 1 | 2 |" in table
    assert "| **all** | | **3** | **1** | **2** |" in table


def test_rows_are_made_again_in_their_place():
    old = [finding.Finding("killed:", "a", 2), finding.Finding("called", "b", 1_000, ["x", "y"])]
    new = [finding.Finding("called", "b", 3), finding.Finding("killed:", "c", 4), finding.Finding("new", "d", 5)]
    rows = run.merged(run.rows_of(run.table(old)), new)
    assert [(row.what, row.tried, len(row.failures)) for row in rows] == [
        ("a", 2, 0),
        ("c", 4, 0),
        ("b", 3, 0),
        ("d", 5, 0),
    ]
    assert "| **all** | | **14** | **14** | **0** |" in run.table(rows)


def test_a_page_without_its_place_is_refused(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    put_in(page, "new", run.BEGIN, run.END)
    assert page.read_text() == f"before\n{run.BEGIN}\n\nnew\n\n{run.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="0 places"):
        put_in(page, "new", run.BEGIN, run.END)


def test_mutants_differ_in_one_place(tmp_path: Path):
    file = tmp_path / "code.py"
    file.write_text("def f(a, b):\n    return -a + b * 2 if a < b and not b else a\n")
    made = list(mutants.mutants_of(file, tmp_path))
    plain = ast.unparse(ast.parse(file.read_text()))
    assert len(made) == len({mutant.source for mutant in made}) == 6
    assert plain not in {mutant.source for mutant in made}
    for mutant in made:
        compile(mutant.source, "mutant", "exec")
        assert (mutant.file, mutant.lines) == ("code.py", range(2, 3))


def test_what_no_test_can_kill_is_a_change_that_can_be_made():
    library = Path(repulse.__file__).parent
    for name, change in mutants.EQUIVALENT:
        assert change in {mutant.change for mutant in mutants.mutants_of(library / name, library)}, (name, change)


def test_a_test_that_never_ends_is_ended_by_the_time_of_the_processor():
    """Not by the clock, which runs on while other work has the machine."""

    def forever() -> int:
        while True:
            pass

    assert _in_copy(forever, 1.0) in (-signal.SIGXCPU, -signal.SIGKILL)
    assert _in_copy(lambda: 5, 1.0) == 5
    assert _in_copy(lambda: int(time.sleep(1.2) is not None), 1.0) == 0


def test_a_mutant_meets_the_tests_that_reach_it_quickest_first():
    reach = Reach({"a": 3.0, "b": 1.0, "c": 2.0}, {"code.py": {0: {"a", "b", "c"}, 2: {"a", "b"}, 3: {"c"}}})
    assert reach.of("code.py", range(2, 4), 60) == ["b", "c", "a"]
    assert reach.of("code.py", range(2, 3), 2) == ["b"]
    assert reach.of("code.py", range(3, 4), 0.1) == ["c"]
    assert reach.of("code.py", range(9, 10), 60) == ["b", "c", "a"]  # a line that is read when it is imported
    assert reach.of("other.py", range(1, 9), 60) == []
