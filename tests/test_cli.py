"""The command line, run as a user runs it (so without the checks of shapes and types); the demo once, whole."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import jaxtyping
import pytest
from typer.testing import CliRunner

import repulse
from repulse import cli
from repulse.experiments import demo


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


def test_without_the_lab_extra_the_demo_says_what_to_install(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    absent = {"sklearn", "jinja2"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else found(name, *more))
    done = run("demo", "--out", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "repulse demo needs sklearn, jinja2: install the `lab` extra, `pip install 'repulse[lab]'`.\n"
    assert not (tmp_path / "out").exists()


def test_errors_of_the_library_are_one_sentence(monkeypatch, capsys):
    def fail(*_, **__):
        raise repulse.DataError("Expected `x` to be y, but got z.")

    monkeypatch.setattr(demo, "run", fail)
    monkeypatch.setattr(sys, "argv", ["repulse", "demo"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "repulse: Expected `x` to be y, but got z.\n"


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


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new"
    done = run("demo", "--seeds", 1, "--out", out, "--map", out / "map.png")
    assert done.exit_code == 0, done.output
    return done, out


def no_constants(name):
    raise ValueError(f"{name} is not JSON")


def test_demo_says_the_same_in_the_terminal_on_the_page_and_in_the_file(demonstration):
    done, out = demonstration
    results = json.loads((out / "results.json").read_text())
    assert (results["seeds"], list(results["results"])) == (1, ["network alone", "LL-E", "fs-RLL-E"])
    head, *printed = [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()[:4]]
    page_head, *page = Cells((out / "index.html").read_text(encoding="utf-8")).rows
    assert head == page_head == ["method", *(column.heading for column in demo.COLUMNS)]
    for (name, (seed,)), in_terminal, on_page in zip(results["results"].items(), printed, page, strict=True):
        values = [seed[column.name] for column in demo.COLUMNS]
        wanted = [
            "–" if value is None or math.isnan(value) else f"{value:.{column.digits}f}"
            for value, column in zip(values, demo.COLUMNS, strict=True)
        ]
        assert [cell.removesuffix(" *") for cell in in_terminal] == [name, *wanted]
        assert on_page == [name, *wanted]
    assert f"The page: {out / 'index.html'}" in done.stdout
    assert "One seed" in done.stdout


def test_demo_stars_the_best(demonstration):
    done, out = demonstration
    results = json.loads((out / "results.json").read_text())["results"]
    for i, line in enumerate(done.stdout.splitlines()[1:4]):
        cells = re.split(r"\s{2,}", line)[1:]
        for column, cell in zip(demo.COLUMNS, cells, strict=True):
            means = [round(seeds[0][column.name], column.digits) for seeds in results.values() if column.better]
            best = (
                bool(means) and means[i] == (max if column.better == "higher" else min)(means) and len(set(means)) > 1
            )
            assert cell.endswith(" *") == best, (column.name, cell)


def test_demo_shows_that_repulsion_helps(demonstration):
    """Far from a golden number: what the page claims in its first sentence."""
    _, out = demonstration
    results = json.loads((out / "results.json").read_text())["results"]
    alone, plain, repelled = (results[name][0]["ambig./photo"] for name in ("network alone", "LL-E", "fs-RLL-E"))
    assert alone < plain < repelled
    lead = re.search(r'class="lead">([^<]*)', (out / "index.html").read_text()).group(1)
    assert f"{alone:.1f}" in lead
    assert f"{repelled:.1f}" in lead


def test_demo_writes_a_page_with_pictures_and_a_map(demonstration):
    _, out = demonstration
    assert sorted(p.name for p in Path(out).iterdir()) == ["index.html", "map.png", "results.json"]
    assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "index.html").read_text()
    images = Cells(text).images
    assert len(images) == 30
    assert all(image.startswith("data:image/png;base64,") for image in images)
    assert text.count("<svg") == 2


def test_demo_writes_numbers_that_every_json_reader_takes(demonstration):
    """NaN is no JSON, though Python writes it."""
    _, out = demonstration
    json.loads((out / "results.json").read_text(), parse_constant=no_constants)
