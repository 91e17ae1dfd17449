"""Wrong input gets a named error with one sentence: which argument, what would have been right, what came.

The checks of shapes and types that the other tests run with are off here: these are the errors that users see.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import dataclasses
import math
import re
from contextlib import contextmanager

import jaxtyping
import pytest
import torch
from torch import nn

import repulse
from repulse import BackboneError, DataError, NonFiniteLossError, Recipe, RecipeError, RepulsionError
from repulse.baselines import Energy
from repulse.baselines.last_layer import LastLayer
from repulse.repulsion import DeadLeaves, Mixture, Mixup, Noise, PatchShuffle, Source, Swirl, UniformBox

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
BATCHES = list(zip(X.split(10), Y.split(10), strict=True))
SHORT = Recipe(epochs=1)
REGRESSION, PRETRAINED = SHORT.replace(task="regression"), SHORT.replace(init="pretrained")
LABELS, NOISY_PAIR = SHORT.replace(task="multilabel"), REGRESSION.replace(noise=(0.1, 0.2))
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@contextmanager
def refused(error, *words):
    """This very class of error, in one line that says `Expected ... but got ...` and has all these words."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    message = str(caught.value)
    assert re.fullmatch(r"Expected .+ to be .+, but got .+[.?]", message), message
    for word in words:
        assert word in message


def spoilt(x, row, value=NAN):
    return torch.where((torch.arange(len(x)) == row).view(-1, *[1] * (x.ndim - 1)), value, x)


def network(*after):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), *after)


def fit(features=X, targets=Y, repulsion=None, recipe=SHORT, **more):
    return repulse.fit_heads(features, targets, repulsion, recipe, progress=False, **more)


def retrofit(model=None, data=BATCHES, repulsion=None, recipe=SHORT, **more):
    return repulse.retrofit(model or network(), data, repulsion=repulsion, recipe=recipe, progress=False, **more)


def watch(model):
    """Give the model mixed modes and some gradients; returns a check that all of it is still as it is now."""
    model.train()
    for part in list(model.children())[:1]:
        part.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def state():
        parts = list(model.modules())
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in parts]
        values = [(p.tolist(), p.grad.tolist(), p.requires_grad) for p in model.parameters()]
        return [m.training for m in parts], hooks, values

    before = state()
    return lambda: state() == before


BAD_FITS = {
    "no samples": ({"features": X[:0], "targets": Y[:0]}, DataError, ["`features`", "non-empty", "(0, 4)"]),
    "no dimensions": ({"features": X[:, :0]}, DataError, ["`features`", "non-empty", "(40, 0)"]),
    "a vector": ({"features": X[:, 0]}, DataError, ["`features`", "(samples, dimensions)", "(40,)"]),
    "a list": ({"features": X.tolist()}, DataError, ["`features`", "a tensor", "list"]),
    "integers": ({"features": X.long()}, DataError, ["`features`", "float", "torch.int64"]),
    "NaN": ({"features": spoilt(spoilt(X, 9), 7)}, DataError, ["`features`", "finite", "2 rows", "row 7"]),
    "infinite": ({"features": spoilt(X, 8, -INF)}, DataError, ["`features`", "finite", "row 8"]),
    "class too large": ({"classes": 2}, DataError, ["`targets`", "between 0 and 1", "from 0 to 2"]),
    "negative class": ({"targets": Y - 1}, DataError, ["`targets`", "zero or larger", "-1"]),
    "negative of 3": ({"targets": Y - 1, "classes": 3}, DataError, ["`targets`", "between 0 and 2", "from -1 to 1"]),
    "float classes": ({"targets": Y.float()}, DataError, ["`targets`", "integer", "torch.float32"]),
    "bool classes": ({"targets": Y > 0}, DataError, ["`targets`", "integer", "torch.bool"]),
    "one-hot": ({"targets": nn.functional.one_hot(Y)}, DataError, ["`targets`", "(40,)", "(40, 3)"]),
    "one class": ({"targets": Y * 0 + 2}, DataError, ["`targets`", "two classes", "only class 2"]),
    "too few targets": ({"targets": Y[:-1]}, DataError, ["`targets`", "(40,)", "(39,)"]),
    "targets in a list": ({"targets": Y.tolist()}, DataError, ["`targets`", "tensor", "list"]),
    "no classes": ({"classes": 0}, RecipeError, ["`classes`", "positive integer", "0"]),
    "half a class": ({"classes": 3.5}, RecipeError, ["`classes`", "positive integer", "3.5"]),
    "NaN target": ({"targets": spoilt(X[:, 0], 11), "recipe": REGRESSION}, DataError, ["`targets`", "row 11"]),
    "infinite target": ({"targets": spoilt(X[:, 0], 5, INF), "recipe": REGRESSION}, DataError, ["`targets`", "row 5"]),
    "integer target": ({"recipe": REGRESSION}, DataError, ["`targets`", "float", "torch.int64"]),
    "no last layer": ({"recipe": PRETRAINED}, DataError, ["`start`", "weight and bias", "None"]),
    "other last layer": ({"recipe": PRETRAINED, "start": (X, Y)}, DataError, ["`start`", "(3, 4)", "(40, 4)"]),
    "recipe is a dict": ({"recipe": {"heads": 3}}, RecipeError, ["`recipe`", "dict"]),
    "narrow repulsion": ({"repulsion": X[:, :3]}, RepulsionError, ["`repulsion_features`", "(samples, 4)", "(40, 3)"]),
    "vector repulsion": ({"repulsion": X[:, 0]}, RepulsionError, ["`repulsion_features`", "(samples, 4)", "(40,)"]),
    "NaN repulsion": ({"repulsion": spoilt(X, 3)}, RepulsionError, ["`repulsion_features`", "finite", "row 3"]),
    "no repulsion": ({"repulsion": X[:0]}, RepulsionError, ["`repulsion_features`", "non-empty", "(0, 4)"]),
    "a number": ({"features": X[0, 0]}, DataError, ["`features`", "(samples, ...)", "a single number"]),
    "sparse": ({"features": X.to_sparse()}, DataError, ["`features`", "dense", "`to_dense()`", "sparse_coo"]),
    "sparse repulsion": ({"repulsion": X.to_sparse()}, RepulsionError, ["`repulsion_features`", "dense"]),
    "no values": ({"features": X.to("meta")}, DataError, ["`features`", "with values", "meta"]),
    "too large": ({"features": 3e38 * X.sign()}, DataError, ["`features`", "1e+37", "3e+38"]),
    "too small": ({"features": 1e-40 * X}, DataError, ["`features`", "vary by at least 1e-37"]),
    "large targets": ({"targets": 1e20 * X[:, 0], "recipe": REGRESSION}, DataError, ["`targets`", "1e18", "e+20"]),
    "small targets": ({"targets": 1e-20 * X[:, :2], "recipe": REGRESSION}, DataError, ["`targets`", "1e-15", "e-21"]),
    "validation in a list": ({"validation": [X, Y]}, DataError, ["`validation`", "features and targets", "list"]),
    "narrow validation": ({"validation": (X[:, :3], Y)}, DataError, ["`validation`", "(samples, 4)", "(40, 3)"]),
    "validation labels in a list": ({"validation": (X, Y.tolist())}, DataError, ["`validation`", "a tensor", "list"]),
    "sparse validation labels": ({"validation": (X, Y.to_sparse())}, DataError, ["`validation`", "dense"]),
    "no label known": ({"targets": NAN * X, "recipe": LABELS}, DataError, ["`targets`", "known for some label"]),
    "noise of two of four": ({"targets": X, "recipe": NOISY_PAIR}, DataError, ["`noise`", "each of 4 targets", "2"]),
    "a column": ({"targets": Y.unsqueeze(1)}, DataError, ["`targets`", "`targets.squeeze(1)`", "(40, 1)"]),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_fit_heads_says_what_is_wrong(case):
    arguments, error, words = BAD_FITS[case]
    with refused(error, *words):
        fit(**arguments)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16, torch.int32])
def test_class_indices_of_any_integer_type_will_do(dtype):
    assert torch.equal(fit(targets=Y.to(dtype)).vectors(), fit().vectors())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, [0, -1, 2.0, True, "10", None, NAN]) for name in ("heads", "batch_size", "repulsion_batch_size")),
        *((name, [0, -1.0, NAN, INF, True, "1"]) for name in ("lr", "prior_std", "noise")),
        *{"repulsion_samples": [0, True], "epochs": [0, 1.5, "3"], "hidden": [3, "32"]}.items(),
        *{"strength": [-0.1, NAN, INF, True, "0.1", None], "bandwidth": [0, -1.0, NAN, True, None]}.items(),
        *[("seed", [1.5, True, "0", None]), ("seed", [2**70])],
    ],
)
def test_recipe_refuses_bad_numbers(name, values):
    for value in values:
        with refused(RecipeError, f"`{name}`", f"but got {value!r}."):
            Recipe(**{name: value})


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        *((f.name, f.default[:-1], f.default) for f in dataclasses.fields(Recipe) if isinstance(f.default, str)),
        *[("rule", "KDE", "kde"), ("kernel", "RBF", "rbf")],
    ],
)
def test_recipe_suggests_the_nearest_name(field, wrong, right):
    with refused(RecipeError, f"`{field}`", "one of", f"but got {wrong!r}.", f"Did you mean {right!r}?"):
        Recipe(**{field: wrong})


def test_replace_knows_the_fields():
    with refused(RecipeError, "but got 'strenght'.", "Did you mean 'strength'?"):
        Recipe().replace(strenght=1.0)


class Returns(Source):
    """A source that gives what it is told to."""

    def __init__(self, change):
        self.change = change

    def sample(self, batch, generator):
        return self.change(batch)

    def __repr__(self):
        return "Returns()"


class Through(nn.Module):
    """Does to its input what it is told to."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


EMPTY_LOADER = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:0], Y[:0]), batch_size=10)
DOUBLE, NAMED = Through(lambda x: 2 * x), network(Through(lambda x: {"classes": x}))
CUBED, RECTIFIED, SIGMOIDS = network(Through(lambda x: x**3)), network(nn.ReLU()), network(nn.Sigmoid())
NOISY, DROPPED = (network(Through(function)) for function in (lambda x: x + torch.randn_like(x), nn.functional.dropout))
POSITIONS = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3))
NAN_TARGETS = {
    "model": nn.Linear(4, 1),
    "data": [(X, X[:, 0]), (X, spoilt(X[:, 0], 1))],
    "recipe": REGRESSION,
}


class Module:
    """What a Lightning DataModule looks like."""

    def train_dataloader(self):
        return BATCHES


SAMPLES = [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)]
BAD_RETROFITS = {
    "no batches": ({"data": []}, DataError, ["`data`", "at least one batch", "none"]),
    "no batches in a loader": ({"data": EMPTY_LOADER}, DataError, ["`data`", "at least one batch", "none"]),
    "an empty batch": ({"data": [(X[:0], Y[:0])]}, DataError, ["non-empty", "(0, "]),
    "NaN in the first batch": ({"data": [(spoilt(X, 1), Y)]}, DataError, ["batch 0", "finite"]),
    "NaN in a later batch": ({"data": [*BATCHES, (spoilt(X, 1), Y)]}, DataError, ["batch 4", "finite"]),
    "infinite batch": ({"data": [*BATCHES[:2], (spoilt(X, 1, INF), Y)]}, DataError, ["batch 2", "finite"]),
    "NaN target": (NAN_TARGETS, DataError, ["targets of batch 1", "finite"]),
    "first batch too narrow": ({"data": [(X[:, :3], Y)]}, DataError, ["batch 0", "the model can take", "(40, 3)"]),
    "later batch too narrow": ({"data": [(X, Y), (X[:, :3], Y)]}, DataError, ["batch 1", "can take", "(40, 3)"]),
    "class too large": ({"data": [(X, Y + 1)]}, DataError, ["`targets`", "between 0 and 2", "from 1 to 3"]),
    "too few targets": ({"data": [*BATCHES, (X, Y[:9])]}, DataError, ["targets of batch 4", "40", "9"]),
    "complex targets": ({"data": [(X, Y.to(torch.complex64))]}, DataError, ["targets of batch 0", "real", "complex64"]),
    "unlabelled": ({"data": [X]}, DataError, ["batch 0", "(inputs, targets)", "(40, 4)"]),
    "unlabelled tuple": ({"data": [(X,)]}, DataError, ["batch 0", "(inputs, targets)", "got a tuple of 1"]),
    "unlabelled later": ({"data": [*BATCHES, X]}, DataError, ["batch 4", "(inputs, targets)", "(40, 4)"]),
    "unlabelled dict": ({"data": [{"x": X, "y": Y}]}, DataError, ["batch 0", "`labels`", "a mapping of x, y"]),
    "labels alone": ({"data": [{"labels": Y}]}, DataError, ["batch 0", "a mapping of tensors", "a mapping of labels"]),
    "labels in a list": ({"data": [(X, Y.tolist())]}, DataError, ["batch 0", "of tensors", "Tensor, list"]),
    "other names": ({"data": [{"y": X, "labels": Y}]}, DataError, ["batch 0", "can take", "a mapping of y", "'y'"]),
    "dict later": ({"data": [*BATCHES, {"x": X, "y": Y}]}, DataError, ["batch 4", "`labels`", "a mapping of x, y"]),
    "several inputs": ({"data": [((X, X), Y)]}, DataError, ["batch 0", "can take", "a tuple of 2: Tensor, Tensor"]),
    "strings": ({"data": [(["a", "b"], Y[:2])]}, DataError, ["batch 0", "a tensor", "got a tuple of 2: list, Tensor"]),
    "a dataset": ({"data": torch.utils.data.TensorDataset(X, Y)}, DataError, ["`data`", "DataLoader"]),
    "a model in a string": ({"model": "resnet18"}, BackboneError, ["`model`", "`torch.nn.Module`", "str"]),
    "no linear layer": ({"model": DOUBLE}, BackboneError, ["`model`", "ends in a linear layer", "none"]),
    "something after it": ({"model": CUBED}, BackboneError, ["output", "linear layer", "after `2`", "`last_layer`"]),
    "ReLU after it": ({"model": RECTIFIED}, BackboneError, ["output", "linear layer", "a ReLU after `2`"]),
    "several labels": (
        {"model": SIGMOIDS},
        BackboneError,
        ["output", "linear layer", "one sigmoid an output after `2`"],
    ),
    "no logits": ({"model": NAMED}, BackboneError, ["`model(batch)`", "`.logits`", "dict"]),
    "dense": (
        {"model": POSITIONS},
        DataError,
        ["the targets of batch 0 of `data`", "a class at every position", "(10,)"],
    ),
    "noise": ({"model": NOISY}, BackboneError, ["`model`", "same output for the same input", "different outputs"]),
    "dropout": ({"model": DROPPED}, BackboneError, ["`model`", "same output for the same input", "randomness"]),
    "last layer misspelt": ({"last_layer": "22"}, BackboneError, ["`last_layer`", "'22'", "Did you mean '2'?"]),
    "not a linear layer": ({"last_layer": "1"}, BackboneError, ["`last_layer`", "a linear layer", "'1', a ReLU"]),
    "not the last layer": ({"last_layer": "0"}, BackboneError, ["output", "`0` with 8 outputs", "`last_layer`"]),
    "layer misspelt": ({"layers": ["0", "11"]}, BackboneError, ["`layers`", "that run", "'11'", "Did you mean '1'?"]),
    "lst": ({"layers": "lst"}, RecipeError, ["`layers`", "'auto', 'last'", "'lst'", "Did you mean 'last'?"]),
    "layer number": ({"layers": [0]}, RecipeError, ["`layers`", "a list of module names", "0"]),
    "no passes": ({"augmentations": 0}, RecipeError, ["`augmentations`", "positive integer", "0"]),
    "too few names": ({"class_names": ["a", "b"]}, DataError, ["`class_names`", "3 strings", "['a', 'b']"]),
    "atuo": ({"repulsion": "atuo"}, RecipeError, ["`repulsion`", "'auto'", "'atuo'"]),
    "number": ({"repulsion": 3}, RepulsionError, ["`repulsion`", "a source, a loader", "int"]),
    "no repulsion batches": ({"repulsion": []}, RepulsionError, ["`repulsion`", "at least one batch", "none"]),
    "other inputs": ({"repulsion": [X, X[:, :3]]}, RepulsionError, ["batch 1 of `repulsion`", "can take", "(40, 3)"]),
    "NaN inputs": ({"repulsion": [X, spoilt(X, 0)]}, RepulsionError, ["batch 1 of `repulsion`", "finite"]),
    "dict inputs": ({"repulsion": [{"x": X}]}, RepulsionError, ["batch 0 of `repulsion`", "can take", "mapping of x"]),
    "no inputs": ({"repulsion": [{"labels": Y}]}, RepulsionError, ["batch 0 of `repulsion`", "mapping of labels"]),
    "string inputs": ({"repulsion": [X, ["a"]]}, RepulsionError, ["batch 1 of `repulsion`", "a tensor", "list of 1"]),
    "inputs, not features": (
        {"repulsion": X},
        RepulsionError,
        ["`repulsion`", "(samples, 12)", "`[inputs]`", "(40, 4)"],
    ),
    "NaN features": ({"repulsion": torch.full((5, 12), NAN)}, RepulsionError, ["`repulsion", "finite", "row 0"]),
    "images wanted": ({"repulsion": DeadLeaves()}, RepulsionError, ["`inputs`", "images", "DeadLeaves", "(10, 4)"]),
    "short source": ({"repulsion": Returns(lambda b: b[1:])}, RepulsionError, ["Returns()", "(10, 4)", "(9, 4)"]),
    "None source": ({"repulsion": Returns(lambda b: None)}, RepulsionError, ["Returns()", "a Tensor", "NoneType"]),
    "NaN source": ({"repulsion": Returns(lambda b: b / 0)}, RepulsionError, ["Returns()", "finite"]),
    "in a mixture": ({"repulsion": Mixture([Returns(lambda b: b[:, 1:])])}, RepulsionError, ["Returns()", "(10, 4)"]),
    "bad device": ({"device": "nowhere"}, BackboneError, ["`device`", "torch has here", "'nowhere'"]),
    "no such device": ({"device": "cuda:99"}, BackboneError, ["`device`", "torch has here", "'cuda:99'"]),
    "device of another type": ({"device": 3.5}, BackboneError, ["`device`", "torch has here", "3.5"]),
    "device without values": ({"device": "meta"}, BackboneError, ["`device`", "'meta'", "no values"]),
    "names in a number": ({"class_names": 3}, DataError, ["`class_names`", "3 strings", "got 3"]),
    "boolean targets": ({"data": [(X, Y > 0)]}, DataError, ["`targets`", "integer class indices", "torch.bool"]),
    "a column of targets": ({"data": [(X, Y.view(-1, 1))]}, DataError, ["`targets`", "`targets.squeeze(1)`"]),
    "a data module": ({"data": Module()}, DataError, ["`data`", "a Module", "`train_dataloader()`"]),
    "samples, not batches": ({"data": SAMPLES}, DataError, ["batch 0", "a batch", "one sample"]),
}


@pytest.mark.parametrize("case", BAD_RETROFITS)
def test_retrofit_says_what_is_wrong_and_leaves_the_model_alone(case):
    arguments, error, words = BAD_RETROFITS[case]
    model = arguments.get("model") or network()
    untouched = watch(model) if isinstance(model, nn.Module) else lambda: True
    with refused(error, *words):
        retrofit(**{**arguments, "model": model})
    assert untouched()


def test_a_generator_is_refused_before_its_first_batch_is_lost():
    with refused(DataError, "`data`", "read twice", "an iterator"):
        retrofit(data=iter(BATCHES))


@pytest.mark.parametrize(
    ("change", "bad"), [({"lr": 1e30}, 2), ({"lr": 1e30, "rule": "ssge"}, 2), ({"strength": 1e308}, 1)]
)
def test_divergence_gives_back_the_last_good_heads(change, bad):
    """Those at the end of the epoch before: what a fit of so many epochs gives, when nothing depends on its length."""
    recipe = Recipe(epochs=5, decay="none").replace(**change)
    with pytest.raises(NonFiniteLossError, match=rf"NaN or infinite in epoch {bad} of 5; a smaller `lr`") as caught:
        fit(repulsion=3 * X, recipe=recipe)
    heads = caught.value.heads
    assert len(heads.history) == bad - 1
    assert all(math.isfinite(epoch.nll) for epoch in heads.history)
    prediction = heads.predict(X)
    assert bool(torch.isfinite(prediction.probs).all() and torch.isfinite(prediction.total).all())
    if bad > 1:
        assert torch.equal(heads.vectors(), fit(repulsion=3 * X, recipe=recipe.replace(epochs=bad - 1)).vectors())


def test_divergence_in_retrofit_leaves_the_model_alone():
    untouched = watch(model := network())
    with pytest.raises(NonFiniteLossError):
        retrofit(model, repulsion=UniformBox(), recipe=Recipe(epochs=3, lr=1e30))
    assert untouched()


BAD_QUESTIONS = {
    "NaN": (spoilt(X, 3), ["`x`", "finite", "NaN", "first 3"]),
    "NaN in sparse inputs": (spoilt(X, 3).to_sparse(), ["`x`", "finite", "NaN"]),
    "sparse inputs": (X.to_sparse(), ["`x`", "the model can take"]),
    "too narrow": (X[:, :3], ["the model can take", "(40, 3)"]),
    "no batches": ([], ["`x`", "at least one batch", "none"]),
    "loader of dicts": ([{"x": X}], ["the model can take", "a mapping of x"]),
    "dict": ({"x": X}, ["`x`", "the model can take", "a mapping of x", "'x'"]),
    "labels alone": ({"labels": Y}, ["`x`", "a mapping of tensors", "a mapping of labels"]),
    "strings": (["a", "b"], ["batch", "a tensor", "str"]),
    "number": (3, ["`x`", "a loader", "int"]),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
def test_predict_says_what_is_wrong_and_leaves_the_model_alone(case):
    ensemble = retrofit(model := network())
    untouched = watch(model)
    with refused(DataError, *BAD_QUESTIONS[case][1]):
        ensemble.predict(BAD_QUESTIONS[case][0])
    assert untouched()


@pytest.mark.parametrize("none", [X[:0], X[:0].to_sparse()], ids=["dense", "sparse"])
def test_no_inputs_have_no_predictions(none):
    assert retrofit().predict(none).probs.shape == (0, 3)


def test_heads_predict_on_features_only():
    heads = fit()
    with refused(DataError, "`x`", "finite", "first 3"):
        heads.predict(spoilt(X, 3, INF))
    with refused(DataError, "`features`", "(batch, 4)", "(40, 3)"):
        heads.predict(X[:, :3])


@pytest.mark.parametrize(
    ("outputs", "word"),
    [(Y.view(4, 10), "int64"), (X[0], "(4,)"), (X[:0], "(0, 4)"), (X.tolist(), "list"), (None, "None")],
    ids=["integers", "a vector", "no particles", "a list", "None"],
)
def test_functional_repulsion_wants_float_outputs(outputs, word):
    with refused(DataError, "`outputs`", "float tensor", word):
        repulse.functional.repulsion(outputs)


def test_raw_logits_are_not_taken_for_log_probabilities():
    with refused(DataError, "`log_probs`", "log_softmax", "values up to 5"):
        repulse.ClassPrediction(torch.full((2, 3, 4), 5.0))


def test_two_columns_are_not_guessed_at():
    """Inputs and targets of one column each look like two batches."""
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    column = torch.randn(40, 1)
    ensemble = repulse.retrofit(
        model, [(column, column)], repulsion=None, recipe=Recipe(task="regression", epochs=1), progress=False
    )
    with refused(DataError, "`x`", "two columns"):
        ensemble.predict((column, column))


def test_features_with_a_graph_are_fitted_all_the_same():
    features = torch.randn(40, 4) @ torch.ones(4, 4, requires_grad=True)
    heads = repulse.fit_heads(features, torch.arange(40) % 2, None, Recipe(epochs=1), progress=False)
    assert not heads.weight.requires_grad


NETWORKS = {
    "frozen": ([network().requires_grad_(False)], ["`networks[0]`", "require gradients", "none"]),
    "another type": ([network().double()], ["`inputs`", "torch.float64", "torch.float32"]),
    "no modules": ([network(), 3], ["`networks[1]`", "a module", "int"]),
    "none": ([], ["`networks`", "a list of modules", "none"]),
    "a number": (3, ["`networks`", "a list of modules", "int"]),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_fit_networks_says_what_is_wrong_with_them(case):
    with refused(DataError, *NETWORKS[case][1]):
        repulse.fit_networks(NETWORKS[case][0], X, Y, None, SHORT, progress=False)


@pytest.mark.parametrize(("log_probs", "word"), [(X.tolist(), "list"), (X, "(40, 4)"), (None, "NoneType")])
def test_batchbald_wants_a_tensor(log_probs, word):
    with refused(DataError, "`log_probs`", "(members, samples, classes)", word):
        repulse.batchbald(log_probs, 2)


def test_unknown_settings_of_a_recipe_are_named():
    with refused(RecipeError, "`Recipe`", "but got 'head'.", "Did you mean 'heads'?"):
        Recipe(head=3)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 0, 8), (2, 3, 8, 0)])
def test_sources_want_images_with_pixels(shape):
    for source in (DeadLeaves(), PatchShuffle(4), Swirl()):
        with refused(RepulsionError, "`inputs`", "images with pixels", str(shape)):
            source.sample(torch.zeros(shape), torch.Generator())
    for source in (Noise(), UniformBox(), Mixup()):
        with refused(RepulsionError, "`inputs`", "at least one", str(shape)):
            source.sample(torch.zeros(shape), torch.Generator())


def test_tiles_have_a_limit():
    with refused(RecipeError, "`tiles`", "at most 1,048,576", "10,000,000,000,000,000"):
        PatchShuffle(10**16)


def test_a_call_with_inputs_that_are_not_finite_says_so():
    ensemble = retrofit()
    with refused(DataError, "`x`", "output is finite", "NaN"):
        ensemble(spoilt(X, 3))


def test_files_that_cannot_be_written_are_named(tmp_path):
    """Whatever writes one: the disk's own words, in our sentence."""
    (tmp_path / "file").write_text("mine")
    ensemble, path = retrofit(), tmp_path / "file" / "below"
    found = repulse.evaluate(ensemble, (X, Y), progress=False)
    learning = repulse.ActiveLearning(X, lambda *_: None)
    for write in (found.to_json, found.plot, learning.save, Energy(LastLayer(X[:3], X[0, :3])).fit(X, Y).save):
        with refused(repulse.CheckpointError, "`path`", "a file that can be written", "File exists"):
            write(path)


def test_a_model_without_weights_is_refused():
    with refused(BackboneError, "`model`", "with weights", "meta device"):
        retrofit(network().to("meta"))
