"""Kernels, their gradients and their bandwidths, against the written formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from repulse.particles.kernels import evaluate, mean_off_diagonal

from . import naive
from .naive import KERNELS, random

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
MEDIANS = ("median", "median_offdiagonal")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@every_kernel
@pytest.mark.parametrize("rule", MEDIANS)
@pytest.mark.parametrize(("n", "p"), [(2, 1), (3, 4), (6, 5)])
def test_matrix_is_the_written_kernel(kernel, rule, n, p):
    x = random(n, p)
    pairs = evaluate(x, kernel, rule)
    h = naive.bandwidth(kernel, x, diagonal=rule == "median")
    assert_close(pairs.bandwidth, torch.tensor(h, dtype=x.dtype), **TIGHT)
    assert_close(pairs.k, naive.matrix(kernel, x, h), **TIGHT)


@every_kernel
@pytest.mark.parametrize("rule", [*MEDIANS, 0.7])
def test_gradient_is_autograd_of_the_written_kernel(kernel, rule):
    """Second argument and bandwidth detached; arbitrary, unsymmetric weights."""
    x, weights = random(6, 4), random(6, 6, seed=1)
    pairs = evaluate(x, kernel, rule)
    slopes = naive.slopes(kernel, x, float(pairs.bandwidth))
    assert_close(pairs.gradient(weights), torch.einsum("ij,ijp->ip", weights, slopes), **TIGHT)
    assert_close(pairs.gradient(weights[:, :1]), torch.einsum("i,ijp->ip", weights[:, 0], slopes), **TIGHT)
    assert_close(pairs.gradient(weights[:1]), torch.einsum("j,ijp->ip", weights[0], slopes), **TIGHT)


@every_kernel
def test_gradient_is_the_finite_difference(kernel):
    x, weights, step = random(5, 3), random(5, 5, seed=1), 1e-6
    pairs = evaluate(x, kernel, "median")
    h = float(pairs.bandwidth)
    expected = torch.zeros_like(x)
    for i in range(5):
        for c in range(3):
            shift = torch.zeros(3, dtype=x.dtype)
            shift[c] = step
            for j in (j for j in range(5) if j != i):
                rise = naive.value(kernel, x[i] + shift, x[j], h) - naive.value(kernel, x[i] - shift, x[j], h)
                expected[i, c] += weights[i, j] * rise / (2 * step)
    assert_close(pairs.gradient(weights), expected, rtol=1e-8, atol=1e-9)


def test_distances_that_the_kernels_decay_in():
    """By hand: x = (0, 0), y = (3, 4), bandwidth 10 in all."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    expected = {"rbf": math.exp(-2.5), "imq": 3.5**-0.5, "l2": math.exp(-0.5), "laplace": math.exp(-0.7)}
    for kernel, k in expected.items():
        per_coordinate = 10 / math.sqrt(2) if kernel == "l2" else 5.0
        assert float(evaluate(x, kernel, per_coordinate).k[0, 1]) == pytest.approx(k, rel=1e-12)


@pytest.mark.parametrize(
    ("points", "rule", "squared"),
    [
        ((0, 2), "median", 2.0),  # 0 0 4 4
        ((0, 2), "median_offdiagonal", 4.0),
        ((0, 1, 3), "median", 1.0),  # 0 0 0 1 1 4 4 9 9: the smallest pair
        ((0, 1, 3), "median_offdiagonal", 4.0),
        ((0, 1, 3, 7), "median", 6.5),  # 4 zeros; 1 4 9 16 36 49 twice: between the second and the third
        ((0, 1, 3, 7), "median_offdiagonal", 12.5),
    ],
)
def test_median_rule_by_hand(points, rule, squared):
    x = torch.tensor(points, dtype=torch.float64).unsqueeze(1)
    pairs = evaluate(x, "rbf", rule)
    assert float(pairs.bandwidth) == pytest.approx(squared / math.log(len(points) + 1), rel=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "l2", "laplace"])
@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("rule", MEDIANS)
def test_kernel_at_the_median_is_one_over_n_plus_one(kernel, n, rule):
    x = random(n, 3, seed=n)
    pairs = evaluate(x, kernel, rule)
    at_median = math.exp(-naive.median(kernel, x, diagonal=rule == "median") / float(pairs.bandwidth))
    assert at_median == pytest.approx(1 / (n + 1), rel=1e-12)
    off = pairs.k[~torch.eye(n, dtype=torch.bool)]
    odd = n * (n - 1) // 2 % 2 == 1
    if (rule == "median_offdiagonal" and odd) or (rule == "median" and n == 3):  # then the median is itself a pair
        assert float((off - 1 / (n + 1)).abs().min()) < 1e-12
    entries = off if rule == "median_offdiagonal" else pairs.k.flatten()
    assert int((entries > 1 / (n + 1) + 1e-12).sum()) <= len(entries) / 2
    assert int((entries < 1 / (n + 1) - 1e-12).sum()) <= len(entries) / 2


@every_kernel
@pytest.mark.parametrize("number", [0.3, 2.0])
def test_fixed_bandwidth_is_per_coordinate(kernel, number):
    """exp(-mean(...) / bandwidth): writing every coordinate three times changes nothing."""
    x = random(5, 4)
    pairs = evaluate(x, kernel, number)
    difference = x.unsqueeze(1) - x.unsqueeze(0)
    mean = {"laplace": difference.abs().mean(-1), "l2": difference.square().mean(-1).sqrt()}
    scaled = mean.get(kernel, difference.square().mean(-1)) / number
    assert_close(pairs.k, (1 + scaled) ** -0.5 if kernel == "imq" else torch.exp(-scaled), **TIGHT)
    assert_close(evaluate(x.repeat(1, 3), kernel, number).k, pairs.k, **TIGHT)


@every_kernel
@pytest.mark.parametrize("rule", [*MEDIANS, 0.7])
def test_translation_changes_nothing(kernel, rule):
    x = random(6, 4)
    here, there = evaluate(x, kernel, rule), evaluate(x + 50 * random(1, 4, seed=3), kernel, rule)
    assert_close(there.k, here.k, rtol=1e-11, atol=1e-11)
    ones = torch.ones_like(here.k)
    assert_close(there.gradient(ones), here.gradient(ones), rtol=1e-11, atol=1e-11)


@every_kernel
@pytest.mark.parametrize("rule", MEDIANS)
def test_the_median_rule_ignores_units(kernel, rule):
    x, ones = random(6, 4), torch.ones(6, 6, dtype=torch.float64)
    small, large = evaluate(x, kernel, rule), evaluate(30 * x, kernel, rule)
    assert_close(large.k, small.k, **TIGHT)
    assert_close(30 * large.gradient(ones), small.gradient(ones), **TIGHT)


@every_kernel
@pytest.mark.parametrize("rule", MEDIANS)
def test_close_particles_keep_their_digits(kernel, rule):
    """In float32 the expansion |x|^2 - 2xy + |y|^2 would be wrong in the first digit here."""
    x = 1 + 1e-3 * random(6, 5)
    single, double = evaluate(x.float(), kernel, rule), evaluate(x.float().double(), kernel, rule)
    ones = torch.ones(6, 6, dtype=torch.float64)
    size = double.gradient(ones).abs().max()
    assert single.k.dtype == torch.float32
    assert_close(single.k.double(), double.k, rtol=2e-6, atol=2e-6)
    assert_close(single.gradient(ones.float()).double() / size, double.gradient(ones) / size, rtol=0, atol=5e-6)


@every_kernel
@pytest.mark.parametrize("far", [0, 100])
def test_single_precision_is_enough(kernel, far):
    """Ten heads at an ordinary distance, and the same with one of them far away from the rest."""
    x = random(10, 30, dtype=torch.float32)
    x[0] += far
    ones = torch.ones(10, 10, dtype=torch.float64)
    single = evaluate(x, kernel, "median").gradient(ones.float()).double()
    double = naive.slopes_sum(kernel, x.double(), float(evaluate(x.double(), kernel, "median").bandwidth))
    assert float((single - double).norm() / double.norm()) < 1e-5


def test_an_outlier_is_left_alone():
    """Far from all others k underflows, the density at the outlier is k_ii = 1, and nothing pushes it further."""
    x = random(8, 3)
    x[0] += 100
    pairs = evaluate(x, "rbf", "median")
    assert float(pairs.k[0].sum()) == 1
    assert float(pairs.gradient(torch.ones_like(pairs.k))[0].abs().max()) < 1e-100


@every_kernel
@pytest.mark.parametrize("rule", [*MEDIANS, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coinciding_particles_do_not_move(kernel, rule, dtype):
    pairs = evaluate(random(1, 4, dtype=dtype).repeat(5, 1), kernel, rule)
    assert_close(pairs.k, torch.ones(5, 5, dtype=dtype), rtol=0, atol=0)
    assert_close(pairs.gradient(random(5, 5, dtype=dtype)), torch.zeros(5, 4, dtype=dtype), rtol=0, atol=0)
    assert float(mean_off_diagonal(pairs.k)) == 1


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize("rule", MEDIANS)
def test_bandwidth_has_a_floor(kernel, rule):
    """1e-8 (1 + mean |x|^2), when the particles coincide."""
    x = random(1, 4)
    bandwidth = evaluate(x.repeat(5, 1), kernel, rule).bandwidth
    assert float(bandwidth) == pytest.approx(1e-8 * (1 + sum(v * v for v in x[0].tolist())), rel=1e-12)


@every_kernel
def test_nothing_moves_while_the_median_is_zero(kernel):
    """Four of five particles coincide, so that most pairs do."""
    x = random(1, 4).repeat(5, 1)
    x[4] += 1
    pairs = evaluate(x, kernel, "median")
    assert bool(torch.isfinite(pairs.k).all())
    assert_close(pairs.gradient(torch.ones_like(pairs.k)), torch.zeros_like(x), rtol=0, atol=0)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_differs_by_rounding_coincides(kernel, dtype):
    """As outputs of equal heads do on some processors; four times the bound is a difference, and is felt."""
    unit = torch.finfo(dtype).eps
    x = 1 + 2 * unit * torch.arange(5, dtype=dtype)[:, None].repeat(1, 4)  # up to 8 units apart
    pairs = evaluate(x, kernel, "median")
    assert_close(pairs.gradient(torch.ones_like(pairs.k)), torch.zeros_like(x), rtol=0, atol=0)
    apart = evaluate(1 + 256 * unit * torch.arange(5, dtype=dtype)[:, None].repeat(1, 4), kernel, "median")
    assert float(apart.gradient(torch.ones_like(apart.k)).abs().max()) > 0


@every_kernel
def test_two_coinciding_particles_move_together(kernel):
    x = random(5, 4)
    x[1] = x[0]
    pairs = evaluate(x, kernel, "median")
    gradient = pairs.gradient(torch.ones_like(pairs.k))
    assert_close(gradient, naive.slopes_sum(kernel, x, float(pairs.bandwidth)), **TIGHT)
    assert_close(gradient[0], gradient[1], **TIGHT)


@every_kernel
@pytest.mark.parametrize("rule", [*MEDIANS, 0.7])
def test_a_single_particle(kernel, rule):
    pairs = evaluate(random(1, 4), kernel, rule)
    assert pairs.k.tolist() == [[1.0]]
    assert pairs.gradient(torch.ones_like(pairs.k)).tolist() == [[0.0] * 4]
    assert bool(torch.isfinite(pairs.bandwidth))
    assert float(mean_off_diagonal(pairs.k)) == 0


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(kernel, dtype):
    """Squared distances beyond 65504 would overflow in float16."""
    x = 100 * random(4, 64, dtype=dtype)
    pairs, single = evaluate(x, kernel, "median"), evaluate(x.float(), kernel, "median")
    assert pairs.k.dtype == torch.float32
    assert_close(pairs.k, single.k, rtol=0, atol=0)
    assert_close(
        pairs.k.double(), naive.matrix(kernel, x.double(), naive.bandwidth(kernel, x.double())), rtol=1e-5, atol=0
    )


def test_nothing_needs_or_keeps_a_graph():
    x = random(4, 3).requires_grad_()
    pairs = evaluate(x, "rbf", "median")
    assert not any(t.requires_grad for t in (pairs.x, pairs.k, pairs.bandwidth, pairs.slope))


@every_kernel
@pytest.mark.parametrize(("units", "repels"), [(32, False), (128, True)])
def test_particles_coincide_up_to_sixty_four_units_in_the_last_place_of_each_coordinate(kernel, units, repels):
    """Of as many as there are: the threshold grows with the number of coordinates as the distance does."""
    x = torch.ones(2, 16, dtype=torch.float64)
    x[1] += units * torch.finfo(x.dtype).eps
    assert bool(evaluate(x, kernel, "median_offdiagonal").slope.abs().amax() > 0) == repels
