"""What a retrofit says of itself: numbers that can be worked out by hand, and warnings where something is worse."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from repulse import DataError, Ensemble, FitWarning, Recipe, retrofit
from repulse.backbone import split
from repulse.particles.centre import Centre
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification, Regression
from repulse.summary import Summary, summarise

IDENTITY = torch.eye(2), torch.zeros(2)
LOG_9 = math.log(9)
ROWS = torch.tensor([[LOG_9, 0.0], [0.0, LOG_9], [LOG_9, 0.0], [LOG_9, 0.0]])
LABELS = torch.tensor([0, 1, 0, 1])


def plain_heads(*weights: torch.Tensor, task=None) -> Heads:
    """Linear heads with these weights and no bias."""
    heads = Heads(len(weights), weights[0].shape[1], task or Classification(2), generator=torch.Generator())
    with torch.no_grad():
        heads.weight.copy_(torch.stack(weights))
        heads.bias.zero_()
    return heads


def made(**changes) -> Summary:
    good = {"accuracy": 0.9, "nll": 0.3, "ece": 0.02, "aurc": 0.01}
    whole = Summary("validation", 5000, good, good, {"data": 0.1, "repulsion": 0.4}, 0.9, "the mean is the network's")
    return dataclasses.replace(whole, **changes)


def test_numbers_of_a_tiny_classification_are_those_on_paper():
    """Confidences of 0.9 throughout, three of four right; heads that are the network say the same."""
    heads = plain_heads(torch.eye(2), torch.eye(2))
    found = summarise(heads, IDENTITY, ROWS, LABELS, None, None)
    nll = -(3 * math.log(0.9) + math.log(0.1)) / 4
    for numbers in (found.network, found.ensemble):
        assert numbers["accuracy"] == 0.75
        assert numbers["nll"] == pytest.approx(nll, rel=1e-5)
        assert numbers["ece"] == pytest.approx(0.9 - 0.75, rel=1e-5)
    assert found.network == pytest.approx(found.ensemble)
    assert (found.data, found.samples, found.separation) == ("training", 4, None)
    assert found.epistemic == {"data": pytest.approx(0.0, abs=1e-6)}
    assert found.warnings() == []


def test_disagreement_is_measured_on_data_and_on_repulsion_samples():
    """Two heads that are opposite where only the second feature speaks: one bit of disagreement there, at most."""
    heads = plain_heads(torch.tensor([[20.0, 20.0], [0, 0]]), torch.tensor([[20.0, -20.0], [0, 0]]))
    near, far = torch.tensor([[1.0, 0.0]]).repeat(6, 1), torch.tensor([[0.0, 1.0]]).repeat(3, 1)
    found = summarise(heads, IDENTITY, near, torch.zeros(6, dtype=torch.long), None, far)
    assert found.epistemic["data"] == pytest.approx(0.0, abs=1e-5)
    assert found.epistemic["repulsion"] == pytest.approx(math.log(2), rel=1e-4)
    assert found.separation == 1.0


def test_validation_data_comes_first():
    heads = plain_heads(torch.eye(2), torch.eye(2))
    found = summarise(heads, IDENTITY, ROWS, LABELS, (ROWS[:2], LABELS[:2]), None)
    assert (found.data, found.samples, found.network["accuracy"]) == ("validation", 2, 1.0)


def test_numbers_of_a_tiny_regression_are_those_on_paper():
    """The network is wrong by one everywhere, its noise is what it leaves; the heads are right, with noise of two."""
    x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 3.0])
    heads = plain_heads(torch.tensor([[1.0]]), torch.tensor([[1.0]]), task=Regression(2.0))
    found = summarise(heads, (torch.ones(1, 1), torch.ones(1)), x, y, None, None)
    assert found.network["rmse"] == pytest.approx(1.0)
    assert found.network["nll"] == pytest.approx((math.log(2 * math.pi) + 1) / 2, rel=1e-5)
    assert found.ensemble["rmse"] == pytest.approx(0.0, abs=1e-6)
    assert found.ensemble["nll"] == pytest.approx(math.log(2 * math.pi * 4) / 2, rel=1e-5)
    assert found.ensemble["coverage_95"] == 1.0


def test_of_many_rows_some_are_looked_at(monkeypatch):
    monkeypatch.setattr("repulse.summary.MAX_ROWS", 3)
    heads = plain_heads(torch.eye(2), torch.eye(2))
    found = summarise(heads, IDENTITY, ROWS, LABELS, None, ROWS.repeat(5, 1))
    assert (found.samples, found.network["accuracy"]) == (2, 1.0)  # rows 0 and 2


@pytest.mark.parametrize(
    ("name", "within", "worse", "word"),
    [
        ("accuracy", 0.896, 0.894, "accuracy 0.894"),
        ("nll", 0.319, 0.321, "NLL 0.321"),
        ("ece", 0.029, 0.031, "ECE 0.031"),
        ("aurc", 0.0119, 0.0121, "AURC 0.0121"),
    ],
)
def test_an_ensemble_that_is_worse_is_warned_about(name, within, worse, word):
    assert made(ensemble={**made().network, name: within}).warnings() == []
    summary = made(ensemble={**made().network, name: worse})
    (message,) = summary.warnings()
    assert word in message
    assert "worse than the network" in message
    with pytest.warns(FitWarning, match=word):
        summary.warn()
    assert f"! {message}" in str(summary)


def test_few_rows_cannot_tell():
    """Of 80 rows the margins are five times as wide: one row that changed sides is not worth a word."""
    network = made().network
    assert made(samples=80, ensemble={**network, "accuracy": 0.876}).warnings() == []
    assert len(made(samples=80, ensemble={**network, "accuracy": 0.874}).warnings()) == 1


def test_errors_of_a_regression_are_relative_to_the_network_s():
    network = {"rmse": 50.0, "nll": 2.0, "coverage_95": 0.95}
    assert made(network=network, ensemble={**network, "rmse": 50.9}).warnings() == []
    assert "RMSE 51.1" in made(network=network, ensemble={**network, "rmse": 51.1}).warnings()[0]


def test_samples_that_look_like_the_data_are_warned_about():
    assert made(separation=0.61).warnings() == []
    (message,) = made(separation=0.55).warnings()
    assert "AUROC 0.55" in message
    assert "look like the data" in message
    assert made(separation=None).warnings() == []


def test_html_shows_words_as_words():
    summary = made(centre="<b>&", assumed=["<script>"], epistemic={"<i>": 0.1})
    page = summary._repr_html_()
    assert "&lt;b&gt;&amp;" in page
    assert "&lt;script&gt;" in page
    assert "&lt;i&gt;" in page
    assert not any(tag in page for tag in ("<b>", "<script>", "<i>"))
    assert "<td>accuracy</td><td>0.9</td><td>0.9</td>" in page


def test_a_summary_survives_json_and_so_does_a_number_that_is_none():
    summary = made(network={"accuracy": math.nan, "nll": 0.5}, assumed=["something"])
    back = Summary.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False)))
    assert math.isnan(back.network["accuracy"])
    assert dataclasses.replace(back, network={}) == dataclasses.replace(summary, network={})


@pytest.mark.parametrize(
    ("centre", "words"),
    [
        (Centre(1.0, 1.0), "the mean prediction is the network's"),
        (Centre(0.0, 2.0), "the mean prediction is the heads' own, at temperature 2.00"),
        (Centre(0.5, 0.5), "the mean prediction is 50% the network's, the rest the heads' own, at temperature 0.50"),
    ],
)
def test_the_centre_is_said_in_words(centre, words):
    heads = CentredHeads(2, 2, Classification(2), centre=centre, known=2, axes=2, ends=1)
    heads.release_quantiles.fill_(1.0)
    heads.release_largest.fill_(1.0)
    heads.distance_scale.fill_(1.0)
    found = summarise(heads, IDENTITY, ROWS, LABELS, None, None)
    assert found.centre == words
    assert "no validation data was given" in found.assumed[0]
    assert summarise(heads, IDENTITY, ROWS, LABELS, (ROWS, LABELS), None).assumed == []


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), x, torch.arange(60) % 3


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_a_retrofit_has_a_summary_of_its_network(problem):
    model, x, y = problem
    recipe = Recipe(heads=3, epochs=2, repulsion_samples=40)
    ensemble = retrofit(model, [(x, y)], recipe=recipe, progress=False)
    found = ensemble.summary()
    assert found.network["accuracy"] == pytest.approx(float((model(x).argmax(dim=1) == y).double().mean()))
    assert found.network["nll"] == pytest.approx(float(nn.functional.cross_entropy(model(x).detach(), y)), rel=1e-5)
    assert set(found.epistemic) == {"data", "repulsion"}
    assert "<table>" in ensemble._repr_html_()


def test_a_single_head_is_warned_about(problem):
    model, x, y = problem
    with pytest.warns(FitWarning, match="A single head has nothing to disagree with"):
        ensemble = retrofit(model, [(x, y)], recipe=Recipe(heads=1, epochs=1, repulsion_samples=20), progress=False)
    assert ensemble.summary().separation is None
    assert ensemble.summary().epistemic["data"] == 0


def test_an_ensemble_that_was_put_together_by_hand_has_none(problem):
    model, x, _ = problem
    backbone = split(model, x)
    ensemble = Ensemble(backbone, Heads(2, backbone.width, Classification(3), generator=torch.Generator()))
    with pytest.raises(DataError, match="This ensemble has no summary"):
        ensemble.summary()
    assert "<table>" not in ensemble._repr_html_()
