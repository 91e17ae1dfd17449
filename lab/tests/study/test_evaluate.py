"""Every method on one network by the command, on images small enough to make here."""

from __future__ import annotations

import csv
import math
import re

import pytest
from typer.testing import CliRunner

from repulse import RecipeError
from repulse.baselines import METHODS
from repulse_lab import cli
from repulse_lab.jobs.job import Place, result
from repulse_lab.study import evaluate, problems
from repulse_lab.study.evaluate import EVALUATIONS, chosen, evaluation, rows_for
from repulse_lab.study.experiment import RunOptions
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.reproduce import Reproduction
from repulse_lab.study.training import Network, Networks
from tiny_problem import light_and_static, tiny_problem, trained_network

LAPLACE = ["LL-Laplace (full)", "LL-Laplace (diagonal)"]
RANDOM = [
    "SNGP",
    "LL-Laplace",
    *LAPLACE,
    "outlier exposure",
    "tuned outlier exposure",
    "LL-E",
    "RLL-E",
    "fs-RLL-E",
    "repulse",
]
NETWORKS = Networks((Network("Small", "resnet20"), Network("Other", "resnet32")), 2)
MISTAKES = {
    r"Expected `network` to be .* but got 'lenett'\. Did you mean 'lenet'\?": ["--network", "lenett"],
    r".*cifar10 is not in the data folder.*": ["--data", "."],
    r"Expected a folder of data sets: .*REPULSE_DATA\.": [],
}

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture
def registered(monkeypatch):
    """A tiny problem and an evaluation on it; fits of few steps, for what heads learn is tested elsewhere."""
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 120)
    images = light_and_static()
    problem = tiny_problem(images, lambda name: trained_network(images, int(name == "resnet32")))
    monkeypatch.setitem(problems.PROBLEMS, "tiny", problem)
    grid = Grid("tiny", rows_for(("more static",), ("patches",), [Row("DE")]), NETWORKS, NETWORKS)
    monkeypatch.setitem(EVALUATIONS, "tiny", (grid, "Small", evaluate.PHOTOGRAPHS))


@pytest.mark.usefixtures("registered", "few_steps")
def test_every_method_on_both_views_gives_figures(tmp_path):
    work = Reproduction([evaluation("tiny")], RunOptions("cpu", tmp_path, 1), tmp_path / "out")
    tally = work.run(progress=False)
    assert (tally.failed, tally.skipped) == ([], [])
    (plan,) = work.plans.values()
    place = Place(tmp_path.resolve(), (work.folder / "cache").resolve())
    assert {cell.labels["method"] for cell in plan.cells} == {*METHODS, "DE-2"}
    tapped = {cell.labels["method"] for cell in plan.cells if cell.labels["layers"] == "auto"}
    assert tapped == set(METHODS) - set(LAPLACE)
    for cell in plan.cells:
        figures = result(cell.job, place)["figures"]
        assert 50 < figures["accuracy"] < 100, cell.labels
        assert all(math.isfinite(value) for value in figures.values())
        assert {"static fpr95", "flat aupr_in", "mean auroc", "human_correlation", "milliseconds"} <= set(figures)
        assert ("fit_seconds" in figures) == (cell.labels["method"] != "DE-2")  # which was trained before


@pytest.mark.usefixtures("registered")
def test_what_is_not_random_is_run_once(tmp_path):
    cells = evaluation("tiny").plan(RunOptions("cpu", tmp_path)).cells
    for method in (*METHODS, "DE-2"):
        seeds = [cell.labels["seed"] for cell in cells if cell.labels["method"] == method]
        assert set(seeds) == ({0, 1} if method in RANDOM else {0}), method
    assert {cell.job.about["network"]["name"] for cell in cells if "network" in cell.job.about} == {"resnet20"}


@pytest.mark.usefixtures("registered")
def test_rows_are_chosen_by_method_and_view(tmp_path):
    cells = evaluation("tiny").plan(RunOptions("cpu", tmp_path, 1)).cells
    assert chosen(cells, ["all"], "both") == cells
    assert [c.labels["layers"] for c in chosen(cells, ["KNN"], "both")] == ["last", "auto"]
    assert {c.labels["layers"] for c in chosen(cells, ["all"], "auto")} == {"auto"}
    with pytest.raises(RecipeError, match=r"`methods` to be one of 'all', .* Did you mean 'Energy'\?"):
        chosen(cells, ["KNN", "Energyy"], "both")
    with pytest.raises(RecipeError, match=r"Expected `layers` to be .*, but got 'lastt'. Did you mean 'last'\?"):
        chosen(cells, ["KNN"], "lastt")


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPULSE_DATA", raising=False)
    monkeypatch.setattr("sys.argv", ["repulse-lab", "evaluate", *MISTAKES[said]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, list(tmp_path.iterdir())) == ("", [])
    assert re.fullmatch(f"repulse-lab: {said}\n", err), err


@pytest.mark.usefixtures("registered")
def test_the_command_measures_what_is_asked_and_writes_all_that_is_done(tmp_path):
    def call(*arguments):
        common = ["evaluate", "--network", "tiny", "--data", tmp_path, "--out", tmp_path / "out", "--workers", 0]
        return CliRunner().invoke(cli.app, [str(one) for one in (*common, *arguments)])

    first = call("--methods", "MAP, LL-E", "--layers", "last")
    assert first.exit_code == 0, first.output
    folder = tmp_path / "out" / "cpu" / "tiny-tiny"

    def measured():
        with (folder / "results.csv").open() as file:
            return [(one["method"], one["seed"]) for one in csv.DictReader(file) if one["metric"] == "accuracy"]

    assert measured() == [("MAP", "0"), ("LL-E", "0"), ("LL-E", "1")]
    for part in ("Penultimate features, as in the paper: AUROC, Small", "cells are not done yet", "4 jobs"):
        assert part in first.output
    more = call("--methods", "Energy", "--layers", "last")
    assert "1 jobs" in more.output
    assert measured() == [("MAP", "0"), ("Energy", "0"), ("LL-E", "0"), ("LL-E", "1")]
