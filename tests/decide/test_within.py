"""Labels and positions that are accepted one by one: the bound on their risk, in simulation and through ensembles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import repulse
from repulse import DataError, DensePrediction, MultilabelPrediction, Recipe
from repulse.decide import gate_within
from repulse.decide.within import LIMITS, _shares, betting_p_value

pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_bet_on_the_mean_is_a_p_value():
    """At most a share `p` of draws whose mean is the one tested has a p-value of `p`; of a lower mean nearly all."""
    generator = torch.Generator().manual_seed(0)
    at, below = [], []
    for _ in range(400):
        values = (torch.rand(150, generator=generator) < 0.1).double()
        at.append(betting_p_value(values, 0.1, 0.1))
        below.append(betting_p_value(0.5 * values, 0.1, 0.1))
    assert sum(p <= 0.1 for p in at) <= 0.1 * 400 + 2 * math.sqrt(400 * 0.1 * 0.9)
    assert sum(p <= 0.1 for p in below) > 0.9 * 400


def test_shares_are_those_counted_one_by_one():
    probs = normal(3, 4, 5, 6).softmax(dim=1)
    p = DensePrediction(probs, torch.zeros(3, 5, 6), torch.zeros(3, 5, 6), 5)
    targets = torch.randint(4, (3, 5, 6), generator=torch.Generator().manual_seed(1))
    targets[0, :2] = 255
    targets[2] = 255  # nothing is known of it: it takes no part
    accepted, wrong = _shares(p, targets)
    assert accepted.shape == (2, len(LIMITS))
    for i in range(2):
        known = targets[i] != 255
        for t in (20, 40, len(LIMITS) - 1):
            inside = (1 - p.confidence[i] <= LIMITS[t]) & known
            assert float(accepted[i, t]) == pytest.approx(float(inside.sum() / known.sum()))
            mistakes = (inside & (p.labels[i] != targets[i])).sum()
            assert float(wrong[i, t]) == pytest.approx(float(mistakes / known.sum()))


class Sure(nn.Module):
    """In place of an ensemble: the inputs are the logits of its one member."""

    backbone = type("Backbone", (), {"places": type("Places", (), {"labelled": staticmethod(lambda data: data)})})()

    def predict(self, x):
        return MultilabelPrediction(x.unsqueeze(0))


def draws(count, seed):
    """Logits whose probabilities are right, and labels that agree within an input more than by chance."""
    logits = 3 * normal(count, 6, seed=seed)
    together = torch.rand(count, 1, generator=torch.Generator().manual_seed(seed + 1))
    labels = (together < logits.sigmoid()).float()
    labels[::7, 2] = torch.nan
    return logits, labels


def test_the_risk_is_held_although_labels_are_wrong_together():
    broken, shares = 0, []
    for seed in range(40):
        gate = gate_within(Sure(), draws(200, 10 * seed), risk=0.1, delta=0.1)  # pyright: ignore[reportArgumentType]
        logits, labels = draws(20_000, 10 * seed + 5)
        accepted = gate(logits)[1] & ~labels.isnan()
        wrong = accepted & ((logits > 0) != (labels == 1))
        shares.append(gate.accepted)
        broken += float(wrong.sum()) > 0.1 * float(accepted.sum())
    assert broken <= 0.1 * 40 + 2 * math.sqrt(40 * 0.1 * 0.9)
    assert sorted(shares)[20] > 0.5


def test_pixels_of_an_ensemble():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)).eval()
    images = normal(80, 2, 6, 8)
    with torch.no_grad():
        targets = network(images).argmax(dim=1)
    data = [(images[:16], targets[:16])]
    ensemble = repulse.retrofit(network, data, recipe=Recipe(epochs=2, heads=3), progress=False)
    gate = gate_within(ensemble, (images[16:], targets[16:]), risk=0.2, delta=0.1)
    prediction, accepted = gate(images[:3])
    assert accepted.shape == prediction.epistemic.shape == (3, 6, 8)
    assert bool(accepted.any())
    assert "at most 0.2 of the parts" in repr(gate)
    nothing = gate_within(ensemble, (images[16:20], targets[16:20]), risk=0.01, delta=0.01)
    assert nothing.limit == -math.inf
    assert not bool(nothing(images[:3])[1].any())


def test_one_class_per_input_has_another_gate():
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    data = (normal(60, 3), torch.arange(60) % 2)
    ensemble = repulse.retrofit(network, [data], recipe=repulse.LL_E.replace(epochs=1, heads=2), progress=False)
    with pytest.raises(DataError, match="has `gate`"):
        gate_within(ensemble, data)
