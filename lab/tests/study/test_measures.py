"""What is measured of a fitted method, with and without calibration, on samples with one label and with ten."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from repulse.baselines import MAP
from repulse.prediction import ClassPrediction
from repulse_lab.study import measures
from repulse_lab.study.features import NetworkFeatures
from repulse_lab.study.measures import Trial, measure_labels, measure_pairs, measured
from repulse_lab.study.problems import LabelledPairs, halves
from tiny_problem import light_and_static, trained_network


@pytest.fixture(scope="module")
def images():
    return light_and_static()


@pytest.fixture(scope="module")
def view(images):
    return NetworkFeatures(images, trained_network(images), progress=False).view()


class Cheat(MAP):
    """Right where it was calibrated and wrong elsewhere; features are numbers of samples, and class 0 is no answer."""

    calibrates = True
    known = torch.tensor([])
    calibrates = True

    def calibrate(self, features, targets):
        assert torch.equal(targets, 1 + features[:, 0].long() % 2)
        self.known = features[:, 0]

    def _predict(self, features):
        answer = (1 + features[:, 0].long() % 2) * torch.isin(features[:, 0], self.known)
        return ClassPrediction((10.0 * nn.functional.one_hot(answer, 3)).log_softmax(dim=1).unsqueeze(0))


def test_methods_are_judged_on_what_they_were_not_calibrated_on(images, view):
    few = replace(images, test=images.test[:21], test_targets=1 + torch.arange(21) % 2, human=None)
    numbers, cheat = torch.arange(30.0).unsqueeze(1).repeat(1, 32), Cheat(view.layer)
    trial = Trial(cheat, few, replace(view, test=numbers[:21], outside={"static": numbers[21:]}))
    one, other = (half.tolist() for half in halves(21))
    assert (len(one), len(other), {*one, *other}) == (10, 11, set(range(21)))
    assert measure_labels(trial)["accuracy"] == 0
    assert sorted(cheat.known.tolist()) == sorted(one)
    assert measure_pairs(trial, LabelledPairs(10, torch.arange(21), few.test_targets))["accuracy"] == 0
    folds = measures._folds(trial, torch.arange(21), few.test_targets)
    assert [(int(here.sum()), len(far["static"])) for here, far in folds] == [(10, 4), (11, 5)]


def test_a_method_without_calibration_is_judged_once_on_everything(images, view):
    trial = Trial(MAP(view.layer).fit(view.train, images.targets), images, view)
    samples = torch.tensor([*range(60), *[99] * 10])  # sixty clean images, and ten labels of an ambiguous one
    targets = torch.cat([images.test_targets[:60], torch.arange(10) % 3])
    pairs = LabelledPairs(60, samples, targets)
    figures = measured(replace(trial, images=replace(images, pairs=pairs, averaged=("flat",))))
    right = view.layer(view.test[samples]).argmax(dim=1) == targets
    assert figures["accuracy"] == pytest.approx(100 * right.double().mean().item())
    wins = trial.method.score(view.outside["flat"]).unsqueeze(1) - trial.method.score(view.test)[60:]
    assert figures["ambiguous flat"] == pytest.approx(50 * (1 + wins.sign().double().mean().item()))
    assert figures["ambiguous mean"] == figures["ambiguous flat"] != figures["ambiguous static"]
    both = measure_pairs(trial, pairs)  # without names, the mean is over all sets
    assert both["clean mean"] == pytest.approx((both["clean flat"] + both["clean static"]) / 2)
