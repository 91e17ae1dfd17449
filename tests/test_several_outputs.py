"""Several labels, several targets and soft targets, from `retrofit` to `evaluate`, as users call them."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.testing import assert_close

import repulse
from repulse import BackboneError, DataError, MultilabelPrediction, Recipe, metrics

pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
QUICK = {"epochs": 4, "heads": 4}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = normal(400, 3)
LOGITS = 3 * X @ normal(3, 4, seed=1)
LABELS = (LOGITS + normal(400, 4, seed=2) > 1).float()
NUMBERS = X @ normal(3, 2, seed=3) * torch.tensor([1.0, 100.0]) + normal(400, 2, seed=4) * torch.tensor([0.2, 30.0])


def trained(targets, loss, *after):
    """A perceptron that knows the targets, with something after its last layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, targets.shape[1]))
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        adam.zero_grad()
        loss(net(X), targets).backward()
        adam.step()
    return nn.Sequential(*net, *after)


def batches(targets, rows=slice(0, 200)):
    return list(zip(X[rows].split(50), targets[rows].split(50), strict=True))


@pytest.fixture(scope="module")
def labelling():
    net = trained(LABELS, nn.functional.binary_cross_entropy_with_logits)
    some = LABELS.clone()
    some[::7, 1] = torch.nan
    recipe = Recipe(task="multilabel", **QUICK)
    data, held_out = batches(some), batches(some, slice(200, 400))
    return net, repulse.retrofit(
        net, data, validation=held_out, recipe=recipe, class_names=list("abcd"), progress=False
    )


def test_several_labels(labelling, tmp_path):
    net, ensemble = labelling
    p = ensemble.predict(X[:9])
    assert isinstance(p, MultilabelPrediction)
    assert p.epistemic.shape == (9,)
    assert p.epistemic_per_label.shape == p.probs.shape == p.labels.shape == (9, 4)
    assert ensemble.class_names == ("a", "b", "c", "d")
    assert_close(ensemble(X[:9]).sigmoid(), p.probs)
    assert {"nll", "ece", "auroc", "average_precision"} == set(ensemble.summary().network)
    assert ensemble.score(30 * X).mean() > 3 * ensemble.score(X).mean()
    ensemble.save(tmp_path)
    assert_close(repulse.load(tmp_path, net).predict(X[:9]).epistemic, p.epistemic, rtol=0, atol=0)
    assert_close(p[2:4].probs, p.probs[2:4])
    halves = [ensemble.predict(part) for part in X[:9].split(5)]
    assert_close(repulse.Prediction.cat(halves).epistemic, p.epistemic)


def test_a_network_with_sigmoids_gives_the_same(labelling):
    net = labelling[0]
    after = nn.Sequential(*net, nn.Sigmoid())
    recipe = Recipe(task="multilabel", **QUICK)
    other = repulse.retrofit(after, batches(LABELS), recipe=recipe, progress=False)
    assert other.backbone.ending.activation == "sigmoid"
    assert other.predict(X[:5]).probs.shape == (5, 4)
    with pytest.raises(BackboneError, match="multilabel"):
        repulse.retrofit(after, batches(LABELS.argmax(dim=1)), progress=False)


def test_labels_are_kept_in_a_cache(labelling, tmp_path):
    net, recipe = labelling[0], Recipe(task="multilabel", **QUICK)
    first, again = (
        repulse.retrofit(net, batches(LABELS), recipe=recipe, cache=tmp_path, progress=False) for _ in range(2)
    )
    assert_close(first.predict(X).epistemic, again.predict(X).epistemic, rtol=0, atol=0)


def test_metrics_of_labels_are_those_of_scikit_learn(labelling):
    p, targets = labelling[1].predict(X), LABELS.clone()
    ours, theirs = metrics.label_auroc(p, targets), metrics.label_average_precision(p, targets)
    for k in range(4):
        assert float(ours[k]) == pytest.approx(roc_auc_score(targets[:, k], p.probs[:, k]), abs=1e-9)
        assert float(theirs[k]) == pytest.approx(average_precision_score(targets[:, k], p.probs[:, k]), abs=1e-9)
    targets[:200, 0] = torch.nan
    assert float(metrics.label_auroc(p, targets)[0]) == pytest.approx(roc_auc_score(LABELS[200:, 0], p.probs[200:, 0]))
    targets[:, 2] = 1.0
    assert metrics.label_ece(p, targets).isnan().tolist() == [False, False, True, False]
    told = repulse.evaluate(labelling[1], (X, LABELS), {"far": 30 * X}, progress=False)
    assert told.task == "multilabel"
    assert told.id["auroc[0]"] == pytest.approx(roc_auc_score(LABELS[:, 0], p.probs[:, 0]))
    assert told.ood["far"]["auroc"] > 0.9
    assert repulse.Evaluation.from_json(told.to_json()).id == pytest.approx(told.id, nan_ok=True)
    assert "[0]" not in repr(told)


def test_calibration_of_a_label_by_hand():
    """Probabilities 0.1 and 0.9, two inputs each, of which one and two have the label."""
    logits = torch.tensor([0.1, 0.1, 0.9, 0.9]).logit().view(1, 4, 1)
    targets = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    p = MultilabelPrediction(logits)
    assert float(metrics.label_ece(p, targets)) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert float(metrics.label_f1(p, targets)) == pytest.approx(2 * 2 / (2 + 3))
    assert float(metrics.label_nll(p, targets)) == pytest.approx(
        -float(torch.tensor([0.9, 0.1, 0.9, 0.9]).log().mean())
    )


@pytest.mark.parametrize("validated", [True, False])
def test_several_targets(validated, tmp_path):
    net = trained(NUMBERS / torch.tensor([1.0, 100.0]), nn.functional.mse_loss)
    with torch.no_grad():  # in units of the targets
        net[2].weight *= torch.tensor([[1.0], [100.0]])
        net[2].bias *= torch.tensor([1.0, 100.0])
    held_out = batches(NUMBERS, slice(200, 400)) if validated else None
    recipe = Recipe(task="regression", **QUICK)
    ensemble = repulse.retrofit(net, batches(NUMBERS), validation=held_out, recipe=recipe, progress=False)
    p = ensemble.predict(X)
    assert p.mean.shape == p.epistemic.shape == p.total.shape == (400, 2)
    assert ensemble.score(X).shape == (400,)
    noise = ensemble.heads.task.noise
    assert 0.1 < noise[0] < 0.4
    assert 15 < noise[1] < 60
    told = repulse.evaluate(ensemble, (X[200:], NUMBERS[200:]), {"far": 30 * X}, progress=False)
    assert 0.85 < told.id["coverage_95[0]"] <= 1
    assert told.ood["far"]["auroc"] > 0.9
    assert told.id["rmse[1]"] == pytest.approx(float((p.mean[200:, 1] - NUMBERS[200:, 1]).square().mean().sqrt()))
    ensemble.save(tmp_path)
    assert_close(repulse.load(tmp_path, net).predict(X).joint_epistemic, p.joint_epistemic, rtol=0, atol=0)
    assert "RMSE 2" in str(ensemble.summary())


def test_noise_that_is_known_for_each_target():
    net = trained(NUMBERS, nn.functional.mse_loss)
    recipe = Recipe(task="regression", noise=(0.2, 30.0), **QUICK)
    p = repulse.retrofit(net, batches(NUMBERS), recipe=recipe, progress=False).predict(X[:3])
    assert_close(p.aleatoric, torch.tensor([[0.04, 900.0]]).expand(3, 2))
    with pytest.raises(DataError, match="for each of 2 targets"):
        repulse.fit_heads(X, NUMBERS, recipe=Recipe(task="regression", noise=(1.0, 2.0, 3.0)), progress=False)


def test_soft_targets():
    shares = LOGITS.softmax(dim=1)
    net = trained(shares, nn.functional.cross_entropy)
    recipe = Recipe(**QUICK)
    ensemble = repulse.retrofit(
        net, batches(shares), validation=batches(shares, slice(200, 400)), recipe=recipe, progress=False
    )
    assert ensemble.heads.task == repulse.tasks.Classification(4)
    assert float((ensemble.predict(X).probs - shares).abs().mean()) < 0.05


WRONG = {
    "labels of another number": (LABELS[:, :3], "multilabel", ["(batch, 4)", "(50, 3)"]),
    "labels that are counts": (2 * LABELS, "multilabel", ["0, 1 or, where unknown, NaN", "but got 2"]),
    "several labels as classes": (LABELS, "classification", ["sum to one", "multilabel"]),
    "several labels as integers": (LABELS.long(), "classification", ["class indices", "multilabel"]),
    "three targets": (LABELS[:, :3], "regression", ["3 outputs, one per target", "4 outputs"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_targets_that_do_not_fit(name):
    targets, task, words = WRONG[name]
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.raises(repulse.RepulseError) as error:
        repulse.retrofit(net, batches(targets), recipe=Recipe(task=task), progress=False)
    assert all(word in str(error.value) for word in words), str(error.value)
