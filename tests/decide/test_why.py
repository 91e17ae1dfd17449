"""Reasons: the ledger sums to the whole, neighbours are the nearest, one input is explained as a batch of one is."""

import math

import pytest
import torch
from torch import nn

import repulse
from models import normal, trained_perceptron
from repulse.backbone import split
from repulse.decide.ledger import CONSTANT, DISTANCE, Block, blocks_of, ledger
from repulse.decide.neighbours import Neighbours
from repulse.errors import DataError
from repulse.kept import KeptFeatures
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification

QUICK = repulse.Recipe(epochs=2, heads=4)


def batches(seed=0, count=60):
    x = normal(count, 4, seed=seed)
    return [(x[i : i + 20], (x[i : i + 20, 0] > 0).long() + (x[i : i + 20, 1] > 0).long()) for i in range(0, count, 20)]


@pytest.fixture(scope="module")
def ensemble():
    network = trained_perceptron(*map(torch.cat, zip(*batches(), strict=True)), outputs=3)
    return repulse.retrofit(network, batches(), validation=batches(1), recipe=QUICK, progress=False)


def test_the_parts_of_the_ledger_sum_to_the_deviations_of_the_heads(ensemble):
    heads, x = ensemble.heads, 5 * normal(6, 4, seed=2)
    features = ensemble.backbone(x)
    found = ledger(heads, blocks_of(ensemble.backbone, heads), features)
    outputs = heads(features).double()
    deviations = outputs - outputs.mean(dim=0)
    deviations = deviations - deviations.mean(dim=-1, keepdim=True)
    torch.testing.assert_close(found.whole, deviations, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.parts.sum(dim=0), found.whole)
    torch.testing.assert_close(found.shares.sum(dim=1), torch.ones(6, dtype=torch.float64))


def test_shares_have_their_closed_form():
    """Two heads that differ in one weight each, of two blocks: shares are those of their squares' products."""
    heads = Heads(2, 2, Classification(2))
    with torch.no_grad():
        heads.weight.zero_()
        heads.bias.zero_()
        heads.weight[0, 0] = torch.tensor([2.0, 1.0])
    x = torch.tensor([[3.0, 4.0]])
    found = ledger(heads, [Block("a", 0, 1), Block("b", 1, 2)], x)
    # The difference of logits is 2 * 3 + 1 * 4 for one head, 0 for the other: 6 and 4 of 10.
    torch.testing.assert_close(found.shares, torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64))
    assert found.names == ("a", "b", CONSTANT)


def test_equal_heads_have_nothing_to_share():
    heads = Heads(3, 2, Classification(2))
    with torch.no_grad():
        for part in (heads.weight, heads.bias):
            part.copy_(part[:1].expand_as(part).clone())
    assert ledger(heads, [Block("all", 0, 2)], normal(4, 2)).shares.eq(0).all()


def test_every_tap_has_its_place_in_the_ledger():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    backbone = split(model.eval(), normal(4, 3, 8, 8), layers=["1"])
    heads = Heads(2, backbone.width, Classification(3))
    assert [(b.name, b.begin, b.end) for b in blocks_of(backbone, heads)] == [
        ("penultimate features", 0, 4),
        ("1", 4, backbone.width),
    ]


def test_one_input_is_explained_as_in_a_batch(ensemble):
    x = 4 * normal(3, 4, seed=3)
    together, alone = ensemble.why(x), ensemble.why(x[1])
    assert len(together) == 3
    assert isinstance(alone, repulse.decide.Reason)
    assert alone.label == together[1].label
    assert alone.epistemic == pytest.approx(together[1].epistemic, rel=1e-4)
    assert alone.shares == pytest.approx(together[1].shares, rel=1e-4, abs=1e-5)
    assert sum(alone.shares.values()) == pytest.approx(1, abs=1e-5)
    assert sum(alone.votes.values()) == 4
    assert DISTANCE in alone.shares


def test_the_nearest_training_input_is_the_input_itself(ensemble):
    x = batches()[0][0]
    reason = ensemble.why(x[7])
    assert reason.nearest[0].index == 7
    assert reason.nearest[0].distance == pytest.approx(0, abs=1e-4)
    assert [n.distance for n in reason.nearest] == sorted(n.distance for n in reason.nearest)


def test_far_inputs_look_like_repulsion_samples_and_are_far(ensemble):
    near, far = ensemble.why(batches()[0][0][3]), ensemble.why(torch.full((4,), 30.0))
    assert far.repelled > near.repelled
    assert far.nearest[0].distance > 2
    assert "times further than usual" in far.text
    assert far.usual == 1
    assert abs(far.axes[0].deviations) > abs(near.axes[0].deviations)


def test_scores_are_compared_with_data_that_heads_were_not_fitted_to(ensemble, tmp_path):
    x = 3 * normal(3, 4, seed=3)
    made = repulse.load(ensemble.save(tmp_path / "heads", features=True), ensemble.model)
    before = made.why(x)
    validation = made.predict(torch.cat([part for part, _ in batches(1)])).epistemic
    assert before[1].usual == pytest.approx(float((validation < before[1].epistemic).float().mean()))
    assert before[1].compared == "validation"
    assert (before[1].action, before[1].p_value) == (None, None)
    with pytest.warns(repulse.PromiseWarning):
        gate = made.gate(batches(1))
    after, decided = made.why(x), gate(x)
    assert tuple(one.action for one in after) == decided.action
    assert [one.p_value for one in after] == decided.p_value.tolist()
    assert "% of the calibration data" in after.text or "all of the calibration data" in after.text
    assert after[0].text.startswith(f"{decided.action[0]}: class")
    assert all(one.usual == pytest.approx(1 - (one.p_value * 61 - 1) / 60) for one in after)


def test_distances_are_those_of_whitened_features():
    kept = KeptFeatures(normal(50, 3) * torch.tensor([1.0, 10.0, 100.0]), torch.zeros(50, dtype=torch.int64))
    found = Neighbours.of(kept, Heads(2, 3, Classification(2)))
    query = kept.train[:2] + 1.0
    distances, indices = found.nearest(query, 3)
    white = found.whitened(kept.train)
    for i in range(2):
        brute = (white - found.whitened(query[i : i + 1])).norm(dim=1).sort()
        torch.testing.assert_close(distances[i], brute.values[:3])
        assert indices[i].tolist() == brute.indices[:3].tolist()


def test_regression_has_reasons_too():
    x = normal(60, 4)
    model = trained_perceptron(x, x[:, 0], outputs=1)
    made = repulse.retrofit(
        model, [(x, x[:, 0])], validation=[(normal(40, 4, seed=5), normal(40, 4, seed=5)[:, 0])],
        recipe=QUICK.replace(task="regression"), progress=False,
    )  # fmt: skip
    reason = made.why(torch.full((4,), 9.0))
    assert isinstance(reason.label, float)
    assert reason.votes == {}
    assert reason.confidence is None
    assert sum(reason.shares.values()) == pytest.approx(1, abs=1e-5)


def test_without_kept_features_there_are_reasons_but_no_neighbours(ensemble, tmp_path):
    loaded = repulse.load(ensemble.save(tmp_path / "heads"), ensemble.model)
    reason = loaded.why(torch.full((4,), 9.0))
    assert reason.nearest == ()
    assert reason.repelled is None
    assert math.isclose(sum(reason.shares.values()), 1, abs_tol=1e-5)


def test_words_pictures_and_pages(ensemble):
    pytest.importorskip("matplotlib")
    reasons = ensemble.why(5 * normal(2, 4, seed=2))
    assert reasons.text.count("\n") == 1
    assert "<li>" in reasons._repr_html_()
    assert reasons[0].text.split(";")[0] in reasons[0]._repr_html_().replace("&#x27;", "'")
    assert len(reasons[0].plot().axes) == 3
    assert len(reasons[0].plot(image=normal(3, 4, 4), training=[(normal(3, 4, 4), 0)] * 60).axes) == 8


def test_an_input_that_the_network_does_not_take_is_refused(ensemble):
    with pytest.raises(DataError, match="Expected `x` to be inputs the model can take"):
        ensemble.why(normal(3, 5))
    with pytest.raises(DataError, match="Expected `x` to be inputs the model can take"):
        ensemble.why([(normal(3, 4), torch.zeros(3))])  # a loader
    with pytest.raises(DataError, match="Expected `x` to be finite"):
        ensemble.why(torch.full((4,), torch.nan))


def test_hidden_layers_have_no_exact_ledger():
    with pytest.raises(DataError, match="linear"):
        ledger(Heads(2, 3, Classification(2), (5,)), [Block("all", 0, 3)], normal(2, 3))
