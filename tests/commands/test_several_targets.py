"""Several labels, and several numbers, from fit to report, in bulk and over HTTP."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet
from typer.testing import CliRunner

from own_data import numbers
from repulse import DataError, cli
from repulse.files.opening import open_heads
from repulse.files.samples import read_samples


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)
    monkeypatch.chdir(tmp_path)


def run(*arguments, code=0):
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


def table(path, task, empty=False):
    """Four numbers, and two labels (or two numbers) in columns of their own."""
    rows, _ = numbers(60)
    found = rows[:, :2] > 0 if task == "multilabel" else rows[:, :2] + rows[:, 2:]
    cells = np.concatenate([rows, found], axis=1).astype(str)
    if empty:
        cells[::7, 5] = ""
    path.write_text("a,b,c,d,left,right\n" + "\n".join(map(",".join, cells)) + "\n")
    return path


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_several_columns_from_fit_to_report(task, tmp_path):
    data = table(tmp_path / "data.csv", task, empty=task == "multilabel")
    what = ("own_data:two_network", data, "--task", task, "--label", "left,right", "--validation", data)
    run("fit", *what)
    ensemble, _, opening = open_heads("heads")
    assert opening.columns.features == ("a", "b", "c", "d")
    rows = read_samples(data, opening.columns, "rows")
    prediction = ensemble.predict(torch.from_numpy(rows.values))
    run("score", "heads", data, "--out", "scores.parquet", "--probs")
    scores = parquet.read_table("scores.parquet")
    assert np.allclose(scores["score"], prediction.score, atol=1e-5)
    if task == "multilabel":
        assert ensemble.class_names == ("left", "right")
        assert set(scores["labels"].to_pylist()) <= {"", "left", "right", "left, right"}
        assert np.allclose(scores["probs"].to_pylist(), prediction.probs, atol=1e-5)
    else:
        for k in range(2):
            assert np.allclose(scores[f"mean {k}"], prediction.mean[:, k], atol=1e-4)
            assert np.allclose(scores[f"epistemic {k}"], prediction.epistemic[:, k], atol=1e-4)
    run("score", "heads", data, "--out", "scores.csv")
    assert csv.read_csv("scores.csv").num_rows == 60
    run("report", "heads", "--test", data, "--ood", f"other={data}")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["counts"] == {"id": 60, "other": 60}


def test_lists_in_cells_and_arrays(tmp_path):
    import pyarrow as pa

    rows, _ = numbers(12)
    lists = pa.table({"x": list(rows), "y": [[1, None]] * 12})
    parquet.write_table(lists, tmp_path / "lists.parquet")
    np.savez(tmp_path / "arrays.npz", features=rows, labels=np.tile([1.0, np.nan], (12, 1)))
    for name in ("lists.parquet", "arrays.npz"):
        found = read_samples(name)
        assert np.array_equal(found.labels, np.tile([1.0, np.nan], (12, 1)), equal_nan=True)


@pytest.mark.parametrize(
    ("task", "label", "sentence"),
    [
        ("multilabel", "left", "0 or 1 in several columns"),
        ("classification", "left,right", "--task multilabel"),
        ("multilabel", "left,middle", "--label names"),
    ],
)
def test_labels_that_do_not_fit_the_task(task, label, sentence, tmp_path):
    data = table(tmp_path / "data.csv", "multilabel")
    done = CliRunner().invoke(cli.app, ["fit", "own_data:two_network", str(data), "--task", task, "--label", label])
    assert isinstance(done.exception, DataError)
    assert sentence in str(done.exception)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_service(task, tmp_path):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from repulse.serve.app import create_app

    data = table(tmp_path / "data.csv", task)
    run("fit", "own_data:two_network", data, "--task", task, "--label", "left,right")
    rows, _ = numbers(3)
    client = TestClient(create_app("heads", hosts=["testserver"]))
    with client:
        told = client.post("/predict", json={"rows": rows.tolist()}).json()["predictions"]
        assert client.get("/health").json()["task"] == task
    ensemble, _, _ = open_heads("heads")
    frame = ensemble.predict(torch.from_numpy(rows)).to_frame(ensemble.class_names)
    for one, (_, row) in zip(told, frame.iterrows(), strict=True):
        assert set(one) == set(frame.columns)
        for name, value in one.items():
            assert value == (row[name] if isinstance(value, str) else pytest.approx(row[name], rel=1e-3, abs=1e-5))
