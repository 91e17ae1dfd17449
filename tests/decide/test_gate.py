"""Gates: what they decide, what they promise, what they refuse, and that they come back as they were."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import jaxtyping
import pytest
import torch
from scipy import stats

import repulse
from children import batches, network
from repulse import CheckpointError, DataError, Promise, PromiseWarning, RecipeError
from repulse.decide.calibration import Calibration, Thresholds
from repulse.decide.gate import calibrate
from saved_ensembles import QUICK, about, fitted, write

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture(scope="module")
def ensemble():
    return fitted(network())


@pytest.fixture(scope="module")
def numbers():
    """An ensemble for regression, and data it was not fitted to."""
    made = torch.Generator().manual_seed(1)
    x = torch.randn(400, 3, generator=made)
    y = x[:, 0] + 0.3 * torch.randn(400, generator=made)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    recipe = QUICK.replace(task="regression", epochs=20)
    return fitted(model, data=[(x[:100], y[:100])], recipe=recipe), (x[100:], y[100:])


def calibration(seed=9, count=300):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(count, *batches()[0][0].shape[1:], generator=made)


def labelled(ensemble, seed=9, count=300, flipped=0.0):
    """Inputs with the labels that are predicted, but for some."""
    x = calibration(seed, count)
    labels = ensemble.predict(x).labels
    wrong = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < flipped
    return x, torch.where(wrong, (labels + 1) % 3, labels)


def test_actions_follow_p_value_and_doubt(ensemble):
    x, y = labelled(ensemble, flipped=0.02)
    gate = ensemble.gate((x, y), false_alarms=0.1, risk=0.1)
    d = gate(x)
    prediction = ensemble.predict(x)
    assert torch.equal(d.foreign, prediction.epistemic.double() > gate.thresholds.foreign)
    assert torch.equal(d.foreign, d.p_value <= 0.1)
    known = prediction.epistemic.double() < gate.thresholds.foreign
    assert torch.equal(d.accepted, known & (1 - prediction.confidence <= gate.thresholds.doubt))
    assert torch.equal(d.abstained, ~d.foreign & ~d.accepted)
    assert d.counts() == {name: d.action.count(name) for name in ("accept", "abstain", "foreign")}
    assert torch.equal(d.labels, prediction.labels)
    assert bool(d.sets.gather(1, d.labels.unsqueeze(1)).all())


def test_a_decision_is_frozen_sliced_and_told(ensemble):
    x, y = labelled(ensemble)
    ensemble.class_names = ("ant", "<bee>", "cat")
    try:
        d = ensemble.gate((x, y))(x)
    finally:
        ensemble.class_names = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.foreign = d.accepted
    assert d[3].action == d.action[3:4]
    assert d[-1].action == d.action[-1:]
    assert len(d[d.foreign]) == len(d[d.foreign].prediction) == int(d.foreign.sum()) > 0
    first = d.records()[0]
    assert json.loads(json.dumps(first)) == first
    assert first["label"] in ("ant", "<bee>", "cat")
    assert first["label"] in first["set"]
    assert str(d).splitlines() == d.lines()
    assert len(d.lines()) == 300
    assert d.lines()[0].startswith(f"{first['action']:<8} {first['label']}")
    page = d._repr_html_()
    assert "and 280 more" in page
    assert "<bee>" not in page


def test_batches_with_false_discoveries(ensemble):
    x, y = labelled(ensemble)
    gate = ensemble.gate((x, y), false_alarms=0.1)
    mixed = torch.cat([calibration(11, 40), 30 * calibration(12, 10)])
    whole = gate(mixed, false_discoveries=0.2)
    assert torch.equal(whole.foreign, repulse.decide.benjamini_hochberg(gate(mixed).p_value, 0.2))
    assert not bool((whole.accepted & (whole.foreign | gate(mixed).foreign)).any())


def test_a_gate_for_numbers(numbers):
    ensemble, (x, y) = numbers
    gate = ensemble.gate((x, y), risk=0.2, tolerance=1.5)
    d = gate(x)
    assert torch.equal(d.labels, ensemble.predict(x).mean)
    half = (d.sets[:, 1] - d.sets[:, 0]) / 2
    assert torch.allclose(half, gate.thresholds.set_limit * d.prediction.std.double())
    assert float(((d.sets[:, 0] <= y) & (y <= d.sets[:, 1])).double().mean()) >= 0.9
    assert int(d.accepted.sum()) > 0
    assert float(((d.labels - y).abs() > 1.5)[d.accepted].double().mean()) <= 0.2
    assert set(d.records()[0]) == {"action", "p_value", "doubt", "label", "interval"}
    assert " in [" in d.lines()[0]
    assert "off by more than 1.5" in repr(gate)
    other = ensemble.gate((x, y), sets="cqr")(x)
    assert float(((other.sets[:, 0] <= y) & (y <= other.sets[:, 1])).double().mean()) >= 0.9


def test_every_promise_is_said(ensemble):
    gate = ensemble.gate(labelled(ensemble), false_alarms=0.1, risk=0.1, alpha=0.2, sets="aps")
    words = repr(gate)
    for part in ("at most 0.1 of familiar", "with confidence 0.95", "at least 0.8", "sets (aps)", "300 samples"):
        assert part in words, words
    assert gate.basis.version == repulse.__version__


@pytest.mark.parametrize("name", ["false_alarms", "risk", "delta", "alpha"])
def test_shares_that_no_data_can_show_are_refused(name):
    Promise(**{name: 1e-9}).samples_needed()
    for share in (9e-10, 1e-310):
        with pytest.raises(RecipeError, match=f"Expected `{name}` to be at least 1e-09"):
            Promise(**{name: share})


@pytest.mark.parametrize(("task", "got"), [("multilabel", "several labels"), ("regression", "several numbers")])
def test_ensembles_with_several_outputs_are_refused(task, got):
    x = calibration(count=40).flatten(1)
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    made = fitted(model, data=[(x, (x[:, :2] > 0).float())], recipe=QUICK.replace(task=task))
    with pytest.raises(DataError, match=f"for `gate`, to be one that predicts one class or one number.*{got}"):
        made.gate(x)
    with pytest.raises(DataError, match=f"for `audit`.*{got}"):
        repulse.audit(made, progress=False)


# How much data a promise takes


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"false_alarms": 0.01}, 99),
        ({"alpha": 0.01}, 99),
        ({"risk": 0.05}, 112),
        ({"risk": 0.1, "delta": 0.2}, 38),
        ({"risk": 0.2, "by_class": True}, 41),
    ],
)
def test_too_few_samples_are_refused_and_just_enough_are_not(ensemble, settings, needed):
    x, y = labelled(ensemble, count=needed)
    settings = {"false_alarms": 0.2, **settings}
    with pytest.raises(DataError, match=f"at least {needed} samples.* but got {needed - 1}"):
        ensemble.gate((x[1:], y[1:]), **settings)
    calibrate(ensemble, (x, y), Promise(**{**settings, "risk": None}))


def test_a_risk_that_cannot_be_held_is_said_with_by_how_much(ensemble):
    data = labelled(ensemble, flipped=0.5)
    with pytest.warns(PromiseWarning, match=r"No threshold holds an error rate of 0\.05.*lowest bound.*is 0\.\d+"):
        gate = ensemble.gate(data, risk=0.05)
    assert not bool(gate(data[0]).accepted.any())
    assert gate.thresholds.lowest_bound()[0] > 0.05
    assert "Everything is abstained from" in repr(gate)


@pytest.mark.parametrize(
    ("settings", "error", "word"),
    [
        ({"false_alarms": 0}, RecipeError, "false_alarms"),
        ({"risk": 1.5}, RecipeError, "risk"),
        ({"delta": True}, RecipeError, "delta"),
        ({"alpha": -1}, RecipeError, "alpha"),
        ({"sets": "cqr"}, RecipeError, "'lac', 'aps', 'raps'"),
        ({"tolerance": 1.0}, DataError, "tolerance"),
    ],
)
def test_promises_that_make_no_sense(ensemble, settings, error, word):
    with pytest.raises(error, match=word):
        ensemble.gate(labelled(ensemble), **settings)


def test_a_kind_of_set_that_is_misspelt(ensemble):
    jaxtyping.config.update("jaxtyping_disable", True)  # as users run it
    try:
        with pytest.raises(RecipeError, match="Did you mean 'lac'"):
            ensemble.gate(labelled(ensemble), sets="lak")  # pyright: ignore[reportArgumentType]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("settings", [{"risk": 0.1}, {"tolerance": 1.0}, {"by_class": True}])
def test_promises_that_make_no_sense_of_numbers(numbers, settings):
    ensemble, data = numbers
    with pytest.raises(DataError, match=r"tolerance|by_class"):
        ensemble.gate(data, **settings)
    with pytest.raises(RecipeError, match="false_discoveries"):
        ensemble.gate(data)(data[0], false_discoveries=2)


def test_bad_calibration_data(ensemble):
    x, y = labelled(ensemble)
    with pytest.raises(DataError, match="labelled"):
        ensemble.gate(x)
    with pytest.raises(DataError, match="from 0 to"):
        ensemble.gate((x, y + 7))
    assert ensemble.gate((x, y.double())).basis.samples == 300  # whole numbers are classes


def test_a_fingerprint_is_that_of_the_data_and_not_of_its_batches(ensemble):
    x, y = labelled(ensemble)
    parts = list(zip(x.split(70), y.split(70), strict=True))
    one, same, other = (ensemble.gate(data).basis.data for data in ((x, y), parts, (x, (y + 1) % 3)))
    assert one == same != other


# The guarantee of the gate as a whole


def rows(count, made):
    """Doubt and score are related; the more doubt, the more errors; the more score, the more errors."""
    doubt = torch.rand(count, generator=made).double()
    score = 0.5 * doubt + torch.rand(count, generator=made).double()
    error = (torch.rand(count, generator=made).double() < 0.2 * doubt * score).double()
    predicted = (doubt * 7).long() % 3
    return Calibration(score, doubt + score, doubt, error, predicted, 1 - doubt)


@pytest.mark.parametrize("by_class", [False, True])
def test_false_alarms_and_errors_among_accepted_over_draws(by_class):
    """A risk between the error rates of all and of none; the truth is that of a large sample."""
    draws, made = 80, torch.Generator().manual_seed(3)
    promise = Promise(false_alarms=0.1, risk=0.05, delta=0.1, by_class=by_class)
    world = rows(20_000, torch.Generator().manual_seed(4))
    broken = flagged = accepted = 0
    for _ in range(draws):
        held = Thresholds(promise, rows(1000, made))
        new = rows(1, made)
        flagged += float(held.p_values(new.score, new.predicted)) <= promise.false_alarms
        kept = held.accepts(world.score, world.doubt, held.p_values(world.score, world.predicted))
        accepted += int(kept.sum())
        share = float(world.error[kept].mean()) if bool(kept.any()) else 0.0
        broken += share > 0.05 + 0.006  # four standard errors of this measurement
    assert accepted > (0.05 if by_class else 0.2) * draws * len(world)
    assert broken <= stats.binom.ppf(1 - 1e-6, draws, promise.delta)
    assert flagged <= stats.binom.ppf(1 - 1e-6, draws, promise.false_alarms)


def test_the_risk_is_tested_on_familiar_samples_only():
    made = torch.Generator().manual_seed(0)
    held = Thresholds(Promise(0.1, 0.1), rows(200, made))
    errors, counts, total = held.tested
    familiar = held.rows.score < held.foreign
    assert total == int(familiar.sum()) == 200 - math.floor(201 * 0.1)
    assert (errors[-1], counts[-1]) == (int(held.rows.error[familiar].sum()), total)
    assert held.limits == sorted(held.limits)
    split = Thresholds(Promise(0.1, 0.1, by_class=True), held.rows)
    assert len(split.reference) == 100
    assert split.tested[2] <= 100


def test_just_enough_samples_without_an_error_hold_the_risk():
    for risk, delta in ((0.02, 0.05), (0.05, 0.1), (0.3, 0.05)):
        promise = Promise(0.05, risk, delta)
        count = promise.samples_needed()["risk"]
        for samples, holds in ((count, True), (count - 1, False)):
            clean = rows(samples, torch.Generator().manual_seed(0))
            clean = dataclasses.replace(clean, error=torch.zeros(samples).double(), doubt=torch.zeros(samples).double())
            assert (Thresholds(promise, clean).chosen is not None) == holds


def test_errors_that_hide_behind_tied_scores_are_not_accepted():
    """Three tenths of all have the same largest score, and all errors: the rest says nothing of them."""
    made = torch.Generator().manual_seed(0)
    some = rows(1000, made)
    score = (torch.rand(1000, generator=made) < 0.3).double()
    tied = dataclasses.replace(some, score=score, error=score * (torch.rand(1000, generator=made) < 0.5))
    held = Thresholds(Promise(0.05, 0.05), tied)
    p = held.p_values(tied.score, tied.predicted)
    assert not bool((p <= 0.05).any())  # ties count against flagging
    accepted = held.accepts(tied.score, tied.doubt, p)
    assert int(accepted.sum()) > 600
    assert float(tied.error[accepted].mean()) == 0


# Kept, and brought back


def test_a_gate_is_saved_with_the_ensemble_and_comes_back_the_same(ensemble, tmp_path):
    x, y = labelled(ensemble, flipped=0.02)
    gate = ensemble.gate((x, y), risk=0.1, by_class=True)
    ensemble.save(tmp_path)
    again = repulse.load(tmp_path, network()).gate()
    assert (again.promise, again.basis) == (gate.promise, gate.basis)
    one, two = gate(x), again(x)
    assert (one.action, one.records()) == (two.action, two.records())
    repulse.load(tmp_path, network()).save(tmp_path)  # once more
    assert repulse.load(tmp_path, network()).gate().basis == gate.basis
    assert len(list(tmp_path.iterdir())) == 3


def test_an_ensemble_without_a_gate_says_so(tmp_path):
    plain = fitted(network())
    with pytest.raises(DataError, match="no gate is kept"):
        plain.gate()
    plain.save(tmp_path)
    with pytest.raises(DataError, match="no gate is kept"):
        repulse.load(tmp_path, network()).gate()


def test_a_gate_is_refused_for_other_heads_or_another_recipe(ensemble, tmp_path):
    ensemble.gate(labelled(ensemble))
    ensemble.save(tmp_path / "one")
    gate = about(tmp_path / "one")["gate"]
    for name, part in (("recipe", {"strength": 0.5}), ("heads", {"seed": 3})):
        other = fitted(network(), recipe=QUICK.replace(**part))
        other.save(tmp_path / name)
        shutil.copy(tmp_path / "one" / gate["file"], tmp_path / name)
        write(tmp_path / name, {**about(tmp_path / name), "gate": gate}, sealed=True)
        loaded = repulse.load(tmp_path / name, network())
        with pytest.raises(CheckpointError, match=r"Expected the gate that was kept to be for the (heads|recipe)"):
            loaded.gate()


def test_a_damaged_gate_is_refused(ensemble, tmp_path):
    ensemble.gate(labelled(ensemble))
    ensemble.save(tmp_path)
    (path,) = tmp_path.glob("gate-*.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(CheckpointError, match="the gate that was saved"):
        repulse.load(tmp_path, network())
    path.write_bytes(content)
    told = about(tmp_path)
    write(tmp_path, {**told, "gate": {**told["gate"], "promise": {"risk": 0.1}}}, sealed=True)
    with pytest.raises(CheckpointError, match="as `save` wrote it"):
        repulse.load(tmp_path, network()).gate()


@pytest.mark.parametrize("role", ["training data", "`validation=`"])
def test_data_that_the_fit_has_seen_is_told_from_other_data(role):
    x, model = calibration(seed=3, count=120), network()
    y = model(x).argmax(dim=1)
    ensemble = repulse.retrofit(model, [(x[:60], y[:60])], validation=[(x[60:], y[60:])], recipe=QUICK, progress=False)
    seen = (x[:60], y[:60]) if role == "training data" else (x[60:], y[60:])
    with pytest.warns(PromiseWarning, match=role):
        ensemble.gate([(seen[0][i : i + 20], seen[1][i : i + 20]) for i in range(0, 60, 20)])
    ensemble.gate(labelled(ensemble, count=60))  # other data: nothing is said


def test_inputs_of_few_values_are_no_proof():
    """Rows that occur again and again are drawn again and again, from the same data or from other."""
    x = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).repeat(8, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    y = model(x).argmax(dim=1)
    ensemble = repulse.retrofit(model, [(x, y)], recipe=QUICK, progress=False)
    ensemble.gate((x, y))
