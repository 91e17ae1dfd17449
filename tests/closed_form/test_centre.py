"""Heads around the network: closed forms of the centre, the release and the noise, and what they promise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from repulse import ClassPrediction, DataError, Recipe, RegressionPrediction, fit_heads
from repulse.particles.calibrate import _better_centre, assume_noise
from repulse.particles.centre import Centre, calibration_cost, choose_centre
from repulse.particles.centred import CentredHeads
from repulse.particles.noise import GAUSSIAN, TAILS, Noise, choose_noise, interval_factor, leave_one_out, tail_factors
from repulse.particles.tasks import Classification, Multilabel, Regression

from .naive import random

often = settings(deadline=None, max_examples=40, derandomize=True, database=None)
QUICK = Recipe(epochs=3, heads=4, lr=1e-2)
pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")


def recentred(network, heads, release, alpha, temperature, gain=1.0):
    centre = Centre(alpha, temperature, gain)
    return Classification(network.shape[1]).recentred(heads, network, release, centre)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("alpha", "gain"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.3)])
def test_members_average_to_the_centre(alpha, gain):
    """`mean_i z_i = (alpha z_0 + (1 - alpha) mean_j h_j) / (T s)`, and differ as the heads do, times the gain."""
    network, heads, release = random(6, 3), random(5, 6, 3, seed=1), 1 + uniform(6)
    found = recentred(network, heads, release, alpha, 2.0, gain)
    middle = (alpha * network + (1 - alpha) * heads.mean(dim=0)) / (2 * release.unsqueeze(1))
    assert_close(found.mean(dim=0), middle)
    assert_close(found - found.mean(dim=0), gain * (heads - heads.mean(dim=0)))


def test_with_the_network_alone_the_class_is_the_network_s():
    network, heads = random(200, 4), random(5, 200, 4, seed=1)
    found = recentred(network, heads, torch.ones(200, dtype=torch.float64), 1.0, 1.0).mean(dim=0)
    assert torch.equal(found.argmax(dim=1), network.argmax(dim=1))


def test_equal_heads_are_the_network_and_doubt_nothing():
    network = random(20, 3)
    found = recentred(network, random(1, 20, 3, seed=1).expand(4, -1, -1), torch.ones(20).double(), 1.0, 1.0)
    prediction = ClassPrediction(found.log_softmax(dim=-1))
    assert_close(prediction.probs, network.softmax(dim=-1))
    assert float(prediction.epistemic.max()) < 1e-12


def test_along_a_ray_the_centre_stays_bounded_while_the_network_s_logits_grow():
    """The release is a ratio of mean squares, which grows faster than logits that are linear."""
    steps = torch.logspace(1, 8, 8, dtype=torch.float64)
    logits = steps.unsqueeze(1) * torch.tensor([[3.0, -3.0]], dtype=torch.float64)
    middle = recentred(logits, torch.zeros(2, 8, 2).double(), steps.square(), 1.0, 1.0).mean(dim=0)
    assert float(middle.abs().max()) <= 0.3 + 1e-12


def test_the_cost_is_the_likelihood_and_the_surprise_of_the_hits():
    """By hand: two samples, confidences 0.9 and 0.6, the first right."""
    log_probs = torch.tensor([[[0.9, 0.1], [0.4, 0.6]]], dtype=torch.float64).log()
    surprise = (1.5 - 1) ** 2 / (2 * (0.09 + 0.24) + 1)
    wanted = -math.log(0.9) - math.log(0.4) + surprise
    assert calibration_cost(log_probs, torch.tensor([0, 0])) == pytest.approx(wanted)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_an_overconfident_network_is_found(temperature):
    """Labels drawn from the softmax of logits that the network multiplies."""
    logits = 2 * random(20_000, 3)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    heads = 1e-3 * random(3, 20_000, 3, seed=2)
    found = choose_centre(
        temperature * logits, heads, torch.ones(20_000).double(), labels, Classification(logits.shape[1])
    )
    assert found.alpha * temperature / found.temperature == pytest.approx(1, rel=0.1)


def overconfident(count: int):
    """Logits of two classes that say 95 % where 7 of 8 are right, heads that are the network, and the labels."""
    labels = torch.zeros(count, dtype=torch.long)
    labels[::8] = 1
    logits = torch.tensor([[1.5, -1.5]], dtype=torch.float64).repeat(count, 1)
    return logits, logits.expand(2, -1, -1), torch.ones(count).double(), labels, Classification(2)


def test_the_temperature_is_the_one_of_least_cost():
    """Against the cost written out, on a grid of a thousand: at most half a fine step away."""
    logits, _, _, labels, _ = case = overconfident(400)
    grid = torch.linspace(-2, 2.5, 1001, dtype=torch.float64).tolist()
    costs = {t: calibration_cost((logits / math.exp(t)).log_softmax(1)[None], labels) + t**2 / 0.08 for t in grid}
    found = choose_centre(*case)
    assert math.log(found.temperature) == pytest.approx(min(costs, key=costs.__getitem__), abs=0.015)
    assert found.cost == pytest.approx(min(costs.values()), abs=0.1)


def test_the_temperature_of_few_labels_stays_near_one():
    """The same share of errors: few labels move it little, many to `3 / log(odds)`."""
    temperatures = [choose_centre(*overconfident(count)).temperature for count in (16, 160, 16_000)]
    assert 1 < temperatures[0] < 1.2 < temperatures[1] < temperatures[2]
    assert temperatures[2] == pytest.approx(3 / math.log(7), rel=0.02)


def test_the_heads_are_the_centre_where_they_know_more():
    truth = 3 * random(5000, 3)
    labels = torch.multinomial(truth.softmax(dim=1), 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    heads = truth + 0.1 * random(4, 5000, 3, seed=1)
    found = choose_centre(random(5000, 3, seed=2), heads, torch.ones(5000).double(), labels, Classification(3))
    assert found.alpha == 0
    assert choose_centre(None, heads, torch.ones(5000).double(), labels, Classification(3)).alpha == 0


def test_the_cost_of_another_centre_holds_what_it_had_to_win_by():
    """Two nats for heads in the place of the network, half a nat for letting go later."""
    truth = 3 * random(500, 3)
    labels = torch.multinomial(truth.softmax(dim=1), 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    heads, same = truth + 0.1 * random(4, 500, 3, seed=1), torch.ones(500).double()
    later = released_rows(right=60, wrong=0)
    cases = (((random(500, 3, seed=2), heads, same, labels), 3, (0, 1), 2.0), (later, 2, (1, 2), 0.5))
    for case, classes, chosen, margin in cases:
        network, outputs, release, labels = case
        found = choose_centre(*case, Classification(classes))
        assert (found.alpha, found.reach) == chosen
        z = recentred(network, outputs, found.let_go(release), found.alpha, found.temperature, found.gain)
        alone = calibration_cost(z.log_softmax(dim=-1), labels) + math.log(found.temperature) ** 2 / 0.08
        assert found.cost == pytest.approx(alone + margin, abs=1e-6)


def test_the_cost_of_several_labels_is_their_likelihood_and_the_surprise_of_how_many_hold():
    """By hand: probabilities 0.9, 0.5, 0.2 and 0.8, of which the third is not known."""
    probs = torch.tensor([[0.9, 0.5], [0.2, 0.8]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [torch.nan, 1.0]], dtype=torch.float64)
    surprise = (0.9 + 0.5 + 0.8 - 2) ** 2 / (2 * (0.09 + 0.25 + 0.16) + 1)
    wanted = -math.log(0.9) - math.log(0.5) - math.log(0.8) + surprise
    assert Multilabel((0.0, 0.0)).calibration_cost(probs.logit()[None], targets) == pytest.approx(wanted)


def test_few_labels_keep_the_network():
    """A difference of less than two nats in all is not enough to leave it."""
    network = 3 * random(4, 2)
    labels = network.argmax(dim=1)
    heads = (network + 0.01).expand(3, -1, -1) + 0.001 * random(3, 4, 2, seed=1)
    assert choose_centre(network, heads, torch.ones(4).double(), labels, Classification(3)).alpha == 1


def released_rows(right: int, wrong: int, inside: int = 100):
    """Confident logits of two classes: rows inside are right, and released rows as often as said."""
    count = inside + right + wrong
    logits = torch.tensor([[4.0, -4.0]], dtype=torch.float64).repeat(count, 1)
    labels = torch.zeros(count, dtype=torch.long)
    labels[inside + right :] = 1
    labels[0] = 1  # no network is always right
    release = torch.ones(count, dtype=torch.float64)
    release[inside:] = 2.5
    return logits, 0.01 * random(3, count, 2, seed=3), release, labels


def test_the_network_is_let_go_of_later_where_labels_show_that_it_is_still_right():
    assert choose_centre(*released_rows(right=60, wrong=0), Classification(2)).reach == 2
    assert choose_centre(*released_rows(right=12, wrong=8), Classification(2)).reach == 1


def test_a_longer_reach_must_gain_half_a_nat_and_some_of_it_per_label():
    assert choose_centre(*released_rows(right=2, wrong=0), Classification(2)).reach == 1  # too few to tell
    assert choose_centre(*released_rows(right=2, wrong=0, inside=4000), Classification(2)).reach == 1


@pytest.mark.parametrize(("tail", "reach"), [(2.5, 2), (7.0, 8), (25.0, 32), (200.0, 256)])
def test_the_reach_grows_with_the_tail_of_inputs_on_which_the_network_is_right(tail, reach):
    """Released rows at `tail` times the distance, all of them right; a reach that goes further costs more."""
    logits, heads, release, labels = released_rows(right=60, wrong=0)
    release[100:] = tail
    assert choose_centre(logits, heads, release, labels, Classification(2)).reach == reach


def test_the_release_begins_at_the_reach():
    release = torch.tensor([1.0, 1.9, 2.0, 6.0])
    assert torch.equal(Centre(reach=2.0).let_go(release), torch.tensor([1.0, 1.0, 1.0, 3.0]))
    assert torch.equal(Centre().let_go(release), release)


@pytest.mark.parametrize("tail", TAILS)
def test_tail_factors_make_a_student_t_of_unit_variance(tail):
    scipy = pytest.importorskip("scipy.stats")
    factors = tail_factors(tail)
    assert float(factors.mean()) == pytest.approx(1)
    if tail < GAUSSIAN:
        quantiles = scipy.invgamma.ppf((torch.arange(16).numpy() + 0.5) / 16, tail / 2)
        assert_close(factors, torch.from_numpy(quantiles / quantiles.mean()), rtol=1e-9, atol=0)


@pytest.mark.parametrize("tail", TAILS)
def test_the_interval_holds_its_share_of_any_noise(tail):
    mass = torch.special.ndtr(interval_factor(tail) / tail_factors(tail).sqrt()).mean()
    assert float(mass) == pytest.approx(0.975, abs=1e-9)


def noise_cost(r, e, factor, share, tail):
    """The cost of one point of the grid, sample by sample; residuals are in units of their root mean square."""
    r, typical, cost, inside = r / r.square().mean().sqrt(), float(e.median()), 0.0, 0
    for residual, disagreement in zip(r.tolist(), e.tolist(), strict=True):
        variance = factor * ((1 - share) + share * disagreement / typical)
        parts = [math.exp(-(residual**2) / (2 * variance * m)) / math.sqrt(m * variance) for m in tail_factors(tail)]
        cost -= math.log(sum(parts) / len(parts))
        inside += abs(residual) <= interval_factor(tail) * math.sqrt(variance)
    surprise = (inside - 0.95 * len(r)) ** 2 / (2 * len(r) * 0.95 * 0.05 + 1)
    return cost + surprise + math.log(share / 0.1) ** 2 / 2 + (3 / tail) ** 2 / 2


@pytest.mark.parametrize("share", [0.05, 0.35])
def test_the_noise_is_the_one_of_least_cost(share):
    r, e = random(25) * (1 + 3 * uniform(25, seed=1)), 0.1 + uniform(25, seed=2)
    r[3] = 8.0
    factors = torch.linspace(math.log(0.05), math.log(4.0), 33, dtype=torch.float64).exp().tolist()
    costs = {tail: min(noise_cost(r, e, factor, share, tail) for factor in factors) for tail in TAILS}
    found = choose_noise(r, e, (share,))
    assert found.tail == min(costs, key=costs.__getitem__)
    assert found.cost == pytest.approx(costs[found.tail])


def test_noise_and_share_are_those_that_made_the_residuals():
    disagreement = 4 * uniform(20_000, seed=1)
    noise = Noise(2.0, 0.35, GAUSSIAN, float(disagreement.median()))
    variance = noise.aleatoric + noise.gain**2 * disagreement
    found = choose_noise(random(20_000) * variance.sqrt(), disagreement)
    assert found.tau2 == pytest.approx(2.0, rel=0.1)
    assert found.share == 0.35
    assert found.tail >= 30


@pytest.mark.parametrize("count", [10, 60, 400])
def test_intervals_hold_as_many_residuals_as_new_ones_need(count):
    """At least `0.95 (n + 1)` of n, also of noise with outliers that a likelihood alone would cut off."""
    residuals = random(count) * random(count, seed=1).exp()
    disagreement = uniform(count, seed=2)
    found = choose_noise(residuals, disagreement)
    variance = found.aleatoric + found.gain**2 * disagreement
    inside = residuals.abs() <= interval_factor(found.tail) * variance.sqrt() * (1 + 1e-9)
    assert int(inside.sum()) >= min(math.ceil(0.95 * (count + 1)), count)


def test_new_residuals_are_held_on_average():
    """Forty sets of thirty residuals choose; 95 % of fresh ones must be inside, up to the error of 40 x 500 draws."""
    held = []
    for seed in range(40):
        found = choose_noise(random(30, seed=seed), torch.ones(30).double(), (0.1,))
        held.append(random(500, seed=1000 + seed).abs() <= interval_factor(found.tail) * math.sqrt(found.tau2))
    assert float(torch.cat(held).double().mean()) > 0.94


def test_neither_part_of_the_variance_vanishes():
    for residuals in (torch.zeros(50).double(), 1e6 * random(50)):
        found = choose_noise(residuals, 1e-9 * uniform(50))
        assert found.aleatoric > 0
        assert 0.02 <= found.share <= 0.35
        assert math.isfinite(found.gain)


def test_a_better_centre_must_be_better_than_chance():
    targets = random(60)
    network = targets + 0.5 * random(60, seed=1)
    assert _better_centre(targets, network, network + 0.01 * random(60, seed=2)) == 1.0
    assert _better_centre(targets, network, targets + 0.01 * random(60, seed=2)) == 0.0
    assert _better_centre(targets, targets + 0.01 * random(60, seed=1), random(60, seed=2)) == 1.0


def test_leave_one_out_is_leaving_one_out():
    """The residual at a row is that of the same regression, with the same ridge and width, fitted without it."""
    x, y = random(40, 2), random(40, seed=1)
    y = x[:, 0] + 0.1 * y
    found, noise = leave_one_out(x, y)
    assert float(found.square().mean().sqrt()) == pytest.approx(0.1, rel=0.5)
    assert noise == pytest.approx(0.01, rel=0.6)
    shifted, _ = leave_one_out(5 + 3 * x, 7 + 2 * y)
    assert_close(shifted, 2 * found, rtol=1e-6, atol=1e-8)  # units do not matter


def test_noise_is_assumed_larger_than_a_network_shows_that_knows_its_rows_by_heart():
    x, noise = random(300, 3), 0.5 * random(300, seed=1)
    features = torch.cat([x[:, :1] + noise.unsqueeze(1), x], dim=1).float()  # the first feature is the target itself
    targets = (x[:, 0] + noise).float()
    network = torch.tensor([[1.0]]), torch.zeros(1)
    with pytest.warns(UserWarning, match="knows its training rows by heart"):
        assumed = assume_noise(features, targets, network, None, x.float())
    assert assumed.noise == pytest.approx(0.5 * math.sqrt(1.5), rel=0.25)
    measured = assume_noise(features, targets, network, (features[:50] + 0.1, targets[:50]), None)
    assert measured.noise == pytest.approx(0.1, rel=1e-3)


@given(st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(0, 10**6))
@often
def test_quantiles_invert_the_distribution_function(members, samples, heavy, seed):
    tail = tail_factors(3.0) if heavy else None
    p = RegressionPrediction(random(members, samples, seed=seed), 0.1 + uniform(members, samples, seed=seed), tail)
    for q in (0.01, 0.5, 0.975):
        assert_close(p.cdf(p.quantile(q)), torch.full((samples,), q, dtype=torch.float64), rtol=0, atol=1e-9)
    low, high = p.interval(0.9)
    assert bool((low < high).all())
    assert_close(p.total, p.aleatoric + p.epistemic)
    if heavy:
        assert_close(p.quantile(0.5), p.mean, rtol=1e-9, atol=1e-9)


def test_the_density_integrates_to_one_and_belongs_to_its_distribution():
    p = RegressionPrediction(random(3, 1), 0.5 + uniform(3, 1), tail_factors(4.0))
    grid = torch.linspace(-60, 60, 60_001, dtype=torch.float64)
    wide = RegressionPrediction(p.means.expand(3, len(grid)), p.variances.expand(3, len(grid)), p.tail)
    density = wide.log_likelihood(grid).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-6)
    below = torch.cumulative_trapezoid(density, grid)
    assert_close(below, wide.cdf(grid)[1:] - wide.cdf(grid)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.5, float("nan")])
def test_quantiles_of_what_is_no_probability_are_refused(q):
    p = RegressionPrediction(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(DataError, match="Expected `q` to be a probability between 0 and 1"):
        p.quantile(q)
    with pytest.raises(DataError, match="Expected `level` to be a probability between 0 and 1"):
        p.interval(q)


def test_parts_of_a_prediction_keep_its_tail():
    p = RegressionPrediction(random(3, 8), torch.ones(3, 8).double(), tail_factors(6.0))
    joined = type(p).cat([p[:3], p[3:]])
    assert_close(joined.log_likelihood(p.mean), p.log_likelihood(p.mean))
    assert_close(p[2].quantile(0.9), p.quantile(0.9)[2:3])
    assert p.cpu().tail is not None


def blobs(count=400, seed=0):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] > 0).long()


LAYER = torch.tensor([[-1.0, -1.0, 0, 0, 0, 0], [1.0, 1.0, 0, 0, 0, 0]]), torch.zeros(2)


def test_fitted_heads_are_centred_on_the_network():
    """Without labels the mean logits are the network's where nothing is released, and less than these elsewhere."""
    x, y = blobs()
    heads = fit_heads(x, y, 5 * blobs(seed=1)[0], QUICK, start=LAYER, progress=False)
    assert isinstance(heads, CentredHeads)
    assert heads.centre == Centre(1.0, 1.0, gain=0.5)
    assert heads.features == 6
    released = heads.release(heads.distances.mean_squares(x))
    inside = released == 1
    assert float(inside.float().mean()) > 0.85
    network = x @ LAYER[0].T
    assert_close(heads(x).mean(dim=0), network / released.unsqueeze(1), rtol=1e-4, atol=1e-4)


def test_predictions_far_out_are_no_longer_the_network_s():
    x, y = blobs()
    heads = fit_heads(x, y, 5 * blobs(seed=1)[0], QUICK, start=LAYER, progress=False)
    far = heads.predict(1000 * x)
    assert float(far.confidence.mean()) < 0.99
    assert float(far.epistemic.median()) > float(heads.predict(x).epistemic.quantile(0.95))


def test_validation_labels_decide_the_temperature():
    x, y = blobs(2000)
    flipped = torch.where(torch.rand(2000, generator=torch.Generator().manual_seed(3)) < 0.3, 1 - y, y)
    sure = 20 * LAYER[0], LAYER[1]
    plain = fit_heads(x[:1000], y[:1000], None, QUICK, start=sure, progress=False)
    told = fit_heads(x[:1000], y[:1000], None, QUICK, start=sure, validation=(x[1000:], flipped[1000:]), progress=False)
    assert isinstance(told, CentredHeads)
    assert told.centre.temperature > 5 or told.centre.alpha < 1
    assert_close(told(x).std(dim=0), 0.25 * told.uncentred(x)[0].std(dim=0), rtol=1e-3, atol=1e-5)
    assert_close(plain(x).std(dim=0), 0.5 * plain.uncentred(x)[0].std(dim=0), rtol=1e-3, atol=1e-5)
    assert (plain.recipe.tap_scale, told.recipe.tap_scale) == (0.2, 1.0)
    before, after = (heads.predict(x[1000:]).log_likelihood(flipped[1000:]).mean() for heads in (plain, told))
    assert float(after) > float(before) + 0.5


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ((torch.zeros(4, 5), torch.zeros(4).long()), "of shape \\(samples, 6\\)"),
        ((torch.zeros(4, 6), torch.tensor([0, 1, 2, 5])), "between 0 and 1"),
        ((torch.full((4, 6), math.nan), torch.zeros(4).long()), "Expected `validation` to be finite"),
    ],
)
def test_validation_data_that_does_not_fit_is_refused(validation, message):
    x, y = blobs(50)
    with pytest.raises(DataError, match=message):
        fit_heads(x, y, None, QUICK, start=LAYER, validation=validation, progress=False)


def test_validation_of_one_class_is_taken():
    x, y = blobs(50)
    heads = fit_heads(
        x, y, None, QUICK, start=LAYER, validation=(x[:5], torch.ones(5, dtype=torch.int64)), progress=False
    )
    assert isinstance(heads, CentredHeads)


def test_a_last_layer_of_another_shape_is_refused():
    x, y = blobs(50)
    with pytest.raises(DataError, match=r"Expected `start` to be a weight of shape \(2, 6\)"):
        fit_heads(x, y, None, QUICK, start=(torch.zeros(3, 6), torch.zeros(3)), progress=False)


def test_regression_keeps_the_network_s_mean_and_covers_what_it_says():
    x = torch.rand(1200, 3, generator=torch.Generator().manual_seed(0))
    noise = 0.2 * torch.randn(1200, generator=torch.Generator().manual_seed(1))
    y = x.sum(dim=1) + noise
    layer = torch.ones(1, 3), torch.zeros(1)
    recipe = QUICK.replace(task="regression")
    heads = fit_heads(
        x[:500], y[:500], 3 * x[:200], recipe, start=layer, validation=(x[500:700], y[500:700]), progress=False
    )
    assert isinstance(heads.task, Regression)
    prediction = heads.predict(x[700:])
    assert isinstance(prediction, RegressionPrediction)
    if isinstance(heads, CentredHeads) and heads.centre.alpha == 1:
        assert_close(prediction.mean, x[700:].sum(dim=1), rtol=1e-4, atol=1e-4)
    low, high = prediction.interval(0.95)
    inside = float(((y[700:] > low) & (y[700:] < high)).float().mean())
    assert 0.9 < inside <= 1  # 500 rows of 95 %: five standard errors
    assert 0.01 < float((prediction.epistemic / prediction.total).median()) < 0.4


def test_heads_without_a_network_are_centred_on_their_mean():
    x, y = blobs()
    heads = fit_heads(x, y, None, QUICK.replace(epochs=60), progress=False)
    assert isinstance(heads, CentredHeads)
    assert heads.centre.alpha == 0
    assert isinstance(heads.task, Classification)
    assert float((heads.predict(x).labels == y).float().mean()) > 0.9
