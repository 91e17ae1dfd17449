"""Watches: what they find, what they tell, and that they resume and merge as they should."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from children import network
from repulse import CheckpointError, DataError, RecipeError
from repulse._tensors import write_tensors
from repulse.decide.calibration import Calibration
from repulse.decide.estimate import Reliability
from repulse.decide.martingales import BETS
from repulse.prediction import ClassPrediction
from saved_ensembles import fitted

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


def predictions(count, seed, doubt=0.0, apart=0.0):
    """Synthetic predictions of two heads: `doubt` adds to the doubt they share, `apart` to their disagreement."""
    made = torch.Generator().manual_seed(seed)
    margin = 3 - doubt + torch.randn(count, generator=made)
    spread = (0.3 + apart) * torch.randn(count, generator=made).abs()
    logits = torch.stack([margin + spread, margin - spread]).unsqueeze(-1) * torch.tensor([0.5, -0.5])
    return ClassPrediction(logits.log_softmax(-1))


def drawn_labels(prediction, seed):
    return torch.multinomial(prediction.probs, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


@pytest.fixture(scope="module")
def gate():
    from repulse.decide.calibration import rows_of
    from repulse.decide.gate import Basis, Gate
    from repulse.decide.promise import Promise

    ensemble = fitted(network())
    prediction, promise = predictions(1500, 0), Promise(risk=0.1)
    rows = rows_of(prediction, drawn_labels(prediction, 1), promise)
    return Gate(ensemble, promise, rows, Basis(1500, "data", "today", "0", "network", "heads", "recipe"))


def followed(gate, watch, count, seed, **change):
    for part in range(count // 250):
        watch.update(gate.decide(predictions(250, 100 * seed + part, **change)))
    return watch.history[-1]


def test_quiet_streams_raise_no_alarm_and_foreign_ones_do(gate):
    quiet = gate.watch()
    record = followed(gate, quiet, 2000, 1)
    assert not quiet.alarm
    assert record.alarm is None
    assert (record.seen, record.window) == (2000, 1000)
    assert 0.4 < record.p_epistemic < 0.6
    assert record.foreign < 0.1
    record = followed(gate, quiet, 1000, 2, apart=2.0)
    assert quiet.alarm
    assert 2000 < quiet.alarms["epistemic"] < 3000
    assert "new kinds of input" in record.alarm
    assert record.evidence_epistemic > 2


def test_harder_inputs_are_told_from_new_kinds(gate):
    watch = gate.watch()
    record = followed(gate, watch, 1500, 3, doubt=1.5)
    assert watch.alarms["total"] is not None
    assert "harder inputs" in record.alarm
    assert record.evidence_total > 5 * max(record.evidence_epistemic, 0)


@pytest.mark.parametrize("bet", BETS)
def test_a_watch_that_was_saved_goes_on_exactly(gate, bet, tmp_path):
    whole, part = gate.watch(bet=bet, window=300), gate.watch(bet=bet, window=300)
    followed(gate, whole, 500, 4), followed(gate, part, 500, 4)
    part.save(tmp_path / "watch.safetensors")
    part = gate.resume(tmp_path / "watch.safetensors")
    one, two = followed(gate, whole, 500, 5, apart=1.0), followed(gate, part, 500, 5, apart=1.0)
    assert {**asdict(one), "time": ""} == {**asdict(two), "time": ""}
    assert whole.metrics() == part.metrics()
    assert (whole.alarms, whole.counts, len(whole.history)) == (part.alarms, part.counts, len(part.history))


def test_a_file_that_is_no_watch_of_this_gate_is_refused(gate, tmp_path):
    path = gate.watch().save(tmp_path / "watch")
    other = type(gate)(gate.ensemble, gate.promise, gate.thresholds.rows, replace(gate.basis, data="other"))
    with pytest.raises(CheckpointError, match="a watch of this gate"):
        other.resume(path)
    content = path.read_bytes()
    for changed in (content[:-20], content[:-3] + b"\xff" + content[-2:], content.replace(b"0.01", b"0.02"), b""):
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"a whole safetensors file|one that was changed since"):
            gate.resume(path)
    with pytest.raises(CheckpointError, match="a whole safetensors file"):
        gate.resume(tmp_path / "nothing")
    for said in ({}, {"watch": "3"}, {"watch": "{}"}, {"watch": "x"}):
        write_tensors(path, {"last": torch.zeros(1)}, said)
        with pytest.raises(CheckpointError, match="a watch that was saved"):
            gate.resume(path)
    with pytest.raises(CheckpointError, match="Expected `path` to be a file that can be written"):
        gate.watch().save(path / "below")


def test_two_watches_merge_with_a_higher_bar(gate):
    one, two = gate.watch(false_alarm=0.05), gate.watch(false_alarm=0.05, seed=1)
    followed(gate, one, 500, 6), followed(gate, two, 750, 7)
    both = one.merge(two)
    assert both.seen == 1250
    assert both.counts == {name: one.counts[name] + two.counts[name] for name in one.counts}
    assert both.record().window == 1250
    assert both._threshold == pytest.approx(math.log(4 / 0.05))
    assert not both.alarm
    followed(gate, both, 500, 8)  # goes on, and leaves the first as it was
    assert (one.seen, both.seen) == (500, 1750)
    followed(gate, two, 1000, 9, apart=2.0)
    assert two.alarm
    assert one.merge(two).alarm  # far beyond either bar
    assert two.merge(one).alarm
    for other in (gate.watch(false_alarm=0.1), 3):
        with pytest.raises(DataError, match="same gate"):
            one.merge(other)


def test_lines_for_logs_and_metrics_for_monitoring(gate):
    watch = gate.watch()
    assert "NaN" in watch.metrics()  # before the first input
    record = followed(gate, watch, 500, 10)
    line = record.json()
    assert "\n" not in line
    assert json.loads(line) == asdict(record)
    assert "no alarm" in str(record)
    assert "500 inputs" in repr(watch)
    metrics = watch.metrics().splitlines()
    assert f'repulse_inputs_total{{action="accept"}} {watch.counts["accept"]}' in metrics
    names = {text.split("{")[0] for text in metrics if not text.startswith("#")}
    typed = {text.split()[2] for text in metrics if text.startswith("# TYPE")}
    assert names == typed == {
        f"repulse_{name}"
        for name in (
            "inputs_total", "window_share", "p_value_mean", "drift_evidence_log10", "drift_alarm", "estimated_accuracy"
        )
    }  # fmt: skip


def test_history_stays_short_and_is_drawn(gate, tmp_path, monkeypatch):
    monkeypatch.setattr("repulse.decide.watch.MOST_RECORDS", 6)
    watch = gate.watch()
    followed(gate, watch, 2500, 11)
    assert 3 <= len(watch.history) <= 6
    evidence, *others = watch.plot(tmp_path / "watch.png").axes
    assert len(others) == 2
    assert not any("after" in text.get_text() for text in evidence.get_legend().get_texts())
    followed(gate, watch, 250, 12, apart=4.0)
    told = f"alarm, after {min(when for when in watch.alarms.values() if when):,} inputs"
    assert told in [text.get_text() for text in watch.plot().axes[0].get_legend().get_texts()]
    assert (tmp_path / "watch.png").stat().st_size > 5000


def test_settings_are_checked(gate):
    for settings in ({"false_alarm": 0.0}, {"bet": "dice"}, {"window": 0}):
        with pytest.raises((RecipeError, TypeError)):
            gate.watch(**settings)


# Estimates without labels


def test_the_interval_holds_the_accuracy_of_a_window():
    """Over draws of calibration data and windows; the window is harder than the calibration data."""
    inside, draws = 0, 80
    for i in range(draws):
        calibration, window = predictions(600, 1000 + i), predictions(400, 5000 + i, doubt=1.0)
        error = (drawn_labels(calibration, i) != calibration.labels).double()
        doubt = (1 - calibration.confidence).double()
        rows = Calibration(doubt, doubt, doubt, error, calibration.labels, doubt)
        found = Reliability(rows, classes=True).estimate((1 - window.confidence).double().numpy())
        true = float((drawn_labels(window, 9000 + i) != window.labels).double().mean())
        inside += found.low <= true <= found.high
    assert inside >= 0.88 * draws


def test_the_estimate_of_an_absolute_error_scales_with_the_deviation():
    made = np.random.default_rng(0)
    std = torch.from_numpy(made.uniform(0.5, 2, 4000))
    error = (std * torch.from_numpy(made.normal(size=4000))).abs()
    reliability = Reliability(Calibration(std, std, std, error, torch.zeros(4000).long(), std), classes=False)
    found = reliability.estimate(made.uniform(1.5, 2, 500))
    assert found.low < 1.75 * math.sqrt(2 / math.pi) < found.high
    assert found.high - found.low < 0.3
    assert math.isnan(reliability.estimate(np.empty(0)).value)
