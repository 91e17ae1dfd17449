"""Several labels, several targets and soft targets: decompositions by properties, steps against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from repulse import DataError, MultilabelPrediction, MultiregressionPrediction, RegressionPrediction
from repulse.particles.centre import Centre
from repulse.particles.fast.likelihood import Gaussians
from repulse.particles.fit_data import FitData, identity
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification, Multilabel, Multiregression
from repulse.particles.tasks.classification import SoftClassification
from repulse.recipe import Recipe

from .naive import random
from .test_closed import AWAY, STEP, D, N, X, compare

K = 3
LABELS = (random(N, K, seed=4) > 0.3).float()
LABELS[::5, 1] = torch.nan
NUMBERS = X @ random(D, K, seed=5) + 0.3 * random(N, K, seed=6)
SHARES = random(N, K, seed=7).softmax(dim=1)
TASKS = {
    "multilabel": (Multilabel((0.0, -1.0, 2.0)), LABELS.double()),
    "known noise": (Multiregression(K, (0.3, 1.0, 2.0)), NUMBERS),
    "predicted noise": (Multiregression(K, None, (0.1, 0.2, -0.3)), NUMBERS),
    "soft": (SoftClassification(K), SHARES),
}
shapes = st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("compared", ["jointly", "pointwise"])
def test_the_step_is_that_of_autograd(name, on, compared, monkeypatch):
    task, y = TASKS[name]
    heads = Heads(5, D, task, generator=torch.Generator().manual_seed(5)).double()
    compare(heads, FitData(X, y, AWAY, identity, task), STEP.replace(on=on, compare=compared), monkeypatch)


def test_unknown_labels_take_no_part():
    task, _ = TASKS["multilabel"]
    outputs, known = random(4, N, K), LABELS.nan_to_num(nan=1.0).double()
    by_hand = torch.nn.functional.binary_cross_entropy_with_logits(outputs, known.expand(4, -1, -1), reduction="none")
    by_hand[:, LABELS.isnan()] = 0
    assert_close(task.nll(outputs, LABELS.double()), by_hand.sum(dim=2).mean(dim=1))


def test_the_log_odds_of_labels_are_those_among_the_known_and_one_more_of_each():
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, torch.nan], [0.0, 0.0]])
    _, task = Multilabel.from_targets(targets, 4, Recipe(), None)
    assert task.log_odds == pytest.approx((math.log(4 / 2), math.log(1 / 4)))


def test_targets_of_labels_have_a_row_for_each_sample_and_a_column_for_each_label():
    for targets, classes in ((LABELS[:-1], None), (LABELS[:, 0], None), (LABELS, K + 1)):
        with pytest.raises(DataError, match="Expected `targets` to be of shape"):
            Multilabel.from_targets(targets, N, Recipe(), classes)
    for classes in (None, K):
        assert torch.equal(Multilabel.from_targets(LABELS, N, Recipe(), classes)[0].isnan(), LABELS.isnan())


def test_labels_are_centred_at_their_odds_far_away():
    """`o + (z_0 / T - o) / s`, and differ as the heads do."""
    task, _ = TASKS["multilabel"]
    outputs, network, release = random(4, N, K), random(N, K, seed=1), 1 + random(N, seed=2).abs()
    found, odds = task.recentred(outputs, network, release, Centre(1.0, 4.0)), torch.tensor(task.log_odds).double()
    assert_close(found.mean(dim=0), odds + (network / 4 - odds) / release.unsqueeze(1))
    assert_close(found - found.mean(dim=0), outputs - outputs.mean(dim=0))


def test_the_likelihood_is_flat_where_a_variance_is_cut_off():
    task, targets = TASKS["predicted noise"]
    outputs = (20 * random(4, 2 * K, N)).requires_grad_()
    assert bool((outputs[:, K:].abs() > task.max_log_variance).any())
    task.nll(outputs.transpose(1, 2), targets).sum().backward()
    found = outputs.detach().clone()
    Gaussians(found, N, task)(targets.numpy())
    assert_close(found, outputs.grad)


@given(shapes, st.floats(0.1, 100))
@settings(max_examples=25, deadline=None)
def test_labels_split_into_two_parts(shape, size):
    n, batch, labels, seed = shape
    p = MultilabelPrediction(size * random(n, batch, labels, seed=seed))
    mean = p.logits.sigmoid().mean(dim=0)
    entropy = torch.distributions.Bernoulli(mean).entropy()
    assert_close(p.total_per_label, entropy, rtol=1e-6, atol=1e-8)
    assert_close(p.total, entropy.sum(dim=1), rtol=1e-6, atol=1e-8)
    assert bool((p.epistemic_per_label >= 0).all() and (p.epistemic_per_label <= math.log(2) + 1e-9).all())
    assert bool((p.aleatoric_per_label >= -1e-12).all())
    swapped = MultilabelPrediction(p.logits.flip(0))
    assert_close(swapped.epistemic_per_label, p.epistemic_per_label)
    equal = MultilabelPrediction(p.logits[:1].expand(n, -1, -1))
    assert_close(equal.epistemic, torch.zeros(batch, dtype=torch.float64), rtol=0, atol=1e-9)


@given(shapes)
@settings(max_examples=25, deadline=None)
def test_several_targets_are_one_at_a_time(shape):
    n, batch, targets, seed = shape
    means, variances = random(n, batch, targets, seed=seed), random(n, batch, targets, seed=seed + 1).square() + 0.1
    p = MultiregressionPrediction(means, variances)
    assert_close(p.total, p.aleatoric + p.epistemic)
    assert bool((p.epistemic >= 0).all() and (p.joint_epistemic >= 0).all())
    y = random(batch, targets, seed=seed + 2)
    each = [RegressionPrediction(means[..., k], variances[..., k]) for k in range(targets)]
    assert_close(p.log_likelihood(y), sum(one.log_likelihood(y[:, k]) for k, one in enumerate(each)))
    assert_close(p.interval(0.9)[1], torch.stack([one.interval(0.9)[1] for one in each], dim=1))
    assert_close(MultiregressionPrediction(means.flip(0), variances.flip(0)).joint_epistemic, p.joint_epistemic)
    equal = MultiregressionPrediction(means[:1].expand(n, -1, -1), variances)
    assert_close(equal.joint_epistemic, torch.zeros(batch, dtype=torch.float64), rtol=0, atol=1e-9)
    if targets == 1:
        assert_close(p.joint_epistemic, 0.5 * (p.total / p.aleatoric)[:, 0].log())


def test_joint_uncertainty_sees_what_targets_share_and_no_units():
    """Two targets that are off together, and two that are off independently, are equally uncertain one by one."""
    deviation = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    other = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    together, apart = (torch.stack([deviation, second], dim=1).unsqueeze(1) for second in (deviation, other))
    ones = torch.ones(4, 1, 2, dtype=torch.float64)
    p, q = MultiregressionPrediction(together, ones), MultiregressionPrediction(apart, ones)
    assert_close(p.epistemic, q.epistemic)
    assert float(p.joint_epistemic) == pytest.approx(0.5 * math.log(3))  # 1 + 2 along one axis
    assert float(q.joint_epistemic) == pytest.approx(0.5 * math.log(4))  # 1 + 1 along both
    units = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    scaled = MultiregressionPrediction(together * units, ones * units**2)
    assert_close(scaled.joint_epistemic, p.joint_epistemic)


def test_labels_far_away_fade_to_their_odds():
    task, network = Multilabel((-2.0, 1.0)), 100 * random(6, 2)
    heads = random(4, 6, 2, seed=1)
    near = task.recentred(heads, network, torch.ones(6).double(), Centre())
    assert_close(near.mean(dim=0), network)
    far = task.recentred(heads, network, torch.full((6,), 1e9).double(), Centre())
    assert_close(far.mean(dim=0), torch.tensor([[-2.0, 1.0]]).double().expand(6, 2), rtol=0, atol=1e-6)
    assert_close(far - far.mean(dim=0), near - near.mean(dim=0), rtol=0, atol=1e-6)


def test_several_targets_have_their_own_gain_and_share():
    task, network, heads = (
        Multiregression(2, (1.0, 1.0), shares=(1.0, 0.0), gains=(0.0, 2.0)),
        random(5, 2),
        random(3, 5, 2),
    )
    placed, mean = task.recentred(heads, network, torch.ones(5).double(), Centre()), heads.mean(dim=0)
    assert_close(placed[..., 0], network[:, 0].expand(3, 5))
    assert_close(placed[..., 1], mean[:, 1] + 2 * (heads[..., 1] - mean[:, 1]))


def test_one_target_in_a_column_is_the_fit_of_one_target():
    from repulse import fit_heads

    y = NUMBERS[:, :1].float()
    recipe = Recipe(task="regression", noise=0.3, epochs=2, heads=3)
    one, column = (fit_heads(X.float(), v, AWAY.float(), recipe, progress=False) for v in (y[:, 0], y))
    assert_close(one(X.float()), column(X.float()))


@pytest.mark.parametrize("task", [Multiregression(K, (0.3, 1.0, 2.0)), Multiregression(K, None)])
def test_each_target_is_scaled_alone_and_one_that_does_not_vary_only_moved(task):
    targets = NUMBERS * torch.tensor([1.0, 50.0, 0.0]).double() + torch.tensor([0.0, 7.0, 3.0]).double()
    made, scaled, shift, scale = task.scale_targets(targets)
    assert_close(scaled.mean(dim=0), torch.zeros(K), rtol=0, atol=1e-5)
    assert_close(scaled.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    assert_close(scaled * scale + shift, targets.float(), rtol=1e-4, atol=1e-4)
    assert float(scale[2]) == 1
    assert made.noise is None or made.noise == pytest.approx(
        [n / s for n, s in zip(task.noise, scale.tolist(), strict=True)]
    )


def test_a_warm_start_of_several_targets_is_least_squares_from_where_the_heads_are():
    """Along directions without data they stay; the variance is what is left over."""
    features = torch.cat([X, torch.zeros(N, 1)], dim=1).double()
    features = (features - features.mean(dim=0)) / features.std(dim=0).clamp_min(1e-9)
    targets = NUMBERS - NUMBERS.mean(dim=0)
    heads = Heads(4, D + 1, Multiregression(K, None), generator=torch.Generator().manual_seed(1)).double()
    start = heads.weight[:, :K].clone()
    task = heads.task.warm_start(heads, features, identity, targets)
    solution = torch.linalg.lstsq(features[:, :D], targets).solution
    assert_close(heads.weight[:, :K, :D], solution.T.expand(4, K, D), rtol=1e-3, atol=1e-3)
    assert_close(heads.weight[:, :K, D], start[:, :, D])
    assert bool((heads.bias[:, :K] == 0).all())
    left = (targets - features[:, :D] @ solution).square().mean(dim=0)
    assert task.log_variance == pytest.approx(left.log().tolist(), abs=1e-3)
    scale = torch.tensor([1.0, 2.0, 0.5])
    assert task.in_original_units(task, scale).log_variance == pytest.approx((left * scale**2).log().tolist(), abs=1e-3)


def test_targets_may_be_probabilities_of_as_many_classes_as_there_are():
    for classes in (None, K):
        checked, task = Classification.from_targets(SHARES, N, Recipe(), classes)
        assert checked is SHARES
        assert task == SoftClassification(K)
    for targets, classes in ((SHARES, K + 1), (SHARES[:-1], K), (torch.ones(N, 1), None)):
        with pytest.raises(DataError, match=r"Expected `targets` to be of shape .*, probabilities of classes"):
            Classification.from_targets(targets, N, Recipe(), classes)
