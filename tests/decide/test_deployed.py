"""Deployed ensembles and ONNX files decide as their gate does."""

from __future__ import annotations

import functools
import json
import warnings

import pytest
import torch
from torch import nn

import repulse
from models import QUICK, normal
from repulse.decide.deployed import ACTIONS

PROMISES = {
    "foreign alone": {},
    "risk": {"risk": 0.2, "delta": 0.2},
    "by class": {"risk": 0.2, "delta": 0.2, "by_class": True, "false_alarms": 0.2},
    "nothing held": {"risk": 0.02},
    "numbers": {"risk": 0.5, "tolerance": 1.0, "false_alarms": 0.1},
}


@functools.cache
def decided(kind):
    """An ensemble with a gate, and inputs of which some are far away; labels are those of the network, most of them."""
    outputs, x = 1 if kind == "numbers" else 3, normal(900, 4)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))
        known = model(x).detach()
        y = known[:, 0] if kind == "numbers" else torch.where(normal(900, seed=1) > 1.3, 0, known.argmax(dim=1))
        recipe = QUICK.replace(task="regression" if kind == "numbers" else "classification")
        ensemble = repulse.retrofit(model, [(x[:300], y[:300])], recipe=recipe, progress=False)
        ensemble.gate((x[300:700], y[300:700]), progress=False, **PROMISES[kind])
    return ensemble, x[700:] * torch.linspace(0.5, 6, 200).unsqueeze(1)


@pytest.mark.parametrize("kind", PROMISES)
def test_a_deployed_ensemble_decides_as_its_gate_does(kind):
    ensemble, x = decided(kind)
    wanted, found = ensemble.gate()(x), ensemble.deploy()(x)
    assert found._fields[-2:] == ("p_value", "decision")
    torch.testing.assert_close(found.p_value, wanted.p_value, rtol=0, atol=0.02)
    close = (
        found.p_value - wanted.p_value
    ).abs() < 1e-12  # others have a score that rounding puts on the other side of one
    assert close.double().mean() > 0.9
    actions = [ACTIONS[i] for i in found.decision.tolist()]
    assert [a for a, same in zip(actions, close, strict=True) if same] == [
        a for a, same in zip(wanted.action, close, strict=True) if same
    ]
    assert {"foreign", "abstain" if kind == "nothing held" else "accept"} <= set(actions)


@pytest.mark.parametrize("kind", ["by class", "numbers"])
def test_onnxruntime_decides_as_the_gate_does(kind, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    ensemble, x = decided(kind)
    path = ensemble.export(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"input": x.numpy()}), strict=True))
    wanted = ensemble.deploy()(x)
    assert tuple(found) == wanted._fields
    p_value = torch.from_numpy(found["p_value"])
    torch.testing.assert_close(p_value, wanted.p_value, rtol=0, atol=0.02)
    close = (p_value - wanted.p_value).abs() < 1e-12
    assert close.double().mean() > 0.9
    assert (torch.from_numpy(found["decision"])[close] == wanted.decision[close]).all()
    about = json.loads(session.get_modelmeta().custom_metadata_map["repulse_gate"])
    gate = ensemble.gate()
    assert about["decisions"] == ["accept", "abstain", "foreign"]
    assert about["promise"]["false_alarms"] == gate.promise.false_alarms
    assert about["basis"]["samples"] == 400
    assert about["in_words"] == gate.lines()
    assert about["foreign_above"] == (None if kind == "by class" else gate.thresholds.foreign)


def test_what_is_not_a_number_is_foreign():
    ensemble, x = decided("risk")
    x = x[:6].clone()
    x[3] = torch.nan
    found = ensemble.deploy()(x)
    assert ACTIONS[int(found.decision[3])] == "foreign"
    assert found.p_value[3] == 1 / 401


def test_the_state_of_a_deployed_ensemble_has_its_gate():
    ensemble, x = decided("risk")
    deployed = ensemble.deploy()
    changed = ensemble.deploy()
    assert changed.gate is not None
    nn.init.zeros_(changed.gate.get_buffer("calibration"))
    changed.load_state_dict(deployed.state_dict())
    assert torch.equal(changed(x).p_value, deployed(x).p_value)
