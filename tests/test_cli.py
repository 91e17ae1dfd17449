"""The command line, run as a user runs it (so without the checks of shapes and types); the demo once, whole."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import jaxtyping
import pytest
from typer.testing import CliRunner

import repulse
from repulse import cli
from repulse.demo import run as demo


@pytest.fixture(scope="module", autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def test_version():
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"repulse {repulse.__version__}\n")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "repulse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"repulse {repulse.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_names_the_commands(arguments):
    done = run(*arguments)
    assert done.exit_code == (0 if arguments else 2)
    assert "Usage: repulse" in done.output
    assert re.search(r"demo\s+Train a small network on digits", done.output)


def test_help_of_the_demo_names_its_options():
    done = run("demo", "--help")
    assert done.exit_code == 0
    for option in ("--out", "--seeds", "--map", "--browse"):
        assert option in done.output


@pytest.mark.parametrize("seeds", ["0", "-1", "many"])
def test_a_number_of_seeds_that_makes_no_sense_is_refused(seeds, tmp_path):
    done = run("demo", "--seeds", seeds, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "--seeds" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("absent", [["sklearn"], ["matplotlib"], ["sklearn", "matplotlib"]])
def test_without_its_extra_the_demo_says_what_to_install(absent, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else found(name, *more))
    done = run("demo", "--out", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"repulse demo needs {' and '.join(absent)}: pip install 'repulse[demo]'\n"
    assert not (tmp_path / "out").exists()


def test_errors_of_the_library_are_one_sentence(monkeypatch, capsys):
    def fail(*_, **__):
        raise repulse.DataError("Expected `x` to be y, but got z.")

    monkeypatch.setattr(demo, "run", fail)
    monkeypatch.setattr(sys, "argv", ["repulse", "demo"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "repulse: Expected DATA to be y, but got z.\n"


class Cells(HTMLParser):
    """The text of every cell, row by row, and the pictures of a page."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.images, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag in ("th", "td")
        if tag == "tr":
            self.rows.append([])
        elif tag == "img":
            self.images.append(dict(attrs)["src"])
        elif self.inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")  # some variant is worse than the network
def test_demo(tmp_path):
    """One run, because it takes a while: what it prints, writes and shows agrees."""
    out = tmp_path / "new"
    done = run("demo", "--seeds", 1, "--out", out, "--map", out / "map.png")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in out.iterdir()) == ["index.html", "map.png", "results.json"]
    assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
    html = (out / "index.html").read_text(encoding="utf-8")
    record = json.loads((out / "results.json").read_text())
    assert record["seeds"] == 1
    results = {name: seed for name, (seed,) in record["results"].items()}
    assert list(results) == ["network alone", "LL-E", "fs-RLL-E", "repulse"]

    lines = done.stdout.splitlines()
    table = [re.split(r"\s{2,}", line) for line in lines[:5]]
    on_page = Cells(html)
    check_table(results, [[cell.removesuffix(" *") for cell in row] for row in table])
    check_table(results, on_page.rows)
    check_stars(results, table[1:])
    assert f"The page: {out / 'index.html'}" in lines
    assert any(line.startswith("One seed; * marks the best") for line in lines)

    assert len(on_page.images) == 30
    assert all(image.startswith("data:image/png;base64,") for image in on_page.images)
    assert html.count("<svg") == 2
    lead = re.search(r'class="lead">([^<]*)', html).group(1)
    alone, plain, _, repelled = (results[name]["ambig./photo"] for name in results)
    assert alone < plain < repelled  # no golden number: only what the page claims in its first sentence
    assert f"{alone:.1f}" in lead
    assert f"{repelled:.1f}" in lead

    def refuse(name):
        raise ValueError(f"{name} is not JSON, though Python writes it")

    json.loads((out / "results.json").read_text(), parse_constant=refuse)


def check_table(results, rows):
    """Every figure is the one in the file, with its digits."""
    assert rows[0] == ["method", *(column.heading for column in demo.COLUMNS)]
    for (name, values), row in zip(results.items(), rows[1:], strict=True):
        numbers = [(values[column.name], column.digits) for column in demo.COLUMNS]
        shown = ["–" if v is None or math.isnan(v) else f"{v:.{digits}f}" for v, digits in numbers]
        assert row == [name, *shown]


def check_stars(results, rows):
    """The best as printed is starred in columns that have a best, unless all are equal."""
    for j, column in enumerate(demo.COLUMNS):
        if not column.better:
            wanted = [False] * len(rows)
        else:
            means = [round(values[column.name], column.digits) for values in results.values()]
            best = (max if column.better == "higher" else min)(means)
            wanted = [mean == best and len(set(means)) > 1 for mean in means]
        assert [row[j + 1].endswith(" *") for row in rows] == wanted
