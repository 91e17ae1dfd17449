"""Conformal functions against closed forms, and their guarantees by simulation against exact binomial bounds.

In a simulation each draw has its own calibration data and one new sample, so that draws are independent and the number
of misses is binomial. Bounds are passed with probability 1e-6 if the promise holds; seeds are fixed.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from repulse.decide import conformal
from repulse.prediction import ClassPrediction, RegressionPrediction

SURE = 1e-6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def within(misses, draws, rate):
    """Whether as many misses are plausible at exactly this rate."""
    low, high = stats.binom.ppf([SURE, 1 - SURE], draws, rate)
    return low <= misses <= high


def at_most(misses, draws, rate):
    return misses <= stats.binom.ppf(1 - SURE, draws, rate)


# p-values


def test_p_values_count_calibration_samples_that_are_at_least_as_strange():
    calibration = torch.randint(20, (57,), generator=generator()).double()
    scores = torch.arange(-1, 22).double()
    naive = [(1 + sum(float(c) >= float(s) for c in calibration)) / 58 for s in scores]
    assert conformal.p_values(scores, calibration).tolist() == naive


def test_randomised_p_values_split_ties():
    calibration = torch.tensor([1.0, 2.0, 2.0, 3.0])
    p = conformal.randomised_p_values(torch.tensor([2.0, 2.0, 9.0, 0.0]), calibration, torch.tensor([0.0, 0.5, 0.5, 1]))
    assert p.tolist() == pytest.approx([1 / 5, (1 + 0.5 * 3) / 5, 0.5 / 5, 1.0])


@pytest.mark.parametrize(("count", "level"), [(19, 0.05), (100, 0.05), (57, 0.2)])
def test_the_rate_of_false_alarms_is_the_largest_multiple_that_is_allowed(count, level):
    draws = 20_000
    scores = torch.rand(draws, count + 1, generator=generator(count))
    flagged = sum(float(conformal.p_values(row[:1], row[1:])) <= level for row in scores[:200])
    above = (scores[:, 1:] >= scores[:, :1]).sum(dim=1)
    assert flagged == int(((1 + above[:200]).double() / (count + 1) <= level).sum())
    exact = math.floor(level * (count + 1) + 1e-9) / (count + 1)
    assert within(int(((1 + above).double() / (count + 1) <= level).sum()), draws, exact)


def test_ties_are_conservative_or_exactly_uniform():
    draws, count, level = 1200, 49, 0.1
    scores = torch.randint(4, (draws, count + 1), generator=generator(1)).double()
    uniform = torch.rand(draws, generator=generator(2))
    kept = torch.cat([conformal.p_values(row[:1], row[1:]) for row in scores])
    exact = torch.cat(
        [conformal.randomised_p_values(r[:1], r[1:], u) for r, u in zip(scores, uniform.unsqueeze(1), strict=True)]
    )
    assert int((kept <= level).sum()) < stats.binom.ppf(SURE, draws, level)  # a quarter of all are tied at the top
    assert within(int((exact <= level).sum()), draws, level)
    assert stats.kstest(exact.numpy(), "uniform").pvalue > SURE


def test_p_values_by_class_hold_within_each_class():
    classes = torch.tensor([0, 1]).repeat(30)
    calibration = torch.where(classes == 0, 1.0, 100.0) * torch.arange(1, 61).double()
    p = conformal.p_values_by_class(torch.tensor([61.0, 61.0, 9.0]), torch.tensor([0, 1, 7]), calibration, classes)
    assert p.tolist() == pytest.approx([1 / 31, 1.0, 1.0])  # strange for 0, usual for 1, and 7 was never seen


# Batches


def test_benjamini_hochberg_is_the_step_up_rule():
    p = torch.rand(40, generator=generator(3)).double() ** 3
    ordered = sorted(p.tolist())
    most = max((k for k in range(1, 41) if ordered[k - 1] <= 0.2 * k / 40), default=0)
    assert int(conformal.benjamini_hochberg(p, 0.2).sum()) == most > 0
    assert not conformal.benjamini_hochberg(torch.tensor([0.5, 0.9]), 0.1).any()


@pytest.mark.parametrize("foreign", [0, 10])
def test_false_discoveries_with_shared_calibration_data(foreign):
    """The mean share of wrong flags, by Hoeffding's bound; p-values of a batch share 200 calibration samples."""
    draws, batch, level, made = 500, 50, 0.2, generator(4 + foreign)
    shares, found = [], 0
    for _ in range(draws):
        scores = torch.randn(200 + batch, generator=made).double()
        scores[200 : 200 + foreign] += 3
        flags = conformal.benjamini_hochberg(conformal.p_values(scores[200:], scores[:200]), level)
        shares.append(float(flags[foreign:].sum()) / max(int(flags.sum()), 1))
        found += int(flags[:foreign].sum())
    slack = math.sqrt(-math.log(SURE) / (2 * draws))
    assert sum(shares) / draws <= level * (batch - foreign) / batch + slack
    assert found >= 0.5 * foreign * draws


# Sets and intervals


def test_scores_of_classes_in_closed_form():
    probs = torch.tensor([[0.2, 0.5, 0.3]]).double()
    assert conformal.class_scores(probs, "lac").tolist() == [pytest.approx([0.8, 0.5, 0.7])]
    assert conformal.class_scores(probs, "aps").tolist() == [pytest.approx([1.0, 0.5, 0.8])]
    many = torch.arange(10, 0, -1).double().unsqueeze(0) / 55
    extra = conformal.class_scores(many, "raps") - conformal.class_scores(many, "aps")
    assert extra.tolist() == [pytest.approx([0, 0, 0, 0, 0, 0.01, 0.02, 0.03, 0.04, 0.05])]
    assert conformal.class_sets(probs, "aps", 0.81).tolist() == [[False, True, True]]
    assert conformal.class_sets(probs, "lac", 0.1).tolist() == [[False, True, False]]  # never empty


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("count", [9, 60])
def test_sets_hold_the_label(kind, count):
    draws, alpha, made = 1000, 0.1, generator(count)
    logits = 2 * torch.randn(draws, count + 1, 8, generator=made).double()
    labels = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=made).view(draws, count + 1)
    probs = (0.5 * logits).softmax(-1)  # not calibrated, which does not matter
    scores = torch.stack([conformal.class_scores(each, kind) for each in probs])
    own = scores.gather(2, labels.unsqueeze(2)).squeeze(2)
    limits = torch.tensor([conformal.threshold(row[1:], alpha) for row in own])
    assert within(int((own[:, 0] > limits).sum()), draws, math.floor(alpha * (count + 1) + 1e-9) / (count + 1))
    sets = torch.cat([conformal.class_sets(p[:1], kind, float(q)) for p, q in zip(probs[:100], limits, strict=False)])
    assert torch.equal(sets.gather(1, labels[:100, :1]).squeeze(1) | (own[:100, 0] > limits[:100]), torch.ones(100) > 0)


@pytest.mark.parametrize("kind", ["normalised", "cqr"])
def test_intervals_hold_the_target(kind):
    draws, count, alpha, made = 400, 39, 0.1, generator(5)
    means = torch.randn(4, draws * (count + 1), generator=made).double()
    prediction = RegressionPrediction(means, torch.full_like(means, 0.25))  # far too sure of itself
    targets = means.mean(0) + 3 * torch.randn(means.shape[1], generator=made).double()
    own = conformal.interval_scores(prediction, targets, kind, alpha).view(draws, count + 1)
    limits = [conformal.threshold(row[1:], alpha) for row in own]
    assert within(sum(float(row[0]) > limit for row, limit in zip(own, limits, strict=True)), draws, alpha)
    for i, limit in enumerate(limits[:40]):
        low, high = conformal.intervals(prediction[i * (count + 1)], kind, alpha, limit)[0].tolist()
        assert (low <= float(targets[i * (count + 1)]) <= high) == (float(own[i, 0]) <= limit)


def test_an_interval_that_would_turn_round_is_a_point():
    prediction = RegressionPrediction(torch.tensor([[2.0]]), torch.tensor([[1.0]]))
    assert conformal.intervals(prediction, "cqr", 0.1, -5.0).tolist() == [[pytest.approx(2.0), pytest.approx(2.0)]]


def test_a_threshold_and_a_p_value_are_the_same_decision():
    calibration = torch.randint(30, (99,), generator=generator(6)).double()
    scores = torch.arange(-1, 31).double()
    for alpha in (0.01, 0.05, 0.1, 0.35):
        flagged = scores > conformal.threshold(calibration, alpha)
        assert torch.equal(flagged, conformal.p_values(scores, calibration) <= alpha)
    assert conformal.threshold(calibration[:9], 0.05) == math.inf


# Error rates


@pytest.mark.parametrize(("errors", "count"), [(0, 149), (3, 40), (200, 9000), (39, 40)])
def test_binomial_tails_and_bounds_against_scipy(errors, count):
    for rate in (1e-4, 0.02, 0.5, 0.99):
        assert conformal.binomial_cdf(errors, count, rate) == pytest.approx(stats.binom.cdf(errors, count, rate), 1e-9)
    wanted = stats.beta.ppf(0.95, errors + 1, count - errors)
    assert conformal.clopper_pearson(errors, count, 0.05) == pytest.approx(wanted, rel=1e-9)
    assert conformal.clopper_pearson(count, count, 0.05) == 1
    assert conformal.binomial_cdf(-1, 5, 0.5) == 0


def test_the_range_of_a_drawn_threshold_is_that_of_the_beta_distribution():
    low, high = conformal.threshold_range(1000, 0.05)
    assert (low, high) == pytest.approx(tuple(stats.beta.ppf([0.025, 0.975], 50, 951)), rel=1e-9)
    assert conformal.threshold_range(5, 0.05) == (0, 0)


def test_a_sequence_hands_its_level_on_and_starts_again():
    risk, delta = 0.1, 0.1
    enough = math.ceil(math.log(delta / 2) / math.log(1 - risk))  # without errors, at half the level
    assert conformal.fixed_sequence([0], [enough], risk, delta, [0, 5]) == 0
    assert conformal.fixed_sequence([0], [enough - 1], risk, delta, [0, 5]) is None
    assert conformal.fixed_sequence([0, 0], [enough, enough], risk, delta, [0, 5]) == 1  # handed on
    assert conformal.fixed_sequence([0, 20, 20], [enough, 99, 99], risk, delta, [0, 5]) == 0  # stopped
    assert conformal.fixed_sequence([9, 9, 0], [10, 10, enough], risk, delta, [0, 2]) == 2  # a second start
    whole = math.ceil(math.log(delta) / math.log(1 - risk))
    assert conformal.fixed_sequence([0, 0], [enough, whole], risk, delta, [0, 1]) == 1  # both halves of the level


@pytest.mark.parametrize("risk", [0.05, 0.12])
def test_the_error_rate_of_the_chosen_threshold_holds_in_all_but_delta_of_draws(risk):
    """Errors have probability u^2 at doubt u, so that the error rate up to a doubt t is t^2 / 3."""
    draws, count, delta, made = 300, 800, 0.1, generator(7)
    limits = [i / 20 for i in range(1, 21)]
    broken, chosen = 0, 0
    for _ in range(draws):
        doubt = torch.rand(count, generator=made)
        wrong = torch.rand(count, generator=made) < doubt.square()
        masks = [doubt <= limit for limit in limits]
        errors, counts = [int(wrong[mask].sum()) for mask in masks], [int(mask.sum()) for mask in masks]
        found = conformal.fixed_sequence(errors, counts, risk, delta, (2, 8, 14))
        chosen += found is not None
        broken += found is not None and limits[found] ** 2 / 3 > risk
    assert chosen > 0.5 * draws
    assert at_most(broken, draws, delta)


def test_confidences_from_float32_keep_their_ranks():
    prediction = ClassPrediction(torch.tensor([[[0.0, -30.0]], [[0.0, -30.0]]]).log_softmax(-1))
    assert conformal.class_scores(prediction.probs, "lac").tolist() == [[0.0, pytest.approx(1.0)]]
