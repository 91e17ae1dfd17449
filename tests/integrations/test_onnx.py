"""ONNX files of ensembles, run by onnxruntime."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from torch import nn

import repulse
from deployable import differences, ensemble_of
from families import first
from models import QUICK, normal
from repulse.backbone.batches import tensors_of
from repulse.errors import BackboneError, CheckpointError, DataError, RepulseError
from repulse.integrations import onnx as exporter

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")


def run(path, inputs):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    values = [value.numpy() for _, value in tensors_of(inputs)]
    found = session.run(None, dict(zip(names, values, strict=True)))
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, map(torch.from_numpy, found), strict=True)), session


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("cnn", ["input"]),
        ("timm vit", ["input"]),
        ("hf bert", ["input_ids", "attention_mask"]),
        ("regression", ["input"]),
        ("several inputs", ["input_0", "input_1"]),
        ("several labels", ["input"]),
        ("several targets", ["input"]),
        ("one logit", ["input"]),
    ],
)
def test_onnxruntime_says_what_predict_says(kind, inputs, tmp_path):
    ensemble, x = ensemble_of(kind)
    path = ensemble.export(tmp_path / "model.onnx")
    for size in (1, 7):
        few = first(x, size)
        found, session = run(path, few)
        assert [given.name for given in session.get_inputs()] == inputs
        first_output = "mean" if kind in ("regression", "several targets") else "probs"
        assert list(found) == [first_output, "aleatoric", "epistemic", "total"]
        assert max(differences(ensemble, found, few).values()) < 1e-5
    if kind == "hf bert":  # texts of another length
        few = {name: value[:3, :5] for name, value in x.items()}
        assert max(differences(ensemble, run(path, few)[0], few).values()) < 1e-5
    if kind == "cnn":
        about = session.get_modelmeta().custom_metadata_map
        assert json.loads(about["class_names"]) == [f"class {i}" for i in range(5)]
        assert json.loads(about["repulse_network"]) == ensemble.network
        assert about["repulse_version"] == repulse.__version__
        assert about["repulse_task"] == "classification"


def linear_ensemble():
    model = nn.Linear(4, 3)
    return repulse.retrofit(model, [(normal(30, 4), torch.arange(30) % 3)], recipe=QUICK, progress=False)


def test_a_saved_ensemble_still_knows_its_inputs(tmp_path):
    ensemble, x = ensemble_of("hf bert")
    loaded = repulse.load(ensemble.save(tmp_path / "heads"), ensemble.model)
    example = exporter.inputs_like(loaded)
    assert {name: (value.shape[1:], value.dtype) for name, value in example.items()} == {
        name: (value.shape[1:], value.dtype) for name, value in x.items()
    }


def test_an_ensemble_that_does_not_know_its_inputs_asks_for_an_example():
    ensemble = linear_ensemble()
    ensemble.backbone.forms = ()
    with pytest.raises(DataError, match="Expected `example` to be a batch of inputs"):
        exporter.inputs_like(ensemble)
    assert exporter.inputs_like(ensemble, normal(9, 4)).shape == (2, 4)
    assert exporter.inputs_like(ensemble, (normal(1, 4), torch.zeros(1))).shape == (2, 4)
    with pytest.raises(DataError, match="at least one sample"):
        exporter.inputs_like(ensemble, normal(0, 4))


def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(CheckpointError, match="no room"):
        linear_ensemble().export(path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="Expected `path` to be a file"):
        linear_ensemble().export(tmp_path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(RepulseError, match=r"pip install 'repulse\[onnx\]'"):
        linear_ensemble().export(tmp_path / "model.onnx")


class Branching(nn.Module):
    """Looks at its values to decide what to compute."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x.sin() if float(x.sum()) > 1e6 else x)


def test_a_network_that_cannot_be_traced_is_refused_in_a_sentence(tmp_path):
    ensemble = repulse.retrofit(Branching(), [(normal(30, 4), torch.arange(30) % 3)], recipe=QUICK, progress=False)
    with pytest.raises(BackboneError, match=r"`model` to be one that `torch.export` can trace, but got [^\n]+$"):
        ensemble.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
