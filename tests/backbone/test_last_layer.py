"""Where the last layer is, and what has none."""

# pyright: reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from models import CLASSES, QUICK, Odd, images, normal, perceptron, rebuilt, same_state, state_of
from repulse import BackboneError, retrofit
from repulse.backbone import Ending, split

pytestmark = [
    pytest.mark.filterwarnings("ignore::repulse.FitWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z_]+` is deprecated:DeprecationWarning"),
]


@pytest.mark.parametrize("order", [("head", "body", "aux", "never"), ("never", "aux", "body", "head")], ids=" ".join)
def test_neither_the_order_of_layers_nor_later_ones_matter(order):
    model, x = Odd(*order), normal(6, 4)
    backbone = split(model, x)
    assert backbone.ending == Ending(("head",))
    torch.testing.assert_close(rebuilt(backbone, x), model(x).detach())


def test_a_last_layer_that_runs_again_is_refused():
    class Again(Odd):
        def forward(self, x):
            logits = self.head(self.body(x).tanh())
            self.head(self.body(-x).relu())  # for a loss of its own, say
            return logits

    model, x = Again(), normal(6, 4)
    with pytest.raises(BackboneError, match="something else"):
        split(model, x)


def test_a_head_on_maps_that_were_small_at_first_says_so():
    """Split on images that leave a single position; those that come later leave several."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    backbone = split(model, images(4))
    with pytest.raises(BackboneError, match="one, as in the first batch"):
        rebuilt(backbone, images(9))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("heads", ["`last_layer`", "a linear layer of the model", "'heads'", "Did you mean 'head'?"]),
        ("body", ["`body` with 8 outputs", "(6, 3)", "leave out `last_layer`"]),
        ("aux", ["something else after `aux`", "leave out `last_layer`"]),
        ("never", ["ends in a linear layer", "a pass that did not run `never`"]),
        ("act", ["`last_layer`", "'act', a Tanh"]),
    ],
)
def test_a_last_layer_that_is_named_must_be_the_last_one(name, words):
    model = Odd()
    model.act = nn.Tanh()
    assert split(model, normal(6, 4), last_layer="head").ending == Ending(("head",))
    with refused(*words):
        split(model, normal(6, 4), last_layer=name)
    with refused(*words):
        retrofit(
            *(model, [(normal(6, 4), torch.arange(6) % 3)]),
            **{"repulsion": None, "recipe": QUICK, "last_layer": name, "progress": False},
        )


@contextmanager
def refused(*words):
    """One sentence that has all these words."""
    with pytest.raises(BackboneError, match=r"^Expected .+ to be .+, but got .+[.?]$") as caught:
        yield
    for word in words:
        assert word in str(caught.value)


class Does(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def convolutional(*after):
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, CLASSES, 1), *after)


POOLED = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
REFUSED = {
    "ReLU on maps": (lambda: convolutional(nn.ReLU(), *POOLED), images(), ["something else after `2`"]),
    "softmax on maps": (lambda: convolutional(nn.Softmax(1), *POOLED), images(), ["something else after `2`"]),
    "largest of maps": (
        lambda: convolutional(nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        images(),
        ["something else after `2`"],
    ),
    "no linear layer": (lambda: nn.Sequential(nn.Conv2d(3, 5, 3), *POOLED), images(), ["linear layer", "ran none"]),
    "a cube": (lambda: perceptron(5, Does(lambda z: z**3)), normal(6, 4), ["something else after `2`"]),
    "one class left out": (lambda: perceptron(5, Does(lambda z: z[:, 1:])), normal(6, 4), ["5 outputs", "(6, 4)"]),
    "noise": (
        lambda: perceptron(5, Does(lambda z: z + torch.randn_like(z))),
        normal(6, 4),
        ["the same output for the same input", "different outputs"],
    ),
    "dropout always on": (
        lambda: nn.Sequential(nn.Linear(4, 8), Does(nn.functional.dropout), nn.Linear(8, 3)),
        normal(6, 4),
        ["the same output for the same input", "different outputs"],
    ),
    "samples mixed up": (lambda: perceptron(5, Does(lambda z: z[:1])), normal(6, 4), ["one output for each of 6"]),
    "a number": (lambda: perceptron(5, Does(torch.sum)), normal(6, 4), ["one output for each of 6", "shape ()"]),
    "a string": (lambda: perceptron(5, Does(str)), normal(6, 4), ["`model(batch)`", "a tensor", "str"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_last_layer_is_refused_in_one_sentence(case):
    build, x, words = REFUSED[case]
    torch.manual_seed(0)
    model = build().train()
    before = state_of(model)
    with refused(*words):
        split(model, x)
    with refused(*words):
        retrofit(model, [(x, torch.arange(len(x)) % 3)], repulsion=None, recipe=QUICK, progress=False)
    assert same_state(before, state_of(model))


def test_a_layer_whose_owner_changes_what_it_returns_is_refused():
    model = perceptron()
    model[2].register_forward_hook(lambda module, inputs, output: 3 * output)
    with refused("a hook or wrapper after `2`"):
        split(model, normal(6, 4))


@pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel], ids=["alone", "data parallel"])
def test_torchscript_is_refused(wrap):
    with refused("`model`", "a network in Python", "TorchScript"):
        split(wrap(torch.jit.trace(perceptron(), normal(2, 4))), normal(6, 4))


@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, normal(2, 4))], ids=["script", "trace"]
)
def test_torchscript_inside_is_left_alone_or_refused(make):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        model = nn.Sequential(nn.Linear(4, 4), make(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))
    x = normal(6, 4)
    try:
        backbone = split(model, x)
    except BackboneError as error:
        assert "TorchScript" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(rebuilt(backbone, x), model(x).detach())
    assert not any(len(module._forward_hooks) for module in (model, model[0], model[2], model[3]))
