"""Update rules against section 1.5 of the specification, and against densities whose score is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from repulse.functional import kernel_matrix, mix_driving, repulsion
from repulse.particles import rules
from repulse.particles.kernels import evaluate
from repulse.particles.rules import DIRECTIONS

from . import naive
from .naive import KERNELS, RULES, random

TIGHT = {"rtol": 1e-10, "atol": 1e-11}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_rule = pytest.mark.parametrize("rule", RULES)


def test_constants_are_those_of_the_specification():
    assert (rules.RIDGE, rules.SSGE_TRACE) == (naive.RIDGE, naive.TRACE)
    assert set(DIRECTIONS) == set(RULES)


@every_rule
@every_kernel
@pytest.mark.parametrize(("n", "bandwidth"), [(2, "median"), (6, "median"), (7, "median_offdiagonal"), (6, 0.5)])
def test_direction_is_the_formula(rule, kernel, n, bandwidth):
    x = random(n, 3, seed=n)
    pairs = evaluate(x, kernel, bandwidth)
    assert_close(DIRECTIONS[rule](pairs), naive.direction(rule, kernel, x, float(pairs.bandwidth)), **TIGHT)


def test_ssge_leaves_small_eigenvalues_out():
    """Two tight groups: the kernel matrix has two large eigenvalues, and ssge sees only those."""
    x = torch.cat([0.05 * random(4, 3), 3 + 0.05 * random(4, 3, seed=1)])
    pairs = evaluate(x, "rbf", "median")
    ssge, sge = DIRECTIONS["ssge"](pairs), DIRECTIONS["sge"](pairs)
    assert torch.linalg.matrix_rank(ssge, rtol=1e-8) <= 2
    assert_close(ssge, naive.direction("ssge", "rbf", x, float(pairs.bandwidth)), **TIGHT)
    assert float((ssge - sge).norm() / sge.norm()) > 0.1


@every_kernel
@pytest.mark.parametrize(("rule", "stop"), [("kde", True), ("blob", False)])
def test_kde_and_blob_descend_the_log_density(kernel, rule, stop):
    """Both are minus the gradient of sum_i log sum_j k(x_i, x_j): kde with a stop-gradient on x_j, blob without."""
    x = random(6, 3).requires_grad_()
    pairs = evaluate(x, kernel, "median")
    h = float(pairs.bandwidth)
    loss = 0
    for i in range(6):
        others = [naive.value(kernel, x[i], x[j].detach() if stop else x[j], h) for j in range(6) if j != i]
        loss = loss + torch.log(1 + sum(others))
    (gradient,) = torch.autograd.grad(loss, x)
    assert_close(DIRECTIONS[rule](pairs), -gradient, **TIGHT)


def test_rbf_kde_closed_form():
    """r_i = (2/h) sum_j w_ij (x_i - x_j), with w_ij the kernel values normalised over j."""
    x = random(5, 3)
    h = naive.bandwidth("rbf", x)
    k = naive.matrix("rbf", x, h)
    expected = torch.stack([sum(2 / h * k[i, j] / k[i].sum() * (x[i] - x[j]) for j in range(5)) for i in range(5)])
    assert_close(DIRECTIONS["kde"](evaluate(x, "rbf", "median")), expected, **TIGHT)


def test_two_particles_by_hand():
    """At 0 and 2, median of (0, 0, 4, 4) is 2, h = 2 / log 3, k = 1/9: kde pushes by (2/h) (1/9) / (10/9) 2."""
    x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    push = 2 * math.log(3) / 10
    assert_close(
        DIRECTIONS["kde"](evaluate(x, "rbf", "median")), torch.tensor([[-push], [push]], dtype=x.dtype), **TIGHT
    )


@settings(deadline=None, max_examples=40, derandomize=True, database=None)
@given(st.data(), st.sampled_from(RULES), st.sampled_from(KERNELS), st.integers(0, 10_000))
def test_order_of_particles_is_irrelevant(data, rule, kernel, seed):
    n = data.draw(st.integers(1, 7))
    order = data.draw(st.permutations(range(n)))
    x = random(n, 3, seed=seed)
    straight = DIRECTIONS[rule](evaluate(x, kernel, "median"))
    assert_close(DIRECTIONS[rule](evaluate(x[order], kernel, "median")), straight[order], rtol=1e-8, atol=1e-9)


@every_rule
@every_kernel
def test_forces_that_sum_to_zero(rule, kernel):
    """Blob and svgd forces are between pairs, equal and opposite; the others are normalised particle by particle."""
    total = DIRECTIONS[rule](evaluate(random(6, 3), kernel, "median")).sum(dim=0)
    assert bool((total.abs() < 1e-12).all()) == (rule in ("blob", "svgd"))


@every_rule
@every_kernel
@pytest.mark.parametrize("n", [1, 5])
def test_no_direction_for_one_or_for_coinciding_particles(rule, kernel, n):
    x = random(1, 4, dtype=torch.float32).repeat(n, 1)
    for bandwidth in ("median", "median_offdiagonal", 0.5):
        assert DIRECTIONS[rule](evaluate(x, kernel, bandwidth)).tolist() == [[0.0] * 4] * n


@pytest.mark.parametrize(
    ("rule", "samples", "low", "high"),
    # A kernel density estimate is the density smoothed by variance h/2, so that its slope is 1 / (1 + h/2) = 0.81 and
    # less, for each particle also sees itself; the Stein estimators solve for the score and do not smooth.
    [("kde", 400, 0.65, 0.82), ("sge", 400, 0.88, 1.08), ("ssge", 200, 0.83, 1.06)],
)
def test_slope_of_the_score_of_a_gaussian(rule, samples, low, high):
    """Samples of N(0, I): the true score is -x, and repulsion is minus its estimate."""
    x = random(samples, 2, seed=2)
    r = DIRECTIONS[rule](evaluate(x, "rbf", "median"))
    assert low < float((r * x).sum() / x.square().sum()) < high


def test_smoothing_explains_the_bias_of_kde():
    """With the plain median as bandwidth the slope is near 1 / (1 + 2.77/2) = 0.42, as the specification reports."""
    x = random(400, 2)
    median = float(evaluate(x, "rbf", "median").bandwidth) * math.log(401)
    r = DIRECTIONS["kde"](evaluate(x, "rbf", median / 2))
    slope = float((r * x).sum() / x.square().sum())
    assert slope == pytest.approx(1 / (1 + median / 2), abs=0.04)


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_svgd_finds_a_gaussian(kernel):
    """A loop of one's own on the pure functions: driving forces mixed, repulsion added."""
    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    covariance = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    target = torch.distributions.MultivariateNormal(mean, covariance)
    x = random(30, 2).requires_grad_()
    for _ in range(250):
        k = kernel_matrix(x, kernel=kernel)
        loss = -target.log_prob(mix_driving(x, k)).sum() + repulsion(x, rule="svgd", kernel=kernel)
        (gradient,) = torch.autograd.grad(loss, x)
        x = (x - 0.5 * gradient).detach().requires_grad_()
    x = x.detach()
    assert_close(x.mean(dim=0), mean, rtol=0, atol=0.02)
    root = torch.linalg.inv(torch.linalg.cholesky(covariance))
    relative = torch.linalg.eigvalsh(root @ torch.cov(x.T, correction=0) @ root.T)
    assert float(relative.min()) > 0.78  # 30 particles of a median bandwidth: a little narrow, as is known of SVGD
    assert float(relative.max()) < 1.02
