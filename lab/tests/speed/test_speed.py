"""The clock of ratios with a time of its own, what is written of made-up measurements, and one group for real."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import json
import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from repulse.errors import CheckpointError, RecipeError
from repulse_lab import cli
from repulse_lab.speed import (
    dense,
    deployed,
    features,
    fit,
    importing,
    laplace_torch,
    measured,
    memory,
    predict,
    profile,
    report,
    run,
    scaling,
    step,
)
from repulse_lab.speed.clock import Clock, Times, threads
from repulse_lab.speed.measurement import Benchmark, BenchmarkResult, BenchSetting, Curve, Measurement, Ratio, quartiles
from repulse_lab.speed.processes import ProcessError, process_seconds, start

ROOT = Path(__file__).parents[3]
MACHINE = {"cores": 2, "threads": 1, "vectors": "AVX2", "torch": "2.6", "python": "3.11.1", "repulse": "0.1"}


class World:
    """Time that passes only when something costs it."""

    def __init__(self):
        self.time, self.calls = 0.0, []

    def cost(self, name, seconds):
        def call():
            self.calls.append(name)
            spent = seconds(len(self.calls)) if callable(seconds) else seconds
            self.time += spent

        return call

    def clock(self, **how):
        return Clock(now=lambda: self.time, wall=lambda: self.time, **how)


def test_long_runs_take_turns_in_both_orders_and_are_called_once_a_round():
    world = World()
    runs = {"a": world.cost("a", 3.0), "b": world.cost("b", 2.0)}
    times = world.clock(rounds=4, seconds=0).alternate(runs)
    assert "".join(world.calls) == "ab" + "ab" + "ba" + "ab" + "ba"  # the first calls do not count
    assert times.rounds == {"a": [3.0] * 4, "b": [2.0] * 4}
    assert times.ratios("a", "b") == [1.5] * 4
    assert times.ratios("a", "b", factor=3) == [0.5] * 4
    assert times.median("a") == 3.0


def test_short_runs_fill_their_slot_after_a_call_that_is_not_timed():
    world = World()
    first = world.cost("x", lambda call: 0.02 if call == 1 else 0.001)
    times = world.clock(rounds=3, seconds=0, slot=0.01).alternate({"x": first})
    assert len(world.calls) == 2 + 3 * (1 + 10)
    assert times.rounds["x"] == pytest.approx([0.001] * 3)


def test_rounds_go_on_while_there_is_time():
    world = World()
    times = world.clock(rounds=2, seconds=10).alternate({"x": world.cost("x", 1.0)})
    assert len(times.rounds["x"]) == 10


def test_noise_that_both_share_leaves_the_ratio_alone():
    world = World()
    slow = {"now": 1.0}

    def busy(seconds):
        def call(_):
            slow["now"] *= 1.1  # a machine that gets busier and busier
            return seconds * slow["now"]

        return call

    times = world.clock(rounds=20, seconds=0).alternate(
        {"a": world.cost("a", busy(2.0)), "b": world.cost("b", busy(1.0))}
    )
    low, middle, high = quartiles(times.ratios("a", "b"))
    assert low < 2 < high
    assert middle == pytest.approx(2.0, rel=0.02)


def test_a_timer_that_stands_still_gives_no_division_by_zero():
    times = Clock(now=lambda: 0.0, rounds=2, seconds=0).alternate({"a": lambda: None, "b": lambda: None})
    assert times.ratios("a", "b") == [1.0, 1.0]


def test_collection_of_garbage_and_threads_are_as_before_even_after_an_error():
    before = torch.get_num_threads()

    def fail():
        assert not gc.isenabled()
        raise ZeroDivisionError

    with threads(before + 1) as used, pytest.raises(ZeroDivisionError):
        Clock().alternate({"x": fail})
    assert used == before + 1
    assert gc.isenabled()
    assert torch.get_num_threads() == before
    with threads(None) as used:
        assert used == before


def test_quartiles_of_one_row():
    about = Ratio("a", "b", "d 2", goal=2.0)
    row = Measurement.of(about, [1.0, 2.0, 3.0, 4.0, 5.0], 0.5)
    assert (row.ratio, row.low, row.high, row.rounds, row.cost, row.met) == (3.0, 2.0, 4.0, 5, 0.5, False)
    assert Measurement.of(about, [2.0], 0.5).met is True
    assert Measurement.of(Ratio("a", "b"), [2.0], 0.5).met is None
    assert about.name == "a / b, d 2"
    missing = Measurement.missing(about, "needs x")
    assert (missing.note, missing.met, missing.ratio) == ("not measured: needs x", None, None)


@pytest.fixture
def findings():
    rows = [
        Measurement.of(Ratio("slow", "bare", "d 8", goal=2.0), [2.9, 3.0, 3.1], 0.01),
        Measurement.of(Ratio("fast", "bare", goal=2.0), [1.5], 0.01, note="synthetic"),
        Measurement.of(Ratio("free", "bare"), [0.25], 0.01),
        Measurement.missing(Ratio("ours", "theirs", goal=0.3), "needs theirs"),
    ]
    curves = [Curve("d", "ours", [8.0, 64.0], [3.0, 2.0], [2.9, 1.9], [3.1, 2.1]), Curve("N", "ours", [10.0], [1.0])]
    return [
        BenchmarkResult("step", False, "2026-01-01", MACHINE, rows[:2]),
        BenchmarkResult("fit", False, "2026-01-01", MACHINE, rows[2:], curves),
    ]


def test_table(findings):
    lines = [re.split(r"\s{2,}", line) for line in report.table_of(findings).text().splitlines()]
    assert lines == [
        ["what / baseline", "ratio", "lower quartile", "upper quartile", "goal", "met"],
        ["slow / bare, d 8", "3.000", "2.950", "3.050", "2.00", "no"],
        ["fast / bare [1]", "1.500", "1.500", "1.500", "2.00", "yes"],
        ["free / bare", "0.250", "0.250", "0.250", "–", "–"],
        ["ours / theirs (not measured: needs theirs)", "–", "–", "–", "0.30", "–"],
        ["Ratios are medians over rounds in which both take turns."],
        ["[1] synthetic"],
    ]
    assert "| slow / bare, d 8 | 3.000 | 2.950 | 3.050 | 2.00 | no |" in report.table_of(findings).markdown()
    quick = BenchmarkResult("import", True, "2026-01-01", MACHINE)
    assert "first look" in report.table_of([*findings, quick]).text()


def test_what_is_written_comes_back(findings, tmp_path):
    path = report.write(findings, tmp_path / "new")
    assert path == tmp_path / "new" / "speed.json"
    assert report.read(tmp_path / "new") == findings
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert [row["met"] for group in kept["groups"] for row in group["rows"]] == [False, True, None, None]
    assert (tmp_path / "new" / "speed.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "new" / "speed.svg").read_text()
    assert "A step against features" in svg
    assert "A whole fit against samples" in svg
    assert "Memory" not in svg  # no curve, no panel
    assert "currentColor" not in svg


def test_without_curves_there_is_no_plot(findings, tmp_path):
    report.write(findings[:1], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["speed.json"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"format": 1}', '{"format": 1, "groups": [1]}', '{"format": 1, "groups": [{"rows": [{}]}]}'],
)
def test_files_that_are_no_measurements_are_refused(content, tmp_path):
    (tmp_path / "speed.json").write_text(content)
    with pytest.raises(CheckpointError, match="Expected"):
        report.read(tmp_path)


def test_another_format_is_refused(tmp_path):
    (tmp_path / "speed.json").write_text('{"format": 0, "groups": []}')
    with pytest.raises(CheckpointError, match="to be of format 1, but got 0"):
        report.read(tmp_path)


def test_groups_measured_again_replace_their_own(findings):
    again = BenchmarkResult("fit", True, "2026-02-02", MACHINE)
    assert run.merged(findings, [again]) == [findings[0], again]
    assert run.merged([again], findings) == findings


def test_the_machine_has_no_name():
    about = run.machine(3)
    assert about["threads"] == 3
    assert set(about) == set(MACHINE)
    assert not any("/" in str(value) for value in about.values())


def test_a_walk_over_groups_gives_what_they_measure(tmp_path):
    row, curve = Measurement.missing(Ratio("a", "b"), "never"), Curve("d", "x", [1.0], [1.0])
    seen = []

    def measure(setting):
        seen.append((setting.quick, torch.get_num_threads()))
        yield row
        yield curve

    group = Benchmark("one", "title", lambda quick: [row.about], measure, threads=2, curves=1)
    (found,) = run.run([group], BenchSetting(tmp_path, quick=True))
    assert (found.rows, found.curves, found.quick, found.machine["threads"]) == ([row], [curve], True, 2)
    assert seen == [(True, 2)]


def test_names_choose_groups_in_our_order():
    assert [group.name for group in run.chosen(["step", "import"])] == ["import", "step"]
    assert run.chosen() == run.chosen(["all", "fit"]) == list(run.BENCHMARKS.values())
    with pytest.raises(RecipeError, match="Did you mean 'memory'"):
        run.chosen(["memry"])


def bench(*arguments):
    return CliRunner().invoke(cli.app, ["bench", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


def test_list_shows_groups_ratios_and_goals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = bench("--list")
    assert done.exit_code == 0
    for group in run.BENCHMARKS.values():
        assert f"{group.name:10}{group.title}\n" in done.stdout
    goals = {
        "fs-RLL-E: step / two products, d 64, K 10, n 10": "6",
        "fs-RLL-E: step / two products, d 512, K 10, n 10": "1.8",
        "fs-RLL-E: step / two products, d 2,048, K 1,000, n 10": "1.1",
        "fs-RLL-E: whole fit / laplace-torch kron fit, 50,000 x 64": "0.3",
        "fs-RLL-E, 3 epochs at 5e-3: whole fit / laplace-torch kron fit, 50,000 x 64": "0.3",
        "predict from features / laplace-torch, 100 samples, 10,000 x 64": "0.02",
        "default recipe: predict / bare network, ResNet-20, batch 128": "1.02",
        "default recipe: predict / bare network, ResNet-18, batch 32": "1.01",
        "features kept in a folder, last layer / bare network, ResNet-20, 96 batches of 128": "1.05",
        "features kept in a folder, last layer / in memory, ResNet-20, 96 batches of 128": "1.05",
        "peak memory of a fit from a folder, 10 N / N, N 196,000, d 512": "1.1",
        "import repulse / import torch": "1.15",
    }
    for name, goal in goals.items():
        assert f"  {name}: at most {goal}\n" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_none_is_refused_in_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["repulse-lab", "bench", "stepp", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("repulse-lab: Expected `name` to be one of 'all', 'import', 'step',")
    assert error.endswith("but got 'stepp'. Did you mean 'step'?\n")
    assert not (tmp_path / "out").exists()


def test_steps_for_real(tmp_path, monkeypatch):
    """One cheap group through the command line, as a user runs it; a second run keeps the first one's rows.

    A first look has a folder of its own, and leaves what took longer alone.
    """
    monkeypatch.setattr(step, "SIZES", ((8, 3), (16, 3)))
    before = BenchmarkResult(
        "import", False, "2026-01-01", MACHINE, [Measurement.missing(importing.ratios(True)[0], "never")]
    )
    for folder in (tmp_path, tmp_path / "quick"):
        report.write([before], folder)
    done = bench("step", "--quick", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert f"Written to {tmp_path / 'quick'}." in done.stdout
    assert report.read(tmp_path) == [before]
    kept, found = report.read(tmp_path / "quick")
    assert kept == before
    assert [row.about for row in found.rows] == step.ratios(True)
    assert all(row.ratio > 1 and row.low <= row.ratio <= row.high and row.rounds >= 3 for row in found.rows)
    assert found.machine["threads"] == 1
    for row in found.rows:
        assert row.about.name in done.stdout
    assert "import repulse" not in done.stdout  # not asked for


def test_a_profile_has_all_parts_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "SIZES", ((64, 10),))
    rows = list(profile.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == profile.ratios(True)
    assert all(row.cost > 0 for row in rows)
    stepper, step_once = step.make_stepper(step.ClosedFormStep, 64, 10, step.FS_RLL_E)
    seconds = profile.watch(stepper, "_forward")
    seconds.append(0.0)
    step_once()
    assert 0 < seconds[0] < 0.1


def test_one_import_for_real():
    before = process_seconds()
    start("-c", "import json")
    assert process_seconds() > before
    with pytest.raises(ProcessError, match="the process failed: ZeroDivisionError: division by zero"):
        start("-c", "1 / 0")


@pytest.fixture
def no_laplace(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "laplace" else found(name, *more)
    )


@pytest.fixture
def instant(monkeypatch):
    """A clock that calls nothing twice, and believes that everything takes a second."""

    def alternate(self, runs):
        for call in runs.values():
            call()
        return Times({name: [1.0] for name in runs})

    monkeypatch.setattr(Clock, "alternate", alternate)


def test_without_laplace_the_rows_relative_to_it_say_so(no_laplace, instant, monkeypatch, tmp_path):
    monkeypatch.setattr(fit, "fit", lambda problem, recipe=None: lambda: None)
    monkeypatch.setattr(fit, "objective", lambda problem, recipe: (recipe.epochs or 0) / 4)
    monkeypatch.setattr(fit, "training", lambda steps: lambda: None)
    rows = list(fit.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == fit.ratios(True)
    missing = [row.note == "not measured: needs laplace-torch" for row in rows]
    assert missing == [True, True, True, False, False]
    assert rows[4].note.endswith("objective 0.7500 against 7.5000; of the default fit 0.0000")
    assert rows[3].ratio == pytest.approx(1 / 40)  # an epoch is 40 steps, of which one was timed
    row = predict._from_features(BenchSetting(tmp_path, quick=True), Ratio("a", "b"))
    assert (row.ratio, row.note) == (None, "not measured: needs laplace-torch")


def test_predictions_give_a_row_for_each_ratio(instant, no_laplace, tmp_path):
    rows = list(predict.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == predict.ratios(True)


def test_deployed_ensembles_give_a_row_for_each_ratio(instant, tmp_path):
    rows = list(deployed.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == deployed.ratios(True)
    assert {about.goal for about in deployed.ratios(False)} == {1.15, 1.03, None}


def test_maps_give_a_row_for_each_ratio(instant, monkeypatch, tmp_path):
    rows = list(dense.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == dense.ratios(True)
    assert [about.goal for about in dense.ratios(False)] == [None, 1.1, None, 1.0]
    monkeypatch.setattr(dense, "start", lambda *command, **environment: "252")
    row = dense._memory(dense.ratios(False)[-1])
    assert (row.ratio, row.unit) == (0.5, "MB")  # 152 MB of output, twice, and 200 MB


def test_features_give_a_row_for_each_ratio_and_leave_nothing(instant, monkeypatch, tmp_path):
    monkeypatch.setattr(features, "SIZE", 4)
    monkeypatch.setattr(features, "start", lambda *command, **environment: asked.append(command) or "300000")
    asked = []
    rows = list(features.measure(BenchSetting(tmp_path, quick=True)))
    assert [row.about for row in rows] == features.ratios(True)
    assert not list(tmp_path.iterdir())
    assert [command[4] for command in asked] == ["2", "1"]
    assert (rows[-1].ratio, rows[-1].cost) == (1.0, 0.3)


def test_curves_of_scaling(instant, no_laplace, monkeypatch, tmp_path):
    monkeypatch.setattr(scaling, "fit", lambda problem: lambda: None)
    curves = list(scaling.measure(BenchSetting(tmp_path, quick=True)))
    assert [curve.panel for curve in curves] == ["d", "K", "n", "d", "K", "n", "N"]  # and "N" of laplace-torch
    assert curves[0].x == [32.0, 256.0, 2048.0][: len(curves[0].x)]
    assert all(len(curve.x) == len(curve.y) for curve in curves)


@pytest.mark.parametrize("there", [True, False])
def test_memory_subtracts_imports_except_where_fits_are_compared(there, monkeypatch, tmp_path):
    asked = []

    def peak(kind, samples, d, classes, folder=""):
        asked.append((kind, samples, bool(folder)))
        imports = {"import": 100.0, "import laplace": 400.0}
        return imports.get(kind) or imports["import laplace" if kind == "laplace" else "import"] + samples / 100

    monkeypatch.setattr(memory, "peak_of", peak)
    monkeypatch.setattr(memory, "has_laplace", lambda: there)
    results = list(memory.measure(BenchSetting(tmp_path, quick=True)))
    rows = [result for result in results if isinstance(result, Measurement)]
    assert [row.about for row in rows] == memory.ratios(True)
    assert rows[0].ratio == pytest.approx((100 + 500) / (100 + 50))
    assert rows[1].ratio == pytest.approx(500 / 50)
    assert rows[2].ratio == pytest.approx(1.0)
    if there:
        assert rows[3].ratio == pytest.approx(1.0)
    else:
        assert {row.note for row in rows[3:]} == {"not measured: needs laplace-torch"}
    curves = {(curve.panel, curve.name): curve for curve in results if isinstance(curve, Curve)}
    assert len(curves) == memory.BENCHMARK.curves
    assert curves["memory N", "from a folder"].x == [5000.0, 50_000.0]
    assert curves["memory N", "from a folder"].y == pytest.approx([50, 500])
    assert len(asked) == len(set(asked)) == (6 if there else 4)  # nothing twice
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("failing", "words", "there"),
    [("laplace", "laplace-torch", [True, True, True, False, False]), ("fit", "fs-RLL-E", [False] * 5)],
)
def test_a_process_that_fails_costs_its_rows_alone(failing, words, there, monkeypatch, tmp_path):
    def peak(kind, *sizes):
        if kind == failing:
            raise ProcessError("the process failed: out of memory")
        return 100.0

    monkeypatch.setattr(memory, "peak_of", peak)
    monkeypatch.setattr(memory, "has_laplace", lambda: True)
    rows = [row for row in memory.measure(BenchSetting(tmp_path, quick=True)) if isinstance(row, Measurement)]
    assert [row.ratio is not None for row in rows] == there
    assert rows[-1].note == f"not measured: {words}: the process failed: out of memory"


def test_memory_of_a_child_is_its_own():
    """Not that of its parent, which is what `getrusage` begins with."""
    code = f"import sys\nfrom pathlib import Path\n{inspect.getsource(measured.peak)}\nprint(peak())"
    ballast = torch.ones(50_000_000)  # 200 MB
    alone, more = int(start("-c", code)), int(start("-c", f"x = bytearray(50_000_000)\ndel x\n{code}"))
    assert alone < 100e6
    assert more - alone == pytest.approx(50e6, rel=0.1)
    assert len(ballast)


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_what_a_child_does(tmp_path, capsys):
    with warnings.catch_warnings():
        measured.main("fit", "300", "8", "3", str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "train.features").stat().st_size == 300 * 8 * 4
    assert int(capsys.readouterr().out) > 50e6
    assert [len(x) for x, _ in measured.Stream(2_500, 10)] == [1000, 1000, 500]
    assert len(measured.Stream(2_500, 10)) == 3


def test_synthetic_features_are_those_of_a_classifier():
    problem = laplace_torch.synthetic(2_000, 16, 5)
    logits = problem.train @ problem.weight.T + problem.bias
    assert (logits.argmax(dim=1) == problem.targets).float().mean() > 0.7
    cut, collected = list(laplace_torch.sliced(problem)), list(laplace_torch.collated(problem))
    for one, other in zip(cut, collected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_page_is_filled_by_the_command_and_by_nothing_quick(monkeypatch, tmp_path):
    page = (ROOT / "docs" / "speed.md").read_text()
    for name in ("speed-goals", "speed-profile", "speed-deploy", "speed-others", "speed-machine", "speed-plot"):
        assert re.search(rf"<!-- {name} -->\n.*?<!-- end of {name} -->", page, re.DOTALL)
    for name in run.BENCHMARKS:
        assert f"| `{name}` |" in page
    report.write([BenchmarkResult("fit", True, "2026-01-01", MACHINE)], tmp_path)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["speed.py", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / "speed.py"), run_name="__main__")
    assert ended.value.code == "Measured with --quick, which is no result: fit. Run `repulse-lab bench` without."
    assert (ROOT / "docs" / "speed.md").read_text() == page


def test_a_profile_is_shown_with_parts_down_and_sizes_across(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = runpy.run_path(str(ROOT / "benchmarks" / "speed.py"), run_name="speed")
    abouts = [Ratio(f"fs-RLL-E: {part}", "two products", size) for size in ("d 1", "d 2") for part in ("Adam", "rest")]
    rows = [Measurement.of(about, [i + 0.25], 1.0) for i, about in enumerate(abouts)]
    lines = script["parts_of"]([BenchmarkResult("profile", False, "2026-01-01", MACHINE, rows)]).markdown().splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert found[0] == ["part / two products", "d 1", "d 2"]
    assert found[2:] == [["Adam", "0.25", "2.25"], ["rest", "1.25", "3.25"]]
