"""Networks of every family are split where they end.

Each family is a real model of its real library with random weights, only smaller. The closed form is the same for all:
the last layer's weights on the penultimate features are the network's logits.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from families import FAMILIES, family, first, logits_of
from models import CLASSES, rebuilt, same_state, state_of
from repulse import BackboneError, Recipe, retrofit
from repulse.backbone import split

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers is imported later, inside the tests
pytestmark = [
    pytest.mark.filterwarnings("ignore::repulse.FitWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z_]+` is deprecated:DeprecationWarning"),
]


@pytest.fixture(params=FAMILIES)
def member(request):
    return SimpleNamespace(**dict(zip(("model", "inputs", "others", "ending"), family(request.param), strict=True)))


@torch.no_grad()
def test_the_last_layer_is_found_and_gives_the_networks_logits(member):
    before = state_of(member.model)
    backbone = split(member.model, member.inputs)
    assert backbone.ending == member.ending
    assert backbone.outputs == CLASSES
    for inputs in (member.inputs, member.others, first(member.others, 1)):
        torch.testing.assert_close(rebuilt(backbone, inputs), logits_of(member.model, inputs), rtol=1e-4, atol=1e-4)
    assert same_state(before, state_of(member.model))


def test_the_last_layer_can_be_named(member):
    if len(member.ending.layers) > 1:
        with pytest.raises(BackboneError, match="that of a linear layer, or its softmax"):  # one of two is not enough
            split(member.model, member.inputs, last_layer=member.ending.layers[0])
    else:
        assert split(member.model, member.inputs, last_layer=member.ending.layers[0]).ending == member.ending


def test_heads_that_start_at_the_last_layer_predict_as_the_network_does(member):
    """A fit without steps, of heads around the network's own: their mean is the network, up to the noise."""
    targets = torch.arange(10) % CLASSES
    mapping = isinstance(member.inputs, dict)
    batch = {**member.inputs, "labels": targets} if mapping else (member.inputs, targets)
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400, batch_size=10)
    before = state_of(member.model)
    ensemble = retrofit(member.model, [batch], repulsion=None, recipe=recipe, progress=False)
    assert same_state(before, state_of(member.model))
    assert ensemble.backbone.width == ensemble.heads.features
    wanted = logits_of(member.model, member.inputs).detach().log_softmax(dim=1)
    if isinstance(member.inputs, dict):
        found, predicted = ensemble(**member.inputs), ensemble.predict(batch)
    else:
        found = ensemble(*member.inputs) if isinstance(member.inputs, tuple) else ensemble(member.inputs)
        predicted = ensemble.predict([batch], progress=False)
    torch.testing.assert_close(predicted.probs, found.exp())
    varied = float((wanted - wanted.mean(dim=0)).abs().max())
    assert (found - wanted).abs().max() < 0.1 * varied
    assert (found - wanted.roll(1, dims=0)).abs().max() > 0.5 * varied  # it cannot be said of any logits
