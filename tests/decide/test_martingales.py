"""Betting against uniform p-values: fair bets, Ville's bound by simulation, and p-values that are uniform indeed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from repulse.decide.martingales import BETS, Jumper, PlugIn, PowerMixture, Ranks, Switching, threshold_for

SURE = 1e-6


def fed(bet, p):
    """Feed p-values `(time, streams)` to a way of betting."""
    made = BETS[bet](p.shape[1])
    for row in p:
        made.update(row)
    return made


@pytest.mark.parametrize("bet", BETS)
def test_every_bet_is_fair(bet):
    """From any state, the expected factor of the capital under a uniform p-value is one: integrated over `p = v^20`."""
    start = np.random.default_rng(0).random((10, 1)) ** 2
    v = (np.arange(4000) + 0.5) / 4000
    many = fed(bet, np.repeat(start, len(v), axis=1))
    before = many.log_value.copy()
    many.update(v**20)
    assert (np.exp(many.log_value - before) * 20 * v**19).mean() == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("bet", BETS)
def test_an_alarm_is_raised_by_mistake_as_often_as_promised_at_most(bet):
    streams, false_alarm = 500, 0.05
    made = fed(bet, 1 - np.random.default_rng(1).random((600, streams)))
    alarms = int((made.log_most >= threshold_for(false_alarm)).sum())
    assert alarms <= stats.binom.ppf(1 - SURE, streams, false_alarm)
    assert alarms > 0 or bet == "plugin"  # a bound that is never near would be no use


@pytest.mark.parametrize(("bet", "share"), [("switching", 0.05), ("mixture", 0.2), ("jumper", 0.5), ("plugin", 0.1)])
def test_a_share_of_small_p_values_is_found(bet, share):
    made = np.random.default_rng(2)
    p = 1 - made.random((1500, 50))
    p = np.where((made.random(p.shape) < share) & (np.arange(1500) >= 500)[:, None], 0.01 * p, p)
    found = fed(bet, p)
    assert (found.log_most >= threshold_for(0.01)).mean() > 0.9


def test_values_in_closed_form():
    p = np.array([[0.2], [0.7], [0.01]])
    product = np.prod([[power * one ** (power - 1) for power in PowerMixture.POWERS] for one in p[:, 0]], axis=0)
    assert np.exp(fed("mixture", p).log_value[0]) == pytest.approx(product.mean())
    slopes, held = Jumper.SLOPES, np.full(3, 1 / 3)
    for one in p[:, 0]:
        held = held * (1 + slopes * (one - 0.5))
        held = 0.99 * held + 0.01 * held.sum() / 3
    assert np.exp(fed("jumper", p).log_value[0]) == pytest.approx(held.sum())
    widths = np.diff(PlugIn.EDGES)
    first = fed("plugin", p[:1])
    assert first.log_value[0] == pytest.approx(0)  # the histogram starts out flat
    first.update(np.array([0.15]))  # beside 0.2, in a bin of width 0.1
    assert np.exp(first.log_value[0]) == pytest.approx((1 + 100 * widths[5]) / 101 / widths[5])


def test_capital_that_waits_is_not_lost():
    """After many quiet inputs a change is found nearly as fast; the jumper has lost too much by then."""
    p = 1 - np.random.default_rng(3).random((4000, 10))
    assert fed("switching", p).log_value.mean() > -3
    assert fed("jumper", p).log_value.mean() < -10
    assert Switching(1).prior.sum() == pytest.approx(1)


# p-values of a stream


def test_ranks_are_those_among_all_that_came_before():
    made = np.random.default_rng(4)
    calibration, stream, u = made.integers(9, size=7), made.integers(9, size=600), made.random(600)
    ranks = Ranks(calibration, 10_000)
    found = np.concatenate(
        [ranks.p_values(s, v, torch.Generator()) for s, v in zip(np.split(stream, 3), np.split(u, 3), strict=True)]
    )
    known = list(calibration)
    for i, score in enumerate(stream):
        above, equal = sum(k > score for k in known), sum(k == score for k in known)
        assert found[i] == pytest.approx((above + u[i] * (1 + equal)) / (len(known) + 1))
        known.append(score)
    assert np.array_equal(ranks.known, np.sort(known))


@pytest.mark.parametrize("capacity", [30, 10_000])
def test_p_values_of_a_stream_are_uniform_and_independent(capacity):
    """Also when most that was seen is forgotten; p-values of calibration data alone would share its deviations."""
    made, generator, draws = np.random.default_rng(5), torch.Generator().manual_seed(0), 300
    rows, kept, alone = [], [], []
    for _ in range(draws):
        calibration, stream = made.normal(size=20), made.normal(size=300)
        ranks = Ranks(calibration, capacity)
        rows.append(ranks.p_values(stream, made.random(300), generator))
        kept.append(len(ranks.known))
        alone.append(1 - np.searchsorted(np.sort(calibration), stream) / 21)
    p = np.array(rows)
    assert stats.kstest(p[:, 290], "uniform").pvalue > SURE
    spread = 300 * 0.2 * 0.8  # of the number of p-values up to 0.2, if they are independent
    low, high = spread * stats.chi2.ppf([SURE, 1 - SURE], draws - 1) / (draws - 1)
    assert low < (p <= 0.2).sum(axis=1).var(ddof=1) < high
    assert (np.array(alone) <= 0.2).sum(axis=1).var(ddof=1) > 2 * spread
    assert set(kept) == {min(320, capacity)}
