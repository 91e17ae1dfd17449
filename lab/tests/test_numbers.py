"""Every number under one name is one number: in the result files, and on the pages that show them."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from repulse_lab.paper import registry
from repulse_lab.study.evaluate import EVALUATIONS
from repulse_lab.study.experiment import Outcome
from repulse_lab.study.output import markdown, read, write

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/*/results.csv"))
TIMES = ("fit_seconds", "milliseconds")
CLOSE = 0.02
"""Percentage points by which two runs of a cell may differ, for sums come out differently on other processors."""


@cache
def tables_script(name: str = "tables") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def problem_of(experiment: str) -> str:
    """Return the problem of an experiment, or its own name if it is no grid."""
    for network, (grid, _, _) in EVALUATIONS.items():
        if experiment == f"{grid.problem}-{network}":
            return grid.problem
    grid = getattr(importlib.import_module(f"repulse_lab.paper.{experiment.replace('-', '_')}"), "GRID", None)
    return experiment if grid is None else grid.problem


def cells(folder: Path) -> dict[tuple[str, ...], float]:
    """Return the numbers of an experiment by all that decides them."""
    found = {}
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            plain = {line["method"], f"{line['method']}, {line['repulsion']}"}
            row = line.get("row") or ""
            about = [line[key] for key in ("preset", "network", "method", "repulsion", "layers", "seed", "metric")]
            others = [line.get(key) or "" for key in ("task", "data", "rows", "collection", "beyond", "build")]
            key = (problem_of(folder.name), "" if row in plain else row, *others, *about)
            if line["metric"] not in TIMES:
                assert key not in found, key
                found[key] = float(line["value"])
    return found


def test_new_cells_take_the_place_of_committed_ones_and_the_others_stay(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tables", tables_script())
    committed = read(RESULTS / "cpu" / "human-ambiguity")
    again, *others = committed.outcomes
    measured = Outcome(again.labels, "again", {"figures": {**again.figures, "ece": 77.77}})
    write(replace(committed, outcomes=[measured], tables=[], figures=[]), tmp_path / "new" / committed.name)
    write(committed, tmp_path / "kept" / committed.name)
    tables_script("results").overlay(tmp_path / "new", tmp_path / "kept")
    found = read(tmp_path / "kept" / committed.name)
    assert [one.key for one in found.outcomes] == ["again", *(one.key for one in others)]
    assert "77.77" in markdown(found)
    assert len(found.tables) == len(committed.tables)
    assert (tmp_path / "kept" / "claims.json").is_file()


def test_experiments_agree_wherever_they_measure_the_same():
    first: dict[tuple[str, ...], tuple[float, str]] = {}
    shared = 0
    for folder in FOLDERS:
        for key, value in cells(folder).items():
            if key in first:
                shared += 1
                assert value == pytest.approx(first[key][0], abs=CLOSE, rel=1e-3), (key, folder.name, first[key][1])
            else:
                first[key] = value, folder.name
    assert shared > 1000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_tables_of_an_experiment_are_those_of_its_numbers(folder):
    findings = read(folder)
    kept = sorted(value for outcome in findings.outcomes for value in outcome.figures.values())
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        assert kept == sorted(float(line["value"]) for line in csv.DictReader(file))
    assert (folder / "tables.md").read_text(encoding="utf-8") == markdown(findings)
    known = {*registry.NAMES, *(f"{grid.problem}-{network}" for network, (grid, _, _) in EVALUATIONS.items())}
    assert findings.name in known


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, name, _ in tables_script().pages()])
def test_pages_show_the_numbers_of_the_results(page, name):
    (wanted,) = [text() for where, what, text in tables_script().pages() if (where, what) == (page, name)]
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"{page.name} has no place for the table {name}"
    assert found[1].strip() == wanted.strip()
