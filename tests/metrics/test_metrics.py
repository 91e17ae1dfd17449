"""Metrics against scikit-learn, against their definitions written as loops, and against examples done by hand."""

# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import functools
import itertools
import math

import jaxtyping
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repulse import ClassPrediction, DataError, RecipeError, RegressionPrediction, metrics

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
    probs, labels = prediction.log_probs.exp().mean(dim=0).numpy(), y.numpy()
    assert metrics.accuracy(prediction, y) == sklearn.metrics.accuracy_score(labels, probs.argmax(axis=1))
    assert metrics.nll(prediction, y) == pytest.approx(sklearn.metrics.log_loss(labels, probs), rel=1e-12)
    wanted = sum(sklearn.metrics.brier_score_loss(labels == k, probs[:, k]) for k in range(4))
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


@pytest.mark.parametrize("bins", [1, 7, 15, 300])
def test_adaptive_ece_without_ties_is_that_of_sorted_chunks(ensemble, bins):
    prediction, y = ensemble
    order = prediction.confidence.argsort()
    gap = (prediction.labels == y).double()[order] - prediction.confidence[order]
    chunks = [[float(gap[r]) for r in range(200) if r * bins // 200 == m] for m in range(bins)]
    wanted = sum(abs(sum(chunk)) for chunk in chunks) / 200
    assert metrics.ece(prediction, y, bins, adaptive=True) == pytest.approx(wanted, abs=1e-12)
    share = metrics.reliability(prediction, y, bins, adaptive=True)[2]
    assert float(share.max()) <= math.ceil(200 / bins) / 200 + 1e-12


@often
@given(st.lists(st.tuples(st.integers(6, 9), st.booleans()), min_size=1, max_size=30), st.randoms())
def test_adaptive_ece_does_not_depend_on_the_order(samples, random):
    mixed = random.sample(samples, len(samples))
    values = [
        metrics.ece(*certain([c / 10 for c, _ in s], [ok for _, ok in s]), 4, adaptive=True) for s in (samples, mixed)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    confidence, accuracy, share = metrics.reliability(
        *certain([c / 10 for c, _ in samples], [ok for _, ok in samples]), 4, adaptive=True
    )
    assert float((share * confidence).nansum()) == pytest.approx(np.mean([c / 10 for c, _ in samples]), abs=1e-12)
    assert float((share * accuracy).nansum()) == pytest.approx(np.mean([ok for _, ok in samples]), abs=1e-12)


def test_adaptive_ece_by_hand():
    """Two bins of two; the tie at 0.7 lies across their border and is right in one of two cases."""
    prediction, y = certain([0.6, 0.7, 0.7, 0.8], [True, True, False, True])
    wanted = (abs(1.5 - 1.3) + abs(1.5 - 1.5)) / 4
    assert metrics.ece(prediction, y, 2, adaptive=True) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("distinct", [3, 1000])
def test_aupr_of_the_inside_is_that_of_scikit_learn(distinct):
    g = torch.Generator().manual_seed(0)
    inside, outside = (
        torch.randint(distinct, (n,), generator=g, dtype=torch.uint8 if distinct < 9 else None) for n in (300, 150)
    )
    truth = np.repeat([1, 0], [300, 150])
    wanted = sklearn.metrics.average_precision_score(truth, -torch.cat([inside, outside]).double().numpy())
    assert metrics.aupr(inside, outside, positive="inside") == pytest.approx(wanted, abs=1e-12)
    assert metrics.aupr(inside, outside) != pytest.approx(wanted, abs=1e-3)
    with pytest.raises(RecipeError, match="Expected `positive` to be one of 'outside', 'inside', but got 'in'"):
        metrics.aupr(inside, outside, positive="in")


@often
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=20), st.sampled_from([0.05, 0.25, 0.5])
)
def test_coverage_at_risk_is_the_last_point_of_the_curve_below(samples, risk):
    uncertainty, wrong = (torch.tensor(values) for values in zip(*samples, strict=True))
    coverage, rate = metrics.risk_coverage(uncertainty.float(), wrong)
    wanted = max([0.0, *(float(c) for c, r in zip(coverage, rate, strict=True) if r < risk + 1e-9)])
    assert metrics.coverage_at_risk(uncertainty.float(), wrong, risk) == wanted
    assert metrics.coverage_at_risk(uncertainty.flip(0).float(), wrong.flip(0), risk) == wanted


def test_coverage_at_risk_by_hand():
    uncertainty, wrong = torch.arange(20.0), torch.zeros(20, dtype=torch.bool)
    assert metrics.coverage_at_risk(uncertainty, wrong) == 1.0
    wrong[7] = True
    assert metrics.coverage_at_risk(uncertainty, wrong) == 1.0  # 1 of 20 is exactly 5 %
    assert metrics.coverage_at_risk(uncertainty, wrong, 0.049) == 0.35
    assert metrics.coverage_at_risk(uncertainty[:7], ~wrong[:7]) == 0.0
    assert metrics.coverage_at_risk(torch.zeros(20), wrong, 0.049) == 0.0  # nothing tells the wrong one
    for size in range(2, 60):  # a rate that is exactly the risk, but for rounding
        assert metrics.coverage_at_risk(torch.zeros(size), torch.arange(size) == 0, 1 / size) == 1.0
    for risk in (0.0, 1.0, 5, float("nan")):
        with pytest.raises(RecipeError, match="Expected `risk` to be a number between 0 and 1, but got"):
            metrics.coverage_at_risk(uncertainty, wrong, risk)


def test_misclassification_auroc_is_that_of_scikit_learn(ensemble):
    prediction, y = ensemble
    wrong = (prediction.labels != y).numpy()
    wanted = sklearn.metrics.roc_auc_score(wrong, prediction.total.numpy())
    assert metrics.misclassification_auroc(prediction, y) == pytest.approx(wanted, abs=1e-12)
    coarse = prediction.epistemic.mul(3).round()
    wanted = sklearn.metrics.roc_auc_score(wrong, coarse.numpy())
    assert metrics.misclassification_auroc(prediction, y, coarse) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(DataError, match=r"right for some targets and wrong for others, but got 0 wrong"):
        metrics.misclassification_auroc(prediction, prediction.labels)
    with pytest.raises(DataError, match=r"right for some targets and wrong for others, but got 200 wrong"):
        metrics.misclassification_auroc(prediction, (prediction.labels + 1) % 4)
    with pytest.raises(DataError, match=r"Expected `uncertainty` to be of shape \(200,\)"):
        metrics.misclassification_auroc(prediction, y, coarse[:-1])


@pytest.mark.parametrize("counts", [True, False])
def test_human_correlation_is_spearmans(counts):
    g = torch.Generator().manual_seed(0)
    people = torch.randint(4, (80, 3), generator=g) + torch.tensor([1, 0, 0])
    labels = people if counts else people / people.sum(dim=1, keepdim=True)
    aleatoric = (4 * torch.rand(80, generator=g)).round()  # many ties
    aleatoric[3] = INF
    entropy = np.round(scipy.stats.entropy(people.numpy(), axis=1), 12)
    wanted = scipy.stats.spearmanr(aleatoric.numpy(), entropy).statistic
    assert metrics.human_correlation(aleatoric, labels) == pytest.approx(wanted, abs=1e-12)
    ties = torch.tensor([[2, 2], [2, 2], [4, 0], [0, 7], [1, 3]])
    scores = torch.tensor([0.5, 0.4, 0.1, 0.1, 0.45])
    wanted = scipy.stats.spearmanr(scores, [4, 4, 1, 1, 3]).statistic
    assert metrics.human_correlation(scores, ties) == pytest.approx(wanted, abs=1e-12)
    assert metrics.human_correlation(-scores, ties) == pytest.approx(-wanted, abs=1e-12)


def test_human_correlation_refuses_what_has_no_order():
    scores, labels = torch.tensor([0.1, 0.2]), torch.tensor([[1, 0], [1, 1]])
    for bad, words in (
        (labels[:1], "2 rows, one per sample, but got 1"),
        (labels[0], r"of shape \(samples, classes\), but got shape \(2,\)"),
        (torch.tensor([[1, 0], [0, 0]]), "some in every row"),
        (torch.tensor([[1, 0], [2, -1]]), "some in every row"),
        (torch.tensor([[1.0, 0], [2, math.nan]]), "some in every row"),
    ):
        with pytest.raises(DataError, match=rf"Expected `soft_labels` to be.*{words}"):
            metrics.human_correlation(scores, bad)
    with pytest.raises(DataError, match="at least two different values, but got a constant one"):
        metrics.human_correlation(torch.ones(2), labels)


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.aupr, metrics.fpr_at_95])
def test_the_bootstrap_by_counts_is_the_one_by_resampling(metric):
    """Same metric, drawn otherwise: the bounds agree as far as two bootstraps do."""
    g = torch.Generator().manual_seed(0)
    inside, outside = torch.randint(30, (200,), generator=g), torch.randint(10, 45, (150,), generator=g)
    quick = metrics.bootstrap(metric, inside, outside, paired=False, repeats=2000)
    slow = metrics.bootstrap(functools.partial(metric), inside, outside, paired=False, repeats=2000, seed=1)
    assert quick.value == slow.value == metric(inside, outside)
    width = slow.high - slow.low
    assert quick.low == pytest.approx(slow.low, abs=0.12 * width)
    assert quick.high == pytest.approx(slow.high, abs=0.12 * width)
    assert quick == metrics.bootstrap(metric, inside, outside, paired=False, repeats=2000)
    assert quick != metrics.bootstrap(metric, inside, outside, paired=False, repeats=2000, seed=1)


def test_the_bootstrap_of_a_mean_has_the_width_of_the_normal():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = metrics.bootstrap(lambda v: float(v.mean()), values, level=0.9)
    error = scipy.stats.norm.ppf(0.95) * float(values.std()) / 20
    assert found.low == pytest.approx(found.value - error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + error, abs=0.1 * error)
    assert str(metrics.Interval(0.5, 0.25, 0.75)) == "0.5 (0.25 to 0.75)"


def test_paired_rows_stay_together(ensemble):
    def equal(a, b):
        assert torch.equal(a, b)
        return 1.0

    values = torch.arange(50)
    assert metrics.bootstrap(equal, values, values.clone(), repeats=5) == (1.0, 1.0, 1.0)
    with pytest.raises(AssertionError):
        metrics.bootstrap(equal, values, values.clone(), repeats=5, paired=False)
    found = metrics.bootstrap(metrics.accuracy, *ensemble, repeats=50)
    assert found.low < found.value == metrics.accuracy(*ensemble) < found.high


def test_the_bootstrap_says_what_it_cannot_use():
    values = torch.arange(4.0)
    with pytest.raises(DataError, match=r"Expected paired arrays to be of one length, but got lengths \[4, 3\]"):
        metrics.bootstrap(metrics.aurc, values, values[:3])
    with pytest.raises(DataError, match="Expected `arrays` to be at least one, none empty"):
        metrics.bootstrap(metrics.auroc)
    with pytest.raises(RecipeError, match="Expected `repeats` to be a positive integer"):
        metrics.bootstrap(metrics.auroc, values, values, repeats=0)
    with pytest.raises(RecipeError, match="Expected `level` to be a number between 0 and 1"):
        metrics.bootstrap(metrics.auroc, values, values, level=95)


@pytest.fixture
def mixture():
    g = torch.Generator().manual_seed(0)
    means = torch.randn(3, 60, generator=g, dtype=torch.float64)
    variances = 0.1 + torch.rand(3, 60, generator=g, dtype=torch.float64)
    return RegressionPrediction(means, variances), 1.5 * torch.randn(60, generator=g, dtype=torch.float64)


def test_rmse_is_that_of_scikit_learn(mixture):
    prediction, y = mixture
    wanted = sklearn.metrics.root_mean_squared_error(y.numpy(), prediction.means.mean(dim=0).numpy())
    assert metrics.rmse(prediction, y) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("level", [0.3, 0.8, 0.95])
def test_intervals_lie_between_quantiles_of_the_mixture(mixture, level):
    """Quantiles by bisection, which the metric does not need."""
    prediction, y = mixture
    ends = []
    for mass in ((1 - level) / 2, (1 + level) / 2):
        low, high = np.full(60, -50.0), np.full(60, 50.0)
        for _ in range(60):
            middle = (low + high) / 2
            below = scipy.stats.norm.cdf(middle, prediction.means, prediction.variances.sqrt()).mean(axis=0) < mass
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        ends.append(low)
    wanted = np.mean((y.numpy() >= ends[0]) & (y.numpy() <= ends[1]))
    assert metrics.interval_coverage(prediction, y, level) == pytest.approx(wanted, abs=1e-12)


def test_regression_refuses_what_is_not_finite(mixture):
    prediction, y = mixture
    for metric in (metrics.rmse, metrics.nll, metrics.interval_coverage):
        with pytest.raises(DataError, match="Expected `targets` to be finite"):
            metric(prediction, y / 0)
        with pytest.raises(DataError, match="Expected `prediction` to be finite"):
            metric(RegressionPrediction(prediction.means / 0, prediction.variances), y)
        with pytest.raises(DataError, match="Expected `prediction` to be of positive variances, but got 0"):
            metric(RegressionPrediction(prediction.means, 0 * prediction.variances), y)
    with pytest.raises(RecipeError, match="Expected `level`"):
        metrics.interval_coverage(prediction, y, 95)


@pytest.fixture
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("as_users_run_it")
def test_lists_none_and_other_predictions_are_named(ensemble, mixture):
    prediction, y = ensemble
    for judge in [*JUDGES, metrics.misclassification_auroc]:
        for bad in (None, prediction.probs, [1.0]):
            with pytest.raises(DataError, match=r"Expected `prediction` to be a \w*Prediction, but got"):
                judge(bad, y)
        with pytest.raises(DataError, match="Expected `targets` to be a tensor, but got list"):
            judge(prediction, y.tolist())
    for judge in [*(j for j in JUDGES if j is not metrics.nll), metrics.misclassification_auroc]:
        with pytest.raises(DataError, match="to be a ClassPrediction, but got RegressionPrediction"):
            judge(*mixture)
    with pytest.raises(DataError, match="to be a RegressionPrediction, but got ClassPrediction"):
        metrics.rmse(prediction, y)
    scores = torch.arange(3.0)
    for rank in RANKINGS:
        for bad in (None, [1.0, 2.0], prediction):
            with pytest.raises(DataError, match="Expected `inside` to be a vector of scores, but got"):
                rank(bad, scores)
            with pytest.raises(DataError, match="Expected `outside` to be a vector of scores, but got"):
                rank(scores, bad)
    for metric in (metrics.aurc, metrics.risk_coverage, metrics.coverage_at_risk):
        with pytest.raises(DataError, match="Expected `uncertainty` to be a vector of values, but got list"):
            metric([1.0], scores)
        with pytest.raises(DataError, match="Expected `wrong` to be a vector of values, but got NoneType"):
            metric(scores, None)
    with pytest.raises(DataError, match="Expected `aleatoric` to be a vector"):
        metrics.human_correlation([1.0], scores)
    with pytest.raises(DataError, match="Expected `soft_labels` to be a tensor"):
        metrics.human_correlation(scores, [[1, 0]])


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
