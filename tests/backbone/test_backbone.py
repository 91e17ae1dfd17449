"""Networks with batches, outputs, wrappers and number types of all forms are fitted with heads, and given back."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from families import Several, family
from models import CLASSES, QUICK, Odd, images, normal, perceptron, rebuilt, same_state, state_of
from repulse import BackboneError, DataError, Recipe, retrofit
from repulse._modes import evaluating
from repulse.backbone import Ending, split

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers is imported later, inside the tests
pytestmark = [
    pytest.mark.filterwarnings("ignore::repulse.FitWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z_]+` is deprecated:DeprecationWarning"),
]


# What comes after the last layer.

AFTER = {"softmax": nn.Softmax(dim=1), "log_softmax": nn.LogSoftmax(dim=1), "sigmoid": nn.Sigmoid()}


@pytest.mark.parametrize("activation", AFTER)
def test_what_comes_after_the_last_layer_is_undone_and_it_says_so(activation, capsys):
    single = activation == "sigmoid"
    torch.manual_seed(0)
    model = perceptron(1 if single else CLASSES, AFTER[activation])
    x, y = normal(10, 4), torch.arange(10) % (2 if single else CLASSES)
    backbone = split(model, x)
    assert backbone.ending == Ending(("2",), "none", activation)
    torch.testing.assert_close(rebuilt(backbone, x), model[:3](x).detach())
    ensemble = retrofit(model, [(x, y)], repulsion=None, recipe=QUICK)
    said = capsys.readouterr().err
    assert f"heads take the place of `2`, followed by a {activation.replace('_', '-')}" in said
    assert ensemble.predict(x).probs.shape == (10, 2 if single else CLASSES)
    retrofit(model, [(x, y)], repulsion=None, recipe=QUICK, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("shape", [(10,), (10, 1)], ids=["vector", "column"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("squeezed", [False, True], ids=["column out", "vector out"])
def test_a_single_logit_becomes_two_classes(shape, dtype, squeezed):
    torch.manual_seed(0)
    model = perceptron(1, *[nn.Flatten(0)] * squeezed)
    x = normal(10, 4)
    y = (torch.arange(10) % 2).to(dtype).view(shape)
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400)
    ensemble = retrofit(model, [(x, y)], repulsion=None, recipe=recipe, progress=False)
    probs = ensemble.predict(x).probs
    assert probs.shape == (10, 2)
    odds = ensemble(x)
    assert odds.shape == model(x).shape
    torch.testing.assert_close(odds.view(10), probs[:, 1].log() - probs[:, 0].log())
    torch.testing.assert_close(odds, model(x).detach(), rtol=0.0, atol=0.05)


def test_a_single_logit_wants_zeros_and_ones():
    with pytest.raises(DataError, match=r"Expected `targets` to be 0 or 1 .+, but got values from 0 to 2\.$"):
        retrofit(perceptron(1), [(normal(9, 4), torch.arange(9) % 3)], repulsion=None, recipe=QUICK, progress=False)


def test_a_single_logit_learns_its_classes():
    x = normal(200, 4)
    y = (x[:, 0] > 0).float()
    torch.manual_seed(0)
    recipe = Recipe(epochs=100, lr=2e-2, layers="last", centre="heads")  # the network knows nothing
    ensemble = retrofit(perceptron(1), [(x, y)], repulsion=None, recipe=recipe, progress=False)
    assert (ensemble(x).squeeze(1) > 0).eq(y > 0).float().mean() > 0.9


@pytest.mark.parametrize("how", ["tuple", "list", "dict", "object"])
def test_logits_may_come_with_other_outputs(how):
    class Talkative(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 7)

        def forward(self, x):
            hidden = self.body(x).tanh()
            logits, other = self.head(hidden), self.other(hidden)
            forms = {"tuple": (logits, other), "list": [logits, other], "dict": {"other": other, "logits": logits}}
            return forms.get(how) or SimpleNamespace(other=other, logits=logits)

    model, x = Talkative(), normal(6, 4)
    backbone = split(model, x)
    assert backbone.ending == Ending(("head",))
    torch.testing.assert_close(rebuilt(backbone, x), model.head(model.body(x).tanh()).detach())


# Batches and inputs of all forms.


def test_a_mapping_gives_inputs_by_name_and_keeps_its_labels_from_the_model():
    bert, inputs, others, _ = family("hf bert")
    transformers = pytest.importorskip("transformers")
    seen = []
    hook = bert.register_forward_pre_hook(lambda _, args, named: seen.append((args, set(named))), with_kwargs=True)
    try:
        labels = torch.arange(10) % CLASSES
        batches = [transformers.BatchEncoding({**part, "labels": labels}) for part in (inputs, others)]
        ensemble = retrofit(bert, batches, repulsion=[others], recipe=QUICK, progress=False)
        whole = ensemble.predict(batches, progress=False)
        torch.testing.assert_close(ensemble.predict(transformers.BatchEncoding(inputs)).probs, whole[:10].probs)
        torch.testing.assert_close(ensemble.predict((others, labels)).probs, whole[10:].probs)
        torch.testing.assert_close(ensemble(**batches[0]).exp(), whole[:10].probs)
        torch.testing.assert_close(ensemble(inputs).exp(), whole[:10].probs)
    finally:
        hook.remove()
    assert seen
    assert all(call == ((), {"input_ids", "attention_mask"}) for call in seen)


@pytest.mark.parametrize("name", repulse.backbone.batches.TARGETS)
def test_targets_have_several_names(name):
    bert, inputs, _, _ = family("hf bert")
    labels = torch.arange(10) % CLASSES
    tuples, mappings = [(inputs, labels)], [{**inputs, name: labels}]
    one, other = (retrofit(bert, data, repulsion=None, recipe=QUICK, progress=False) for data in (tuples, mappings))
    assert torch.equal(one.heads.vectors(), other.heads.vectors())


def test_classes_are_named_by_whoever_knows_them():
    x, y = normal(10, 4), torch.arange(10) % 3
    names = {0: "ant", 1: "bee", 2: "cow"}

    def fitted(model, data=((x, y),), **more):
        return retrofit(model, list(data), repulsion=None, recipe=QUICK, progress=False, **more).class_names

    model = perceptron(3)
    assert fitted(model) is None
    assert fitted(model, class_names=["a", "b", "c"]) == ("a", "b", "c")
    model.config = SimpleNamespace(id2label=names)
    assert fitted(model) == ("ant", "bee", "cow")
    model.config = SimpleNamespace(id2label={i: f"LABEL_{i}" for i in range(3)})  # a default, which says nothing
    assert fitted(model) is None
    data = TensorDataset(x, y)
    data.classes = ["x", "y", "z"]
    loader = DataLoader(data, batch_size=5)
    ensemble = retrofit(perceptron(3), loader, repulsion=None, recipe=QUICK, progress=False)
    assert ensemble.class_names == ("x", "y", "z")


@pytest.fixture(scope="module")
def pair():
    """An ensemble on a network of two inputs, the inputs and their targets."""
    inputs, targets = (normal(10, 4), normal(10, 2)), torch.arange(10) % CLASSES
    torch.manual_seed(0)
    ensemble = retrofit(Several(), [(inputs, targets)], repulsion=[(inputs,)], recipe=QUICK, progress=False)
    return ensemble, inputs, targets


def test_several_inputs_are_several_arguments(pair):
    ensemble, (left, right), targets = pair
    probs = ensemble(left, right).exp()
    for question in (((left, right), targets), [((left, right), targets)], ((left, right),)):
        torch.testing.assert_close(ensemble.predict(question, progress=False).probs, probs)
    loader = DataLoader([((a, b), int(y)) for a, b, y in zip(left, right, targets, strict=True)], batch_size=4)
    torch.testing.assert_close(ensemble.predict(loader, progress=False).probs, probs)


def test_several_inputs_alone_are_predicted(pair):
    ensemble, inputs, _ = pair
    torch.testing.assert_close(ensemble.predict(inputs).probs, ensemble(*inputs).exp())


@pytest.mark.parametrize("form", ["several", "mapping"])
def test_a_batch_is_predicted_as_the_loader_gives_it(form):
    """A loader makes lists of what its data set gives in tuples."""
    inputs, targets = (normal(8, 4), normal(8, 2)), torch.arange(8) % CLASSES
    names = ("left", "right")
    rows = [(*row[:2], int(row[2])) for row in zip(*inputs, targets, strict=True)]
    samples = [((a, b) if form == "several" else dict(zip(names, (a, b), strict=True)), y) for a, b, y in rows]
    loader = DataLoader(samples, batch_size=8)
    ensemble = retrofit(Several(), loader, repulsion=None, recipe=QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(next(iter(loader))).probs, ensemble(*inputs).exp())


# Wrappers and number types.


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))])
def test_wrappers_are_taken_off(wrap):
    """Nothing is compiled: the network inside is run as it is."""
    model, x = Odd(), normal(6, 4)
    before = state_of(model)
    assert split(wrap(model), x).ending == Ending(("head",))
    data = [(x, torch.arange(6) % 3)]
    one, other = (
        retrofit(network, data, repulsion=None, recipe=QUICK, progress=False) for network in (wrap(model), model)
    )
    assert one.model is model
    assert torch.equal(one.heads.vectors(), other.heads.vectors())
    assert torch.equal(one(x), other(x))
    assert same_state(before, state_of(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_floats_will_do(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    model.to(dtype)
    x, y = images(12).to(dtype), torch.arange(10) % CLASSES
    backbone = split(model, x)
    assert backbone.ending == Ending(("4",))
    torch.testing.assert_close(rebuilt(backbone, x), model(x).detach())
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400, repulsion_samples=64)
    ensemble = retrofit(model, [(x, y)], repulsion=repulse.repulsion.Noise(), recipe=recipe, progress=False)
    wanted = model(x).detach().float().log_softmax(dim=1)
    torch.testing.assert_close(ensemble.predict(x).probs.float(), wanted.exp(), rtol=0.0, atol=0.02)
    assert model[0].weight.dtype == dtype


# The model is evaluated, and given back.


def test_everything_runs_in_eval_mode():
    """Also when training mode would change the network itself, as batch norm does."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(0.5), nn.Linear(8, CLASSES)),
    )
    model.train()
    model[0].eval()
    modes = []
    model.register_forward_hook(lambda module, *_: modes.append([part.training for part in module.modules()]))
    before = state_of(model)
    x, y = images(12), torch.arange(10) % CLASSES
    ensemble = retrofit(model, [(x, y)], repulsion=[images(12, seed=2)], recipe=QUICK.replace(layers="auto"))
    passes = len(modes)
    torch.testing.assert_close(ensemble.predict(x).probs, ensemble(x).exp())
    assert passes >= 4
    assert len(modes) == passes + 2
    assert not any(any(mode) for mode in modes)
    assert same_state(before, state_of(model))


@pytest.mark.parametrize("where", ["split", "data", "repulsion", "predict"])
def test_an_error_in_the_middle_of_a_pass_leaves_the_model_as_it_was(where):
    """A pass that fails half-way, after some modules have run and others have not."""
    model = Odd().train()
    model.body.eval()
    good, bad, y = normal(6, 4), torch.full((6, 4), 1e3), torch.arange(6) % 3

    def fails(module, inputs):
        if wanted and inputs[0].sum() == lucky:
            raise RuntimeError("out of luck")

    wanted = True
    lucky = model.body(bad).tanh().sum()
    model.aux.register_forward_pre_hook(fails)
    before = state_of(model)
    batches = {"split": [(bad, y)], "data": [(good, y), (bad, y)]}.get(where, [(good, y)])

    def run():
        recipe = QUICK.replace(layers=("body",))
        repulsion = [bad] if where == "repulsion" else None
        retrofit(model, batches, repulsion=repulsion, recipe=recipe, progress=False).predict(bad)

    with pytest.raises(DataError, match=r"inputs the model can take.+ on which it fails: out of luck"):
        run()
    assert same_state(before, state_of(model))
    wanted = False
    run()


def test_an_interrupt_in_the_middle_of_a_pass_leaves_the_model_as_it_was():
    model = Odd().train()
    hook = model.aux.register_forward_pre_hook(lambda module, inputs: (_ for _ in ()).throw(KeyboardInterrupt))
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        split(model, normal(6, 4))
    assert same_state(before, state_of(model))
    hook.remove()


class MaskedMean(nn.Module):
    """Averages over tokens that are no padding, after its last layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids):
        mask = (ids > 0).float().unsqueeze(-1)
        return (self.fc(self.embed(ids)) * mask).sum(dim=1) / mask.sum(dim=1)


def test_a_pass_in_which_the_output_is_not_the_last_layers_is_refused():
    """Without padding its mean is a plain one; with padding it is not."""
    model = MaskedMean()
    ids = torch.randint(1, 20, (8, 5), generator=torch.Generator().manual_seed(0))
    backbone = split(model, ids)
    assert backbone.ending.pooling == "mean"
    backbone(ids)
    padded = torch.cat([ids, torch.zeros(8, 3, dtype=torch.int64)], dim=1)
    with pytest.raises(BackboneError, match="depends on more"):
        backbone(padded)


def test_modules_that_have_time_first_are_not_tapped():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
            self.encoder = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
            self.fc = nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(self.encoder(x.transpose(0, 1)).mean(dim=0))

    assert split(TimeFirst(), normal(8, 8, 16), layers="auto").taps == ()


def test_models_that_share_an_encoder_evaluate_at_once_and_get_their_modes_back():
    shared = nn.BatchNorm1d(4)
    one, two = nn.Sequential(shared, nn.Linear(4, 2)), nn.Sequential(shared, nn.Linear(4, 2))
    first, second = evaluating(one), evaluating(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not shared.training
    assert one[1].training
    second.__exit__(None, None, None)
    assert shared.training


def test_a_loader_of_single_inputs_gets_as_many_repulsion_samples_as_wanted():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    batches = [(images(8)[:1], torch.tensor([i % 2])) for i in range(12)]
    recipe = Recipe(epochs=1, repulsion_samples=30)
    ensemble = retrofit(model, batches, repulsion=repulse.repulsion.Swirl(), recipe=recipe, progress=False)
    assert "on 30 samples" in ensemble.repulsion


def test_a_list_of_batches_of_different_lengths_is_a_loader():
    model = MaskedMean()
    ids = [
        torch.randint(1, 20, shape, generator=torch.Generator().manual_seed(0)) for shape in ((8, 5), (8, 6), (3, 4))
    ]
    data = [(ids[0], torch.arange(8) % 3)]
    ensemble = retrofit(model, data, repulsion=None, recipe=Recipe(epochs=1), progress=False)
    assert len(ensemble.predict(ids)) == 19
