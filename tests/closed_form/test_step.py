"""One step of the fit against the pull-back written out by hand for linear heads, without autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.particles.loop import FitData, backward, compute_forces, optimise, ramp
from repulse.particles.tasks import Classification, Regression
from repulse.recipe import Recipe

from . import naive
from .naive import RULES, SPACES, random

N, B, R, D, K, HEADS = 50, 7, 5, 3, 4, 4
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
X, Y, AWAY = random(N, D, seed=1), torch.arange(N) % K, 2 * random(N, D, seed=2)
STEP = Recipe(  # nothing that decides a step is left to the defaults
    compare="jointly",
    space="function",
    on="probabilities",
    rule="kde",
    kernel="rbf",
    bandwidth="median",
    strength=0.3,
    prior="weights",
    prior_std=0.7,
)
VALUES = X[:, 0] + 0.3 * random(N, seed=3)


def make_heads(task=None, heads=HEADS):
    return Heads(heads, D, task or Classification(K), generator=torch.Generator().manual_seed(5)).double()


def step_gradient(heads, recipe, y=Y, away=AWAY):
    """Gradients `(n, K, d + 1)` of one step, as the loop computes them; the bias is the last column."""
    problem = FitData(X, y, away, lambda batch: batch, heads.task)
    forces = compute_forces(heads, problem, recipe, X[:B], y[:B], None if away is None else away[:R])
    backward(heads, forces, recipe.strength, recipe)
    return torch.cat([heads.weight.grad, heads.bias.grad.unsqueeze(-1)], dim=-1)


def theta(heads):
    return torch.cat([heads.weight, heads.bias.unsqueeze(-1)], dim=-1).detach()


def pulled_back(forces, features):
    """`sum_b forces_b (features_b, 1)^T` for one head."""
    total = torch.zeros(forces.shape[1], D + 1, dtype=forces.dtype)
    for b in range(len(features)):
        total += torch.outer(forces[b], torch.cat([features[b], torch.ones(1, dtype=forces.dtype)]))
    return total


def logits_by_hand(heads, features):
    out = [[w @ phi + b for phi in features] for w, b in zip(heads.weight, heads.bias, strict=True)]
    return torch.stack([torch.stack(rows) for rows in out]).detach()


def likelihood_by_hand(heads):
    """`(1/B) sum_b (p - y) phi^T` of every head."""
    p, y = naive.softmax(logits_by_hand(heads, X[:B])), torch.eye(K, dtype=X.dtype)[Y[:B]]
    return torch.stack([pulled_back((p[i] - y) / B, X[:B]) for i in range(len(p))])


@pytest.mark.parametrize("on", SPACES)
@pytest.mark.parametrize("rule", ["kde", "blob", "sge", "ssge"])
def test_function_space(rule, on):
    heads, recipe = make_heads(), STEP.replace(rule=rule, on=on)
    push, _ = naive.push(rule, "rbf", logits_by_hand(heads, AWAY[:R]), on)
    repulsion = torch.stack([-pulled_back(push[i], AWAY[:R]) for i in range(HEADS)])
    expected = likelihood_by_hand(heads) + theta(heads) / (N * 0.7**2) + 0.3 * repulsion
    assert_close(step_gradient(heads, recipe), expected, **TIGHT)


@pytest.mark.parametrize("kernel", naive.KERNELS)
@pytest.mark.parametrize("rule", ["kde", "blob", "sge", "ssge"])
def test_parameter_space(rule, kernel):
    heads, recipe = make_heads(), STEP.replace(space="parameters", rule=rule, kernel=kernel)
    vectors = theta(heads).flatten(1)
    push = naive.direction(rule, kernel, vectors, naive.bandwidth(kernel, vectors)).view(HEADS, K, D + 1)
    expected = likelihood_by_hand(heads) + theta(heads) / (N * 0.7**2) - 0.3 * push
    assert_close(step_gradient(heads, recipe), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("on", SPACES)
def test_svgd_in_function_space(on):
    """(1/n) [J_i(X)^T sum_j k_ij g_j(X) - strength J_i(X_r)^T Delta_i]: forces averaged as functions, then pulled back.

    The prior is part of the driving score and averaged alike.
    """
    heads, recipe = make_heads(), STEP.replace(rule="svgd", on=on)
    push, k = naive.push("svgd", "rbf", logits_by_hand(heads, AWAY[:R]), on)
    p, y = naive.softmax(logits_by_hand(heads, X[:B])), torch.eye(K, dtype=X.dtype)[Y[:B]]
    expected = torch.zeros(HEADS, K, D + 1, dtype=X.dtype)
    for i in range(HEADS):
        score = sum(k[i, j] * (p[j] - y) / B for j in range(HEADS)) / HEADS
        prior = sum(k[i, j] * theta(heads)[j] / (N * 0.7**2) for j in range(HEADS)) / HEADS
        expected[i] = pulled_back(score, X[:B]) + prior - 0.3 * pulled_back(push[i], AWAY[:R])
    assert_close(step_gradient(heads, recipe), expected, **TIGHT)


def test_svgd_in_parameter_space():
    heads, recipe = make_heads(), STEP.replace(space="parameters", rule="svgd")
    vectors = theta(heads).flatten(1)
    h = naive.bandwidth("rbf", vectors)
    k, push = naive.matrix("rbf", vectors, h), naive.direction("svgd", "rbf", vectors, h).view(HEADS, K, D + 1)
    driving = likelihood_by_hand(heads) + theta(heads) / (N * 0.7**2)
    expected = torch.stack([sum(k[i, j] * driving[j] for j in range(HEADS)) / HEADS for i in range(HEADS)]) - 0.3 * push
    assert_close(step_gradient(heads, recipe), expected, **TIGHT)


@pytest.mark.parametrize("away", [AWAY, None])
def test_function_prior(away):
    """(C + jitter)^-1 f / N for each class, at the repulsion batch or, without one, at the training batch."""
    heads = make_heads()
    recipe = STEP.replace(prior="function", space="none")
    at = X[:B] if away is None else AWAY[:R]
    covariance = 0.7**2 * (at @ at.T + 1)
    covariance = covariance + 1e-3 * covariance.diagonal().mean() * torch.eye(len(at), dtype=at.dtype)
    score = torch.einsum("bc,nck->nbk", torch.linalg.inv(covariance), logits_by_hand(heads, at)) / N
    prior = torch.stack([pulled_back(score[i], at) for i in range(HEADS)])
    assert_close(step_gradient(heads, recipe, away=away), likelihood_by_hand(heads) + prior, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("noise", [0.4, None])
def test_regression(noise):
    """Only means repel; the variance output feels its likelihood and its prior."""
    heads = make_heads(Regression(noise))
    outputs, there = logits_by_hand(heads, X[:B]), logits_by_hand(heads, AWAY[:R])
    means = there[..., 0]
    push = naive.direction("kde", "rbf", means, naive.bandwidth("rbf", means))
    expected = theta(heads) / (N * 0.7**2)
    for i in range(HEADS):
        error, repulsion = outputs[i, :, :1] - VALUES[:B, None], torch.zeros_like(there[i])
        repulsion[:, 0] = push[i]
        if noise is None:
            variance = outputs[i, :, 1:].exp()
            score = torch.cat([error / variance, 0.5 - error**2 / (2 * variance)], dim=1) / B
        else:
            score = error / noise**2 / B
        expected[i] += pulled_back(score, X[:B]) - 0.3 * pulled_back(repulsion, AWAY[:R])
    recipe = STEP.replace(task="regression", noise=noise)
    assert_close(step_gradient(heads, recipe, y=VALUES), expected, **TIGHT)


def test_the_likelihood_does_not_depend_on_the_space():
    """The score of a probability, (1_y / p_y), pulled back through softmax is the score of the logits."""
    heads = make_heads()
    logits, y = logits_by_hand(heads, X[:B]), torch.eye(K, dtype=X.dtype)[Y[:B]]
    through = naive.pull_back(-y / naive.softmax(logits) / B, logits, "probabilities")
    expected = torch.stack([pulled_back(through[i], X[:B]) for i in range(HEADS)])
    assert_close(likelihood_by_hand(heads), expected, **TIGHT)
    problem = FitData(X, Y, AWAY, lambda batch: batch, heads.task)
    for on in SPACES:
        forces = compute_forces(heads, problem, STEP.replace(on=on, prior_std=1e9), X[:B], Y[:B], AWAY[:R])
        weight, bias = torch.autograd.grad(forces.driving, [heads.weight, heads.bias])
        assert_close(torch.cat([weight, bias.unsqueeze(-1)], dim=-1), expected, **TIGHT)


@pytest.mark.parametrize("change", [{"strength": 0.0}, {"space": "none"}])
@pytest.mark.parametrize("rule", RULES)
def test_without_repulsion_a_step_is_that_of_a_plain_ensemble(rule, change):
    plain = step_gradient(make_heads(), STEP.replace(space="none"), away=None)
    assert_close(step_gradient(make_heads(), STEP.replace(rule=rule, **change)), plain, rtol=0, atol=0)
    lone = step_gradient(make_heads(heads=1), STEP.replace(space="none"), away=None)
    for space in ("function", "parameters"):
        assert_close(step_gradient(make_heads(heads=1), STEP.replace(rule=rule, space=space)), lone, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
@pytest.mark.parametrize("change", [{"strength": 0.0}, {"space": "none"}, {"heads": 1}])
def test_without_repulsion_a_fit_is_that_of_a_plain_ensemble(change):
    """Bit for bit, whether or not there are repulsion samples: they must not disturb the order of the training data."""
    recipe = STEP.replace(**{"heads": 3, "epochs": 3, "batch_size": 16} | change)
    with_samples = fit_heads(X.float(), Y, AWAY.float(), recipe, progress=False)
    without = fit_heads(X.float(), Y, None, recipe, progress=False)
    assert torch.equal(with_samples.vectors(), without.vectors())


@pytest.mark.parametrize("space", ["function", "parameters"])
@pytest.mark.parametrize("rule", RULES)
def test_permuting_heads_permutes_the_fit(rule, space):
    recipe = STEP.replace(rule=rule, space=space, epochs=2, batch_size=25, repulsion_batch_size=8)
    order, fitted = [2, 0, 3, 1], []
    for permutation in (list(range(HEADS)), order):
        heads = make_heads()
        for parameter in heads.parameters():
            parameter.data = parameter.data[permutation]
        optimise(heads, FitData(X, Y, AWAY, lambda batch: batch, heads.task), recipe, progress=False)
        fitted.append(heads.vectors().detach())
    assert_close(fitted[1], fitted[0][order], rtol=1e-8, atol=1e-9)
    assert float((fitted[0] - make_heads().vectors().detach()).abs().min()) > 1e-6  # all of it moved


@pytest.mark.parametrize("schedule", ["constant", "linear", "tanh", "cyclic"])
def test_schedules(schedule):
    written = {
        "constant": lambda t: 1.0,
        "linear": lambda t: 2 * t if t < 0.5 else 1.0,
        "tanh": lambda t: math.tanh((1.3 * t) ** 10),
        "cyclic": lambda t: (5 * (t - math.floor(5 * t) / 5)) ** 10,  # five saw-teeth
    }[schedule]
    for t in [0.0, 0.1, 0.19, 0.25, 0.33, 0.5, 0.77, 0.95, 1.0]:
        assert ramp(schedule, t) == pytest.approx(written(t), rel=1e-9, abs=1e-12), t
