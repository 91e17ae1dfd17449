"""The gate and the watch from the command line, in bulk scores, in the service and on model cards."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from own_data import numbers, write_rows
from repulse import cli
from repulse.files.opening import open_heads
from repulse.integrations._model_card import card_of


def run(*arguments, code=0):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        done = CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Heads with a gate, and data."""
    folder = tmp_path_factory.mktemp("decided")
    write_rows(folder / "train.csv")
    for name, seed in (("calibration", 1), ("test", 2), ("stream", 3)):
        write_rows(folder / f"{name}.csv", 300, seed)
    run("fit", "own_data:rows_network", folder / "train.csv", "--out", folder / "heads")
    said = run(
        *("gate", folder / "heads", folder / "calibration.csv", "--risk", 0.7, "--false-alarms", 0.1),
        *("--test", folder / "test.csv", "--ood", f"stream={folder / 'stream.csv'}", "--out", folder / "gate.html"),
    )
    assert "foreign: at most 0.1" in said
    assert "accept: at most 0.7 of these are wrong" in said
    assert "next: repulse score" in said
    page = (folder / "gate.html").read_text()
    assert "Called foreign:" in page
    assert re.search(r"<td>k\d+</td><td>(accept|abstain|foreign)</td><td>(no|so|yes)</td>", page)  # by their keys
    return folder


def test_scores_in_bulk_carry_the_decision(folder):
    run("score", folder / "heads", folder / "test.csv", "--out", folder / "scores.parquet", "--workers", 1)
    scores = parquet.read_table(folder / "scores.parquet")
    ensemble, prepare, _ = open_heads(folder / "heads")
    decision = ensemble.gate()(prepare(numbers(300, 2)[0]))
    assert scores["decision"].to_pylist() == list(decision.action)
    assert scores["p_value"].to_pylist() == pytest.approx(decision.p_value.tolist(), abs=1e-6)


def test_a_watch_goes_on_from_call_to_call(folder):
    for _ in range(2):
        said = run("watch", folder / "heads", folder / "stream.csv", "--log", folder / "watch.jsonl", "--strict")
    assert "600 inputs" in said
    assert "no alarm" in said
    lines = [json.loads(line) for line in (folder / "watch.jsonl").read_text().splitlines()]
    assert [line["seen"] for line in lines] == [300, 600]
    far = folder / "far.csv"
    rows = (folder / "stream.csv").read_text().splitlines()
    far.write_text("\n".join([rows[0], *(row.replace(".", "9.") for row in rows[1:])]))
    said = run("watch", folder / "heads", far, "--strict", "--plot", folder / "watch.png", code=1)
    assert "ALARM" in said
    assert (folder / "watch.png").exists()


def test_a_sorted_file_raises_no_alarm_unless_its_order_is_that_of_the_stream(folder):
    """Sorted by doubt, an ordinary file is a change from the easy to the hard."""
    ensemble, prepare, _ = open_heads(folder / "heads")
    doubt = ensemble.predict(prepare(numbers(300, 3)[0])).epistemic
    head, *rows = (folder / "stream.csv").read_text().splitlines()
    path = folder / "sorted.csv"
    path.write_text("\n".join([head, *(rows[i] for i in doubt.argsort().tolist())]))
    said = [
        run("watch", folder / "heads", path, "--state", folder / f"sorted{i}", *how)
        for i, how in enumerate(((), ["--in-order"]))
    ]
    assert "no alarm" in said[0]
    assert "ALARM: new kinds of input" in said[1]


def test_a_watch_of_an_earlier_gate_says_what_to_do(folder, tmp_path):
    path = open_heads(folder / "heads")[0].gate().watch().save(tmp_path / "watch.state")
    shutil.copytree(folder / "heads", tmp_path / "heads")
    run("gate", tmp_path / "heads", folder / "test.csv")
    said = CliRunner().invoke(
        cli.app, ["watch", str(tmp_path / "heads"), str(folder / "test.csv"), "--state", str(path)]
    )
    assert "remove the file to begin anew" in str(said.exception)


def test_the_service_decides_and_its_metrics_are_those_of_the_watch(folder):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from repulse.serve.app import create_app

    with TestClient(create_app(folder / "heads"), base_url="http://localhost") as client:
        rows = numbers(5, 4)[0].tolist()
        found = client.post("/predict", json={"rows": rows}).json()["predictions"]
        assert {one["action"] for one in found} <= {"accept", "abstain", "foreign"}
        assert all(one["prediction"] in one["set"] and 0 < one["p_value"] <= 1 for one in found)
        metrics = client.get("/metrics").text
    counts = [float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("repulse_inputs_total")]
    assert sum(counts) == 5


def test_the_watch_of_a_service_outlives_it(folder, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from repulse.serve import app

    rows, state = numbers(8, 5)[0].tolist(), tmp_path / "watch.state"
    gate = open_heads(folder / "heads")[0].gate()
    for seen in (8, 16):
        with TestClient(app.create_app(folder / "heads", watch=state), base_url="http://localhost") as client:
            client.post("/predict", json={"rows": rows})
        assert gate.resume(state).seen == seen
    monkeypatch.setattr(app, "KEEP_EVERY", 3)
    with TestClient(app.create_app(folder / "heads", watch=state), base_url="http://localhost") as client:
        client.post("/predict", json={"rows": rows})
        assert gate.resume(state).seen == 24  # also while it runs


def test_model_cards_carry_the_promise(folder):
    ensemble = open_heads(folder / "heads")[0]
    card = card_of(ensemble, None, "license: mit")
    assert "## What its gate promises" in card
    assert "- foreign: at most 0.1 of familiar inputs" in card
