"""Gates over draws and watches over streams, on pools whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repulse import Promise
from repulse.decide.calibration import Thresholds
from repulse_lab.decisions import gates, watches
from repulse_lab.decisions.pools import as_calibration


def pool(count=1200):
    """Errors have probability `doubt / 10`."""
    made = torch.Generator().manual_seed(0)
    doubt, score, chance = torch.rand(3, count, generator=made).double()
    error = (chance < 0.1 * doubt).double()
    columns = {"score": score, "total": score + doubt, "doubt": doubt, "error": error, "lac": doubt}
    return {**columns, "predicted": torch.zeros(count).long()}


def test_gates_over_draws_hold_their_promise():
    promise = Promise(risk=0.08, delta=0.1)
    found = gates.over_draws(pool(), promise, 500, 20).means(promise)
    assert found["false_alarms"] == pytest.approx(0.05, abs=0.02)
    assert found["missed"]["lac"] == pytest.approx(0.1, abs=0.03)
    assert 0 < found["error"] <= 0.08
    assert found["broken"] <= 0.3
    assert found["coverage"] > 0.3
    (row,) = gates.markdown("a pool", promise, [found])
    assert row.count("|") == gates.HEAD[0].count("|") == gates.HEAD[1].count("|")


def test_a_gate_of_a_draw_is_the_gate_of_its_samples():
    """What is told of one draw, computed again by hand."""
    rows, promise = pool(), Promise(risk=0.08, delta=0.1)
    found = gates.over_draws(rows, promise, 400, 3)
    inside = torch.randint(1200, (400,), generator=torch.Generator().manual_seed(2))
    limit = rows["score"][inside].sort().values[400 - 20]  # one of 401 in twenty may lie above
    assert found.false_alarms[2] == (rows["score"] > limit).double().mean()
    gate = Thresholds(promise, as_calibration(rows, "lac")[inside])
    accepted = (rows["score"] < limit) & (rows["doubt"] <= gate.doubt)
    assert found.coverage[2] == accepted.double().mean()
    assert found.error[2] == rows["error"][accepted].mean()
    assert bool(found.held[2]) == (gate.doubt > 0)


def test_watches_find_a_change_and_windows_do_too():
    usual = {"score": torch.randn(2000, generator=torch.Generator().manual_seed(0)), "total": torch.arange(2000.0)}
    other = {"score": torch.full((10,), 6.0), "total": torch.arange(10.0)}
    quiet = watches.drawn(usual, usual, 0, 10, 1600, 200, 0)
    changed = watches.drawn(usual, other, 0.5, 10, 1600, 200, 1)
    assert np.isinf(watches.alarms(watches.p_values(quiet), "switching", 0.01)).all()
    when = watches.alarms(watches.p_values(changed), "switching", 0.01)
    assert ((when > watches.QUIET) & (when < watches.QUIET + 100)).all()
    assert watches.delay(when) < 100
    bars = watches.windowed_bars(quiet, 0.1)
    assert np.isfinite(watches.windowed_alarms(bars, quiet)).mean() <= 0.1
    assert watches.delay(watches.windowed_alarms(bars, changed)) < 300
    assert watches.delay(np.array([np.inf, 5.0])) == np.inf
    fixed = watches.p_values(quiet, fixed=True)
    assert 0 < fixed.min() < fixed.max() <= 1


def test_scores_of_one_input_stay_together():
    rows = {"score": torch.arange(50.0), "total": 100 + torch.arange(50.0)}
    far = {"score": torch.arange(900.0, 950), "total": torch.arange(1000.0, 1050)}
    drawn = watches.drawn(rows, far, 0.5, 4, watches.QUIET + 100, 20, 0)
    assert (drawn.scores[1] - drawn.scores[0] == 100).all()
    assert (drawn.scores[0, :, : watches.QUIET] < 50).all()
    assert 0.3 < (drawn.scores[0, :, watches.QUIET :] >= 900).mean() < 0.7
