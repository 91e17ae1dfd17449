"""The uncertainty decomposition by its properties, on ordinary and on extreme predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.testing import assert_close

from repulse.functional import entropy, expected_entropy, mean_log_probs, mutual_information
from repulse.particles.tasks import Classification, Regression
from repulse.prediction import ClassPrediction, MultiregressionPrediction, Prediction, RegressionPrediction
from repulse.prediction import uncertainty as module

from .naive import random

EXACT = {"rtol": 0, "atol": 0}
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
often = settings(deadline=None, max_examples=30, derandomize=True, database=None)


def arrays(elements, axes):
    shapes = st.tuples(*(st.integers(1, most) for most in axes))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=elements)).map(torch.from_numpy)


logits = arrays(st.floats(-30, 30), (6, 3, 5))
wild_logits = arrays(st.sampled_from([-1e4, -80.0, 0.0, 1.0, 80.0, 1e4]) | st.floats(-1e4, 1e4), (6, 3, 5))
means = arrays(st.floats(-100, 100), (6, 3))


def classes(logits):
    return ClassPrediction(logits.log_softmax(-1))


def h(p):
    """Entropy of one distribution, in plain Python."""
    return -sum(q * math.log(q) for q in p if q > 0)


@often
@given(logits)
def test_decomposition_is_the_written_one(logits):
    """TU = H(mean p), AU = mean H(p_i), EU = TU - AU = mean KL(p_i || mean p)."""
    prediction, p = classes(logits), logits.softmax(-1)
    for b in range(p.shape[1]):
        members = [row.tolist() for row in p[:, b]]
        mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
        au = sum(h(q) for q in members) / len(members)
        kl = sum(sum(a * math.log(a / m) for a, m in zip(q, mean, strict=True) if a > 0) for q in members) / len(
            members
        )
        assert float(prediction.aleatoric[b]) == pytest.approx(au, rel=1e-9, abs=1e-10)
        assert float(prediction.epistemic[b]) == pytest.approx(kl, rel=1e-9, abs=1e-10)
        assert float(prediction.epistemic[b]) == pytest.approx(h(mean) - au, rel=1e-9, abs=1e-10)
        assert float(prediction.total[b]) == pytest.approx(h(mean), rel=1e-9, abs=1e-10)
        assert prediction.probs[b].tolist() == pytest.approx(mean, rel=1e-9, abs=1e-14)
        assert float(prediction.confidence[b]) == pytest.approx(max(mean), rel=1e-9)
        assert mean[int(prediction.labels[b])] == pytest.approx(max(mean), rel=1e-12)


@often
@given(wild_logits, st.sampled_from([torch.float32, torch.float64]))
def test_bounds(logits, dtype):
    prediction = classes(logits.to(dtype))
    n, _, k = logits.shape
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    for uncertainty, most in ((prediction.epistemic, math.log(n)), (prediction.aleatoric, math.log(k))):
        assert bool(torch.isfinite(uncertainty).all())
        assert float(uncertainty.min()) >= 0
        assert float(uncertainty.max()) <= most + slack
    assert float(prediction.total.max()) <= math.log(k) + slack
    assert_close(prediction.total, prediction.aleatoric + prediction.epistemic, **EXACT)


@often
@given(wild_logits)
def test_equal_members_have_nothing_epistemic(logits):
    one, many = classes(logits[:1]), classes(logits[:1].repeat(5, 1, 1))
    assert one.epistemic.tolist() == [0.0] * len(one)
    assert_close(many.epistemic, torch.zeros_like(many.epistemic), rtol=0, atol=1e-12)
    assert_close(many.aleatoric, one.aleatoric, **TIGHT)
    assert_close(many.probs, one.probs, **TIGHT)


def test_nearly_equal_members_are_never_negative():
    """In single precision both TU - AU and the plain sum of divergences go below zero here."""
    logits = random(1, 2000, 10, dtype=torch.float32) + 1e-5 * random(10, 2000, 10, seed=1, dtype=torch.float32)
    prediction = classes(logits)
    assert float((entropy(mean_log_probs(prediction.log_probs)) - prediction.aleatoric).min()) < 0
    assert float(prediction.epistemic.min()) >= 0
    assert float(prediction.epistemic.max()) < 1e-6


@often
@given(logits, st.randoms(use_true_random=False))
def test_order_of_members_and_of_classes_is_irrelevant(logits, shuffler):
    members, names = list(range(logits.shape[0])), list(range(logits.shape[2]))
    shuffler.shuffle(members)
    shuffler.shuffle(names)
    straight, shuffled = classes(logits), classes(logits[members][:, :, names])
    for name in ("aleatoric", "epistemic", "total", "confidence"):
        assert_close(getattr(shuffled, name), getattr(straight, name), **TIGHT)
    assert_close(shuffled.probs, straight.probs[:, names], **TIGHT)


@pytest.mark.parametrize("n", [2, 10])
def test_opposite_certainties_are_as_epistemic_as_can_be(n):
    """Every member certain of another class: aleatoric 0, epistemic log n, also with log 0 = -inf."""
    hard = torch.eye(n, dtype=torch.float64).unsqueeze(1).log()
    for log_probs in (hard, (1e4 * torch.eye(n, dtype=torch.float64)).unsqueeze(1).log_softmax(-1)):
        assert float(expected_entropy(log_probs)) == 0
        assert float(mutual_information(log_probs)) == pytest.approx(math.log(n), rel=1e-14)
        assert_close(mean_log_probs(log_probs), torch.full((1, n), -math.log(n), dtype=torch.float64), **TIGHT)


def test_classes_that_no_member_believes_in():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]]], dtype=torch.float64).log()
    prediction = ClassPrediction(log_probs)
    kept = ClassPrediction(log_probs[..., :2])
    for name in ("aleatoric", "epistemic", "total", "labels", "confidence"):
        assert_close(getattr(prediction, name), getattr(kept, name), **EXACT)
    assert float(entropy(log_probs[0])) == pytest.approx(math.log(2), rel=1e-15)
    assert float(prediction.log_likelihood(torch.tensor([2]))) == pytest.approx(math.log(1e-12))


@often
@given(wild_logits)
def test_tasks_turn_extreme_logits_into_finite_predictions(logits):
    prediction = Classification(logits.shape[2]).predict(logits.float())
    for name in ("probs", "aleatoric", "epistemic", "total", "confidence"):
        assert bool(torch.isfinite(getattr(prediction, name)).all()), name
    assert_close(prediction.probs.sum(-1), torch.ones(len(prediction)), rtol=1e-5, atol=0)


@often
@given(logits)
def test_class_log_likelihood(logits):
    targets = torch.arange(logits.shape[1]) % logits.shape[2]
    p = logits.softmax(-1).mean(0)[torch.arange(len(targets)), targets]
    assert_close(classes(logits).log_likelihood(targets), p.clamp_min(1e-12).log(), rtol=1e-9, atol=1e-12)


@often
@given(means, st.integers(0, 1000))
def test_regression_is_a_mixture_of_gaussians(means, seed):
    """Law of total variance, and the density, against torch.distributions."""
    variances = 0.1 + random(*means.shape, seed=seed) ** 2
    prediction = RegressionPrediction(means, variances)
    weights = Categorical(probs=torch.ones_like(means.T))
    mixture = MixtureSameFamily(weights, Normal(means.T, variances.T.sqrt()))
    targets = means[0] + random(means.shape[1], seed=seed + 1)
    assert_close(prediction.mean, mixture.mean, rtol=1e-10, atol=1e-10)
    assert_close(prediction.total, mixture.variance, rtol=1e-10, atol=1e-9)
    assert_close(prediction.std, prediction.total.sqrt(), **EXACT)
    assert_close(prediction.total, prediction.aleatoric + prediction.epistemic, **EXACT)
    assert_close(prediction.aleatoric, sum(variances) / len(variances), **TIGHT)
    assert_close(prediction.epistemic, sum((m - prediction.mean) ** 2 for m in means) / len(means), **TIGHT)
    assert_close(prediction.log_likelihood(targets), mixture.log_prob(targets), rtol=1e-10, atol=1e-10)


def test_regression_likelihood_far_away_stays_finite():
    prediction = Regression(0.01).predict(random(5, 3, 1, dtype=torch.float32))
    far = prediction.log_likelihood(torch.full((3,), 1e4))
    assert bool(torch.isfinite(far).all())
    assert_close(prediction.aleatoric, torch.full((3,), 1e-4), rtol=1e-5, atol=0)
    log_variance = random(5, 3, 2, dtype=torch.float32)
    assert_close(Regression().predict(log_variance).aleatoric, log_variance[..., 1].exp().mean(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "prediction",
    [ClassPrediction(random(4, 7, 3).log_softmax(-1)), RegressionPrediction(random(4, 7), random(4, 7, seed=1).exp())],
    ids=["classes", "regression"],
)
class TestSlicing:
    @pytest.mark.parametrize(
        ("index", "kept"),
        [
            (slice(1, 4), [1, 2, 3]),
            ([5, 0], [5, 0]),
            (torch.tensor([2, 2]), [2, 2]),
            (torch.tensor([True, False, False, True, False, False, True]), [0, 3, 6]),
            (2, [2]),
            (-1, [6]),
            (slice(0, 0), []),
        ],
    )
    def test_takes_samples(self, prediction, index, kept):
        part = prediction[index]
        assert type(part) is type(prediction)
        assert len(part) == len(kept)
        for name in ("aleatoric", "epistemic", "total"):
            assert_close(getattr(part, name), getattr(prediction, name)[kept], **TIGHT)

    def test_cat_undoes_it(self, prediction):
        whole = Prediction.cat([prediction[:2], prediction[2:3], prediction[3:]])
        assert type(whole) is type(prediction)
        assert len(whole) == 7
        for name in ("aleatoric", "epistemic", "total"):
            assert_close(getattr(whole, name), getattr(prediction, name), **TIGHT)


def test_what_is_done_to_an_uncertainty_does_not_change_the_prediction():
    prediction = ClassPrediction(torch.randn(3, 5, 4).log_softmax(dim=-1))
    before = prediction.total.clone()
    for one in (prediction.aleatoric, prediction.epistemic, prediction.probs):
        one.zero_()
    torch.testing.assert_close(prediction.total, before)


def test_parts_of_uncertainty_are_computed_once_and_as_the_functions_say(monkeypatch):
    log_probs = torch.randn(4, 50, 7, generator=torch.Generator().manual_seed(0)).log_softmax(dim=-1)
    for few in (2**18, 100):
        monkeypatch.setattr(module, "MAX_ELEMENTS_CPU", few)
        found = ClassPrediction(log_probs)
        torch.testing.assert_close(found.aleatoric, expected_entropy(log_probs))
        torch.testing.assert_close(found.epistemic, mutual_information(log_probs))
    calls = []
    monkeypatch.setattr(module, "_weighted", lambda *a: calls.append(a))
    assert torch.equal(found.total, found.aleatoric + found.epistemic)
    assert "mean epistemic" in repr(found)
    assert not calls
    assert torch.equal(found[3:5].log_probs, log_probs[:, 3:5])  # and nothing of what is kept


def test_gradients_flow_through_both_parts_each_time():
    logits = torch.randn(3, 4, 5, requires_grad=True)
    found = ClassPrediction(logits.log_softmax(dim=-1))
    with torch.no_grad():
        assert not found.aleatoric.requires_grad
    found.aleatoric.sum().backward(retain_graph=True)
    found.epistemic.sum().backward()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", [RegressionPrediction, MultiregressionPrediction])
def test_means_whose_squares_overflow_have_the_largest_variance_there_is(kind):
    """Far from the data linear heads differ by more than single precision can square."""
    shape = (3, 2) if kind is RegressionPrediction else (3, 2, 1)
    means = torch.tensor([[-1e30, 1.0], [0.0, 2.0], [1e30, 3.0]]).view(shape)
    p = kind(means, torch.ones(shape))
    assert bool(p.total.isfinite().all())
    assert bool(p.std.isfinite().all())
    assert_close(p.epistemic.flatten(), torch.tensor([torch.finfo(torch.float32).max / 2, 2 / 3]))
