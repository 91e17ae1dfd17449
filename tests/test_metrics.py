"""Metrics against scikit-learn, against their definitions written as loops, and against examples done by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repulse import ClassPrediction, DataError, RecipeError, metrics

INF = float("inf")
often = settings(deadline=None, max_examples=60, derandomize=True, database=None)
RANKINGS = [metrics.auroc, metrics.aupr, metrics.fpr_at_95, metrics.roc_curve]
JUDGES = [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.reliability]


def certain(confidences, correct, classes=10):
    """Predictions of class 0 with these confidences, the rest shared equally; and targets that make some correct."""
    c = torch.tensor(confidences, dtype=torch.float64).unsqueeze(1)
    probs = torch.cat([c, ((1 - c) / (classes - 1)).expand(-1, classes - 1)], dim=1)
    return ClassPrediction(probs.log().unsqueeze(0)), torch.tensor([0 if right else 1 for right in correct])


def binned(prediction, targets, bins):
    """Confidences and correctness of each bin (m/M, (m+1)/M], as lists."""
    pairs = list(zip(prediction.confidence.tolist(), (prediction.labels == targets).tolist(), strict=True))
    return [[(c, ok) for c, ok in pairs if m / bins < c <= (m + 1) / bins] for m in range(bins)]


def naive_ece(prediction, targets, bins):
    return sum(abs(sum(ok - c for c, ok in found)) for found in binned(prediction, targets, bins)) / len(prediction)


@pytest.fixture
def ensemble():
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 200, 4, generator=g, dtype=torch.float64)
    return ClassPrediction(logits.log_softmax(dim=-1)), torch.randint(4, (200,), generator=g)


def test_accuracy_nll_and_brier_are_those_of_scikit_learn(ensemble):
    prediction, y = ensemble
    probs = prediction.log_probs.exp().mean(dim=0).numpy()
    assert metrics.accuracy(prediction, y) == sklearn.metrics.accuracy_score(y, probs.argmax(axis=1))
    assert metrics.nll(prediction, y) == pytest.approx(sklearn.metrics.log_loss(y, probs), rel=1e-12)
    wanted = sklearn.metrics.brier_score_loss(y, probs, labels=range(4), scale_by_half=False)
    assert metrics.brier(prediction, y) == pytest.approx(wanted, rel=1e-12)


def test_a_class_of_probability_zero_costs_a_finite_amount():
    prediction, y = certain([1.0, 1.0], [True, False])
    assert metrics.nll(prediction, y) == pytest.approx(-math.log(1e-12) / 2, rel=1e-12)
    assert metrics.brier(prediction, y) == 1.0  # 0 and 2
    assert metrics.accuracy(prediction, y) == metrics.ece(prediction, y) == 0.5


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_is_the_loop(ensemble, bins):
    assert metrics.ece(*ensemble, bins=bins) == pytest.approx(naive_ece(*ensemble, bins), abs=1e-12)


def test_confidence_one_belongs_to_the_last_bin():
    """It is the upper edge of (14/15, 1]: over- and under-confidence inside that bin cancel."""
    prediction, y = certain([1.0, 0.95], [False, True])
    assert metrics.ece(prediction, y) == pytest.approx((1.95 - 1) / 2, abs=1e-12)


@pytest.mark.parametrize("edge", [0.25, 0.5, 0.75])
def test_an_edge_belongs_to_the_bin_below(edge):
    prediction, y = certain([edge, edge - 0.1], [True, False])
    assert prediction.confidence[0] == edge
    assert metrics.ece(prediction, y, bins=4) == pytest.approx(abs(1 - 2 * edge + 0.1) / 2, abs=1e-12)


@often
@given(st.lists(st.tuples(st.integers(12, 60), st.booleans()), min_size=1), st.sampled_from([4, 15, 20]))
def test_ece_and_reliability_are_the_loop_on_edges_too(samples, bins):
    prediction, y = certain([k / 60 for k, _ in samples], [ok for _, ok in samples])
    assert metrics.ece(prediction, y, bins) == pytest.approx(naive_ece(prediction, y, bins), abs=1e-12)
    confidence, accuracy, share = metrics.reliability(prediction, y, bins)
    for m, found in enumerate(binned(prediction, y, bins)):
        assert float(share[m]) == pytest.approx(len(found) / len(samples), abs=1e-12)
        for value, wanted in ((confidence[m], [c for c, _ in found]), (accuracy[m], [ok for _, ok in found])):
            mean = sum(wanted) / len(wanted) if wanted else float("nan")
            assert float(value) == pytest.approx(mean, abs=1e-12, nan_ok=True)


def test_float32_confidences_beyond_one_are_one():
    prediction = ClassPrediction(torch.tensor([[[1e-7, -20.0]]]))
    assert float(prediction.confidence) > 1
    assert metrics.ece(prediction, torch.tensor([0])) == 0.0
    assert float(metrics.reliability(prediction, torch.tensor([0]))[0][-1]) == 1.0


@pytest.mark.parametrize("judge", JUDGES)
def test_targets_must_fit_the_prediction(judge, ensemble):
    prediction, y = ensemble
    for wrong in (y[:-1], y.unsqueeze(1)):
        with pytest.raises(DataError, match=r"Expected `targets` to be of shape \(200,\).*but got shape"):
            judge(prediction, wrong)
    with pytest.raises(DataError, match=r"`targets`.*not empty"):
        judge(prediction[:0], y[:0])


@pytest.mark.parametrize("judge", [metrics.ece, metrics.reliability])
@pytest.mark.parametrize("bins", [0, -1, True])
def test_bins_must_be_a_positive_integer(judge, bins, ensemble):
    with pytest.raises(RecipeError, match="Expected `bins` to be a positive integer, but got"):
        judge(*ensemble, bins=bins)


scores = st.lists(st.sampled_from([-INF, -1e300, -3.0, -0.0, 0.0, 1e-300, 1.0, 1e300, INF]), min_size=1, max_size=12)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@often
@given(scores, scores)
def test_auroc_is_the_share_of_pairs_with_ties_by_half(inside, outside):
    pairs = [(o > i) + (o == i) / 2 for i in inside for o in outside]
    result = metrics.auroc(tensor(inside), tensor(outside))
    assert result == pytest.approx(sum(pairs) / len(pairs), abs=1e-7)
    assert metrics.auroc(tensor(outside), tensor(inside)) == pytest.approx(1 - result, abs=1e-7)


@often
@given(scores, scores)
def test_fpr_at_95_is_the_smallest_over_thresholds(inside, outside):
    rates = [(np.mean(np.array(inside) >= t), np.mean(np.array(outside) >= t)) for t in {*inside, *outside}]
    wanted = min(fpr for fpr, tpr in rates if tpr >= 0.95)
    assert metrics.fpr_at_95(tensor(inside), tensor(outside)) == pytest.approx(wanted, abs=1e-7)


def test_fpr_at_exactly_95_percent():
    outside = torch.arange(20.0)  # 19 of 20 lie at 1 or above
    assert metrics.fpr_at_95(torch.tensor([0.5, 0.5, 1.0, 2.0]), outside) == 0.5


@pytest.mark.parametrize("distinct", [5, 1000])
def test_curves_are_those_of_scikit_learn(distinct):
    g = torch.Generator().manual_seed(0)
    inside, outside = (torch.randint(distinct, (n,), generator=g) + 0.3 * distinct * (n == 150) for n in (300, 150))
    truth, both = np.repeat([0, 1], [300, 150]), torch.cat([inside, outside]).numpy()
    assert metrics.auroc(inside, outside) == pytest.approx(sklearn.metrics.roc_auc_score(truth, both), abs=1e-7)
    wanted = sklearn.metrics.average_precision_score(truth, both)
    assert metrics.aupr(inside, outside) == pytest.approx(wanted, abs=1e-7)
    fpr, tpr, _ = sklearn.metrics.roc_curve(truth, both, drop_intermediate=False)
    for ours, theirs in zip(metrics.roc_curve(inside, outside), (fpr, tpr), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("offset", [100.0, -1000.0, 1e6])
def test_float32_scores_that_a_sigmoid_would_saturate_keep_their_order(offset):
    inside, outside = offset + torch.arange(4.0), offset + 4 + torch.arange(4.0)
    assert [metric(inside, outside) for metric in RANKINGS[:3]] == [1.0, 1.0, 0.0]
    assert metrics.auroc(outside, inside) == 0.0


@pytest.mark.parametrize("metric", RANKINGS[:3])
@pytest.mark.parametrize(
    "rising", [torch.exp, lambda s: s**3, lambda s: 1e200 * s, lambda s: -1 / (s - 10), torch.tanh]
)
def test_only_the_order_of_scores_matters(metric, rising):
    g = torch.Generator().manual_seed(1)
    inside, outside = (
        torch.randint(-5, 3, (80,), generator=g).double(),
        torch.randint(-3, 6, (40,), generator=g).double(),
    )
    assert metric(rising(inside), rising(outside)) == metric(inside, outside)
    assert metric(inside[torch.randperm(80, generator=g)], outside) == metric(inside, outside)


@pytest.mark.parametrize("metric", RANKINGS)
def test_rankings_refuse_what_has_no_order(metric):
    good = torch.tensor([0.0, 1.0])
    for bad, words in ((good[:0], "non-empty"), (good.view(1, 2), r"\(1, 2\)"), (good / 0, "1 NaN score")):
        with pytest.raises(DataError, match=rf"Expected `inside`.*{words}"):
            metric(bad, good)
        with pytest.raises(DataError, match=rf"Expected `outside`.*{words}"):
            metric(good, bad)


def test_risk_coverage_by_hand():
    coverage, risk = metrics.risk_coverage(torch.tensor([0.3, 0.1, INF, 0.2]), torch.tensor([True, False, True, False]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert metrics.aurc(torch.tensor([0.3, 0.1, INF, 0.2]), torch.tensor([1, 0, 1, 0])) == pytest.approx(5 / 24)


@settings(often, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_in_risk_are_averaged_over_all_their_orders(samples):
    curves = []
    for order in itertools.permutations(samples):
        ranked = sorted(order, key=lambda sample: sample[0])  # stable: equal uncertainties stay as they come
        curves.append(np.cumsum([wrong for _, wrong in ranked]) / np.arange(1, len(ranked) + 1))
    uncertainty, wrong = (torch.tensor(values) for values in zip(*samples, strict=True))
    _, risk = metrics.risk_coverage(uncertainty.float(), wrong)
    np.testing.assert_allclose(risk.numpy(), np.mean(curves, axis=0), rtol=0, atol=1e-12)
    assert metrics.aurc(uncertainty.float(), wrong) == pytest.approx(np.mean(curves), abs=1e-12)


@pytest.mark.parametrize("metric", [metrics.aurc, metrics.risk_coverage])
def test_risk_refuses_what_has_no_order(metric):
    good, wrong = torch.tensor([0.0, 1.0]), torch.tensor([True, False])
    for bad, words in ((good[:1], r"\(1,\) and \(2,\)"), (good / 0, "1 NaN")):
        with pytest.raises(DataError, match=rf"Expected `uncertainty`.*{words}"):
            metric(bad, wrong)
    with pytest.raises(DataError, match="Expected `uncertainty` to be a non-empty vector"):
        metric(good[:0], wrong[:0])
