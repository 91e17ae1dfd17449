"""`repulse why` and `repulse audit` on tables, texts and images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import repulse
from own_data import numbers, write_images, write_rows, write_texts
from repulse import cli
from repulse.commands.why import rows_in
from repulse.decide import Reasons
from repulse.errors import DataError
from repulse.files.opening import open_heads


def run(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        done = CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    if isinstance(done.exception, DataError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reasons")
    write_rows(folder / "train.csv")
    write_rows(folder / "new.csv", 200, 1)
    run("fit", "own_data:rows_network", folder / "train.csv", "--out", folder / "heads")
    return folder


def test_lines_are_those_of_the_library(folder):
    said = run("why", folder / "heads", folder / "new.csv", "--rows", "3,5-6")
    ensemble, prepare, _ = open_heads(folder / "heads")
    reasons = ensemble.why(prepare(numbers(200, 1)[0][[3, 5, 6]]))
    assert isinstance(reasons, Reasons)
    keys = ("k3", "k5", "k6")
    assert said.splitlines()[:3] == [f"{key}: {one.text}" for key, one in zip(keys, reasons, strict=True)]
    assert "next: repulse why" in said


def test_without_rows_the_most_doubted_come_first(folder):
    said = run("why", folder / "heads", folder / "new.csv", "--out", folder / "why.json").splitlines()
    ensemble, prepare, _ = open_heads(folder / "heads")
    doubt = ensemble.predict(prepare(numbers(200, 1)[0])).epistemic
    assert [line.split(":")[0] for line in said[:10]] == [f"k{i}" for i in doubt.argsort(descending=True)[:10]]
    records = json.loads((folder / "why.json").read_text())
    assert [one["key"] for one in records] == [line.split(":")[0] for line in said[:10]]
    assert sum(records[0]["shares"].values()) == pytest.approx(1, abs=1e-5)
    assert len(records[0]["nearest"]) == 5
    assert records[0]["text"] in said[0]


def test_what_the_gate_decides_comes_before_the_reasons(folder, tmp_path):
    write_rows(tmp_path / "calibration.csv", 100, 2)
    run("fit", "own_data:rows_network", folder / "train.csv", "--out", tmp_path / "heads")
    run("gate", tmp_path / "heads", tmp_path / "calibration.csv")
    said = run("why", tmp_path / "heads", folder / "new.csv")  # the features are still there
    assert said.splitlines()[0].split(": ")[1] == "foreign"
    assert "were not kept" not in said


def test_pages_show_pictures_and_their_neighbours(tmp_path):
    images = write_images(tmp_path / "images")
    run("fit", "own_data:image_network", images, "--out", tmp_path / "heads")
    run("why", tmp_path / "heads", images, "--rows", "0,9", "--out", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text()
    assert "cat/0.png" in page
    assert "dog/1.png" in page
    assert page.count("<image ") == 2 * (2 + 5)  # of each, itself, itself under a map, and five training images
    said = run("audit", tmp_path / "heads", images, "--out", tmp_path / "audit.html")
    assert "16 inputs" in said
    run("audit", tmp_path / "heads", images, "--out", tmp_path / "audit.csv")
    with (tmp_path / "audit.csv").open(newline="") as file:
        other = [row for row in csv.DictReader(file) if row["label"] != row["predicted"]]
    assert 0 < len(other) < 16  # pictures of which the heads say something else
    assert (tmp_path / "audit.html").read_text().count("<img ") == len(other)


def test_pages_show_texts_and_their_neighbours(tmp_path):
    texts = write_texts(tmp_path / "train.csv")
    run("fit", "own_data:text_network", texts, "--out", tmp_path / "heads")
    run("why", tmp_path / "heads", texts, "--rows", "1", "--out", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text()
    assert page.count("near it: “") == 5


def test_an_audit_lists_what_the_library_finds(folder):
    said = run("audit", folder / "heads", folder / "new.csv", "--out", folder / "audit.csv")
    with (folder / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ensemble, prepare, _ = open_heads(folder / "heads")
    values, labels = numbers(200, 1)
    found = repulse.audit(ensemble, [(prepare(values), torch.from_numpy(labels))])
    assert [row["input"] for row in rows] == [f"k{i}" for i in found.order.tolist()]
    assert [row["label"] for row in rows] == [("no", "so", "yes")[labels[i]] for i in found.order.tolist()]
    assert said.splitlines()[0] == str(found).splitlines()[0]
    assert f"next: repulse why {folder / 'heads'} {folder / 'new.csv'} --rows {int(found.order[0])}" in said


def test_an_audit_of_the_training_data_leaves_itself_out(folder):
    run("audit", folder / "heads", folder / "train.csv", "--out", folder / "own.csv")
    with (folder / "own.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert not any("copy of" in row["found"] for row in rows)  # none is its own copy


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("why", ("--out", "why.txt"), "ends in .html or .json"),
        ("why", ("--rows", "3-x"), "numbers and ranges"),
        ("why", ("--rows", "200"), "from 0 to 199"),
        ("audit", ("--out", "audit.txt"), "ends in .html or .csv"),
    ],
)
def test_what_is_refused(command, options, said, folder):
    with pytest.raises(DataError, match=said):
        run(command, folder / "heads", folder / "new.csv", *options)


def test_without_features_there_are_no_neighbours(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("repulse.commands.fit.MAX_KEPT", 10)
    said = run("fit", "own_data:rows_network", folder / "train.csv", "--out", tmp_path / "heads")
    assert "has no features of the training data" in said
    said = run("why", tmp_path / "heads", folder / "new.csv", "--rows", "0")
    assert "were not kept" in said
    with pytest.raises(DataError, match="which `repulse fit` keeps"):
        run("audit", tmp_path / "heads", folder / "train.csv")


def test_rows():
    assert rows_in("0,2-3, 2", 4) == [0, 2, 3]
