"""Forces as losses: the gradient of each is minus the written direction, pulled back by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from repulse.functional import gaussian_process_prior, kernel_matrix, mix_driving, repulsion
from repulse.particles.fit import fit_heads
from repulse.recipe import Recipe

from . import naive
from .naive import KERNELS, RULES, SPACES, random

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
JITTER = 1e-3


def gradient(loss, x):
    return torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("on", SPACES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rule", RULES)
def test_repulsion_descends_along_the_direction(rule, kernel, on):
    logits = random(5, 3, 4).requires_grad_()
    loss = repulsion(logits, on=on, rule=rule, kernel=kernel)
    push, k = naive.push(rule, kernel, logits.detach(), on)
    assert_close(-gradient(loss, logits), push, **TIGHT)
    assert_close(kernel_matrix(logits, on=on, kernel=kernel), k, **TIGHT)
    assert_close(loss.detach(), sum(math.log(float(row.sum())) for row in k) * torch.ones_like(loss), **TIGHT)


@pytest.mark.parametrize("on", SPACES)
def test_repulsion_is_autograd_of_the_written_loss(on):
    """For kde: sum_i log sum_j k(u_i, sg u_j), through torch's own softmax."""
    logits = random(4, 3, 5).requires_grad_()
    maps = {
        "logits": lambda f: f,
        "probabilities": lambda f: f.softmax(-1),
        "log_probabilities": lambda f: f.log_softmax(-1),
        "centred_logits": lambda f: f - f.mean(-1, keepdim=True),
    }
    u = maps[on](logits).flatten(1)
    h = naive.bandwidth("rbf", u.detach())
    written = sum(sum(naive.value("rbf", a, b, h) for b in u.detach()).log() for a in u)
    loss = repulsion(logits, on=on)
    assert_close(loss, written, **TIGHT)
    assert_close(gradient(loss, logits), gradient(written, logits), **TIGHT)


@pytest.mark.parametrize("on", ["probabilities", "log_probabilities", "centred_logits"])
@pytest.mark.parametrize("rule", RULES)
def test_what_softmax_ignores_is_not_pushed(rule, on):
    """No force along equal shifts of all logits, except where the kernel sees raw logits."""
    logits = random(5, 3, 4).requires_grad_()
    assert float(gradient(repulsion(logits, on=on, rule=rule), logits).sum(-1).abs().max()) < 1e-12
    assert float(gradient(repulsion(logits, rule=rule), logits).sum(-1).abs().max()) > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_numeric_bandwidth_and_incoming_gradient(rule):
    x = random(5, 6).requires_grad_()
    loss = 3 * repulsion(x, rule=rule, bandwidth=0.8)
    assert_close(-gradient(loss, x), 3 * naive.direction(rule, "rbf", x.detach(), 0.8 * 6), **TIGHT)


@pytest.mark.parametrize("rule", RULES)
def test_one_particle_and_equal_particles_feel_nothing(rule):
    for n, value in ((1, 0.0), (4, 4 * math.log(4))):
        logits = random(1, 3, 4).repeat(n, 1, 1).requires_grad_()
        loss = repulsion(logits, on="probabilities", rule=rule)
        assert float(loss.detach()) == pytest.approx(value, abs=1e-12)
        assert float(gradient(loss, logits).abs().max()) == 0


def test_half_precision_keeps_its_type():
    logits = random(4, 3, 5, dtype=torch.bfloat16).requires_grad_()
    got = gradient(repulsion(logits), logits)
    assert got.dtype == torch.bfloat16
    push, _ = naive.push("kde", "rbf", logits.detach().double(), "logits")
    assert_close(-got.double(), push, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
def test_mix_driving_averages_gradients_only(shape):
    x, k = random(*shape).requires_grad_(), random(5, 5, seed=1)
    mixed = mix_driving(x, k)
    assert_close(mixed, x, rtol=0, atol=0)
    forces = 3 * x.detach() ** 2  # of sum x^3
    expected = torch.stack([sum(k[i, j] * forces[j] for j in range(5)) / 5 for i in range(5)])
    assert_close(gradient((mixed**3).sum(), x), expected, **TIGHT)


@pytest.mark.parametrize(("batch", "d", "std"), [(4, 6, 1.0), (6, 3, 0.5), (9, 2, 2.0)])
def test_prior_is_the_gaussian_log_density(batch, d, std):
    """Independent for each head and class; also when the covariance has rank d + 1 < batch."""
    outputs, features = random(3, batch, 2).requires_grad_(), random(batch, d, seed=1)
    covariance = std**2 * (features @ features.T + torch.ones(batch, batch, dtype=features.dtype))
    covariance = covariance + JITTER * covariance.diagonal().mean() * torch.eye(batch, dtype=features.dtype)
    density = torch.distributions.MultivariateNormal(torch.zeros(batch, dtype=features.dtype), covariance)
    loss = gaussian_process_prior(outputs, features, std)
    log_density = sum(density.log_prob(outputs[i, :, k]) for i in range(3) for k in range(2))
    assert_close(gradient(loss, outputs), -gradient(log_density, outputs), rtol=1e-8, atol=1e-9)
    at_zero = 6 * density.log_prob(torch.zeros(batch, dtype=features.dtype))
    assert_close(loss, at_zero - log_density, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("batch", [4, 9])
def test_prior_is_the_weight_prior_of_the_best_explanation(batch):
    """f^T (C + jitter)^-1 f / 2 = min over theta of |theta|^2 / (2 std^2) + |f - A theta|^2 / (2 jitter), A = [P 1]."""
    std, d = 0.7, 5
    outputs, features = random(1, batch, 1), random(batch, d, seed=1)
    design = torch.cat([features, torch.ones(batch, 1, dtype=features.dtype)], dim=1)
    jitter = float(JITTER * std**2 * (design**2).sum(1).mean())
    normal = design.T @ design / jitter + torch.eye(d + 1, dtype=features.dtype) / std**2
    theta = torch.linalg.inv(normal) @ design.T @ outputs[0, :, 0] / jitter
    expected = (theta**2).sum() / (2 * std**2) + ((outputs[0, :, 0] - design @ theta) ** 2).sum() / (2 * jitter)
    assert_close(gaussian_process_prior(outputs, features, std), expected, rtol=1e-9, atol=0)


def test_prior_covariance_is_that_of_drawn_heads():
    """The loss is f^T A f / 2; A^-1 less its jitter is the covariance of outputs of heads drawn from the prior."""
    std, draws = 0.7, 40_000
    features = random(4, 3, seed=1)
    outputs = torch.zeros(1, 4, 1, dtype=torch.float64)
    precision = torch.autograd.functional.hessian(lambda f: gaussian_process_prior(f, features, std), outputs)
    covariance = torch.linalg.inv(precision.view(4, 4))
    covariance = covariance - covariance.trace() * JITTER / (1 + JITTER) / 4 * torch.eye(4, dtype=torch.float64)
    weights, biases = std * random(draws, 3, seed=2), std * random(draws, 1, seed=3)
    drawn = weights @ features.T + biases
    scale = covariance.diagonal().sqrt()
    assert_close(
        drawn.T @ drawn / draws / scale / scale[:, None], covariance / scale / scale[:, None], rtol=0, atol=0.03
    )


@pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_function_prior_takes_features_of_any_precision(dtype):
    """Features of any precision are the numbers they hold: the fit is that of the same numbers in float32."""
    features, elsewhere = random(40, 3, dtype=dtype), 3 * random(30, 3, seed=1, dtype=dtype)
    targets = (features[:, 0] > 0).long()

    def fitted(change, **recipe):
        how = Recipe(heads=3, epochs=2, **{"prior": "function", "prior_std": 0.01, **recipe})
        return fit_heads(change(features), targets, change(elsewhere), how, progress=False).vectors()

    found = fitted(lambda x: x)
    assert_close(found, fitted(lambda x: x.float()), rtol=1e-4, atol=1e-5)
    assert (found - fitted(lambda x: x, prior_std=10.0)).abs().max() > 1e-3  # the prior is part of the fit
