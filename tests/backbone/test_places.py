"""Batches and outputs of forms of their own: where things are is said by a key, an index or a function."""

# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false, reportCallIssue=false

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import repulse
from models import normal, perceptron, trained_perceptron
from repulse import BackboneError, CheckpointError, DataError, Recipe, RepulsionError, retrofit

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

X, Y = normal(40, 4), torch.arange(40) % 5
NETWORK = trained_perceptron(X, Y)
QUICK = Recipe(epochs=1, heads=3, layers="last", repulsion_samples=40)


class Odd(nn.Module):
    """A network that returns its features beside its logits, and takes weights beside its inputs."""

    def __init__(self, form=lambda h, z: (h, z)):
        super().__init__()
        self.net, self.form = NETWORK, form

    def forward(self, x, weights=None):
        h = self.net[:2](x if weights is None else x * weights.unsqueeze(1))
        return self.form(h, self.net[2](h))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)


@cache
def plain():
    return retrofit(NETWORK, [(X, Y)], recipe=QUICK, progress=False)


BATCHES = {
    "keys": ({"x": X, "y": Y}, {"inputs": "x", "targets": "y"}),
    "targets alone": ({"x": X, "y": Y}, {"targets": "y"}),
    "attributes": (SimpleNamespace(x=X, y=Y), {"inputs": "x", "targets": "y"}),
    "indices": ((Y, None, X), {"inputs": 2, "targets": 0}),
    "the other one": ((Y, X), {"inputs": 1}),
    "several indices": ((X, torch.ones(40), Y), {"inputs": (0, 1), "targets": 2}),
    "several keys": ({"x": X, "weights": torch.ones(40), "y": Y}, {"inputs": ("x", "weights"), "targets": "y"}),
    "functions": ({"rows": (X, Y)}, {"inputs": lambda b: b["rows"][0], "targets": lambda b: b["rows"][1]}),
    "a function to keywords": ((X, Y), {"inputs": lambda b: {"x": b[0]}, "targets": 1}),
}


@pytest.mark.parametrize("form", BATCHES)
def test_batches_of_any_form_give_the_same_heads(form, tmp_path):
    batch, places = BATCHES[form]
    model = Odd()
    ensemble = retrofit(model, [batch], **places, output=1, recipe=QUICK, progress=False)
    expected = plain().predict(X).probs
    for x in (batch, [batch], X):
        torch.testing.assert_close(ensemble.predict(x).probs, expected)
    known = repulse.evaluate(ensemble, [batch], ood={"far": [batch]})
    assert known.counts == {"id": 40, "far": 40}
    ensemble.save(tmp_path)
    if any(map(callable, places.values())):
        with pytest.raises(CheckpointError, match="given again, as the ensemble was fitted with a function there"):
            repulse.load(tmp_path, model)
    again = repulse.load(tmp_path, model, **places)
    torch.testing.assert_close(again.predict(batch).probs, expected)
    assert callable(places.get("inputs")) or again.backbone.places == ensemble.backbone.places


OUTPUTS = {
    "a key": (lambda h, z: {"aux": h, "classes": z}, "classes"),
    "an attribute": (lambda h, z: SimpleNamespace(features=h, classes=z), "classes"),
    "an index": (lambda h, z: (h, z), -1),
    "a function": (lambda h, z: {"heads": [h, z]}, lambda out: out["heads"][1]),
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_logits_are_found_where_they_are_said_to_be(form):
    make, output = OUTPUTS[form]
    ensemble = retrofit(Odd(make), [(X, Y)], output=output, recipe=QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(X).probs, plain().predict(X).probs)
    assert "epistemic" in ensemble.deploy()(X)._fields


def test_a_gate_reads_the_same_batches():
    batch = {"x": X, "y": Y}
    ensemble = retrofit(NETWORK, [batch], inputs="x", targets="y", recipe=QUICK, progress=False)
    gate = ensemble.gate([{"x": X + 0.1, "y": Y}], false_alarms=0.1)
    assert len(gate(batch).action) == len(gate(X).action) == 40
    assert ensemble.update([batch], progress=False).required_features("a test").train.shape[0] == 80


WRONG = {
    "no such key": ({"inputs": "z"}, DataError, "`inputs` to be a place in batch 0, but got 'z' in a mapping of x, y"),
    "no place": ({"inputs": True}, DataError, "`inputs` to be a key, an index or a function"),
    "two kinds": ({"inputs": ("x", 1)}, DataError, "or several keys or indices"),
    "no tensor": ({"inputs": "x", "targets": lambda _: [1]}, DataError, "a tensor of one per input, but got a list"),
    "no such output": ({"targets": "y", "output": "z"}, BackboneError, "`output` to be a place in the model's output"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_place_is_refused_in_one_sentence(case):
    places, error, words = WRONG[case]
    with pytest.raises(error) as caught:
        retrofit(Odd(), [{"x": X, "y": Y}], **places, recipe=QUICK, progress=False)
    assert words in str(caught.value)
    assert str(caught.value).startswith("Expected ")


def test_targets_must_be_said_where_they_could_be_anything():
    with pytest.raises(DataError, match="Expected `targets` to be said"):
        retrofit(Odd(), [(X, torch.ones(40), Y)], inputs=0, recipe=QUICK, progress=False)


class Graph(nn.Module):
    """Each node sees itself and the sum of its neighbours."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, graph):
        h = self.body(graph.x).relu()
        return self.head(h.index_add(0, graph.edges[1], h[graph.edges[0]]))


class GraphOfTensors(Graph):
    def forward(self, x, edges):
        return super().forward(SimpleNamespace(x=x, edges=edges))


def a_graph(nodes=30):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes, (2, 80), generator=generator)
    labels = torch.arange(nodes) % 3
    return SimpleNamespace(x=normal(nodes, 4), edges=edges, y=torch.where(labels.roll(1) == 0, -100, labels))


def test_nodes_of_a_graph_are_no_samples_and_stay_together():
    graph, model = a_graph(), Graph()
    ensemble = retrofit(model, [graph], inputs=lambda g: g, targets="y", recipe=QUICK, progress=False)
    p = ensemble.predict(graph)
    assert p.probs.shape == (30, 3)
    assert len(ensemble.required_features("a test").train) == 20, "nodes of target -100 take no part"
    torch.testing.assert_close(ensemble.backbone(repulse.backbone.batches.Custom(graph)), _features(model, graph))
    assert repulse.evaluate(ensemble, [graph], ood={"same": [graph]}, batch_size=4).counts == {"id": 30, "same": 30}

    model_of_tensors = GraphOfTensors()
    model_of_tensors.load_state_dict(model.state_dict())
    data = [((graph.x, graph.edges), graph.y)]
    same = retrofit(model_of_tensors, data, recipe=QUICK, progress=False)
    torch.testing.assert_close(same.predict((graph.x, graph.edges)).probs, p.probs)


def _features(model, graph):
    seen = []
    hook = model.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    model(graph)
    hook.remove()
    return seen[0]


def test_what_needs_tensors_refuses_other_inputs(tmp_path):
    arguments = {"inputs": lambda g: g, "targets": "y", "recipe": QUICK, "progress": False}
    with pytest.raises(DataError, match="`cache` to be None for inputs that are not tensors"):
        retrofit(Graph(), [a_graph()], cache=tmp_path, **arguments)
    with pytest.raises(RepulsionError, match="for inputs that are not tensors"):
        retrofit(Graph(), [a_graph()], repulsion=repulse.repulsion.Noise(), **arguments)


def test_an_empty_batch_gives_an_empty_prediction():
    ensemble = plain()
    p = ensemble.predict(X[:0])
    assert (p.probs.shape, p.epistemic.shape, ensemble.score(X[:0]).shape) == ((0, 5), (0,), (0,))
    assert len(ensemble.predict([X[:3], X[:0]])) == 3


def test_what_is_no_batch_gets_a_hint():
    ensemble = plain()
    for x, words in (
        (X[0], "one sample of shape (4,); `x.unsqueeze(0)` is a batch of one"),
        (X.numpy(), "`torch.from_numpy(x)` makes a tensor of an array"),
        ([X.numpy()], "`torch.from_numpy(x)` makes a tensor of an array"),
        ("a text", "a tokenizer makes tensors of texts"),
    ):
        with pytest.raises(DataError) as caught:
            ensemble.predict(x)
        assert words in str(caught.value)


def test_a_picture_gets_a_hint():
    picture = pytest.importorskip("PIL.Image").new("RGB", (4, 4))
    for x in (picture, [picture]):
        with pytest.raises(DataError, match="the transform that the network was trained with"):
            plain().predict(x)


@pytest.mark.parametrize("after", [None, nn.Softmax(dim=1), nn.LogSoftmax(dim=1)])
def test_a_temperature_after_the_last_layer_is_the_networks_own(after):
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = perceptron()

        def forward(self, x):
            z = self.net(x) / 2.5
            return z if after is None else after(z)

    model = Tempered()
    backbone = repulse.backbone.split(model, X)
    assert backbone.ending.factor == pytest.approx(0.4, rel=1e-4)
    again = nn.functional.linear(backbone(X), *backbone.weights)
    torch.testing.assert_close(again if after is None else after(again), model(X))


def test_a_compiled_model_is_watched_as_it_was_written():
    model = trained_perceptron(X, Y)
    model.compile(backend="eager")
    model[2].compile(backend="eager")
    before = (model._compiled_call_impl, model[2]._compiled_call_impl)
    model(X)
    ensemble = retrofit(model, [(X, Y)], recipe=QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(X).probs, plain().predict(X).probs)
    assert (model._compiled_call_impl, model[2]._compiled_call_impl) == before


class Functional(nn.Module):
    def __init__(self, cosine):
        super().__init__()
        self.body, self.weight, self.cosine = nn.Linear(4, 8), nn.Parameter(normal(5, 8)), cosine

    def forward(self, x):
        h, w = self.body(x).tanh(), self.weight
        return 16 * nn.functional.normalize(h) @ nn.functional.normalize(w).T if self.cosine else h @ w.T


class Adapted(nn.Linear):
    def __init__(self):
        super().__init__(8, 5)
        self.lora_A, self.lora_B = nn.Parameter(normal(2, 8)), nn.Parameter(normal(5, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.T @ self.lora_B.T


class BesideIt(nn.Module):
    def __init__(self):
        super().__init__()
        self.base_layer, self.lora_A = nn.Linear(8, 5), nn.Linear(8, 2, bias=False)
        self.lora_B = nn.Linear(2, 5, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Functional(cosine=False), "let an `nn.Linear` hold these weights"),
        (Functional(cosine=True), "of a cosine product the normalised ones times the scale"),
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Adapted()), "merge it into the layer first"),
    ],
    ids=["functional", "cosine", "adapter"],
)
def test_odd_last_layers_are_refused_with_what_to_do(model, words):
    with pytest.raises(BackboneError) as caught:
        retrofit(model, [(X, Y)], recipe=QUICK, progress=False)
    assert words in str(caught.value)


def test_an_adapter_beside_the_last_layer_is_part_of_it():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), BesideIt())
    backbone = repulse.backbone.split(model, X)
    torch.testing.assert_close(nn.functional.linear(backbone(X), *backbone.weights), model(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers_are_refused_with_what_to_do():
    model = torch.ao.quantization.quantize_dynamic(perceptron(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(BackboneError, match=r"quantised layers .*; retrofit the network first"):
        retrofit(model, [(X, Y)], recipe=QUICK, progress=False)
