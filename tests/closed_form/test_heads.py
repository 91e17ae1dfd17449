"""Heads and networks against loops over `torch.nn` modules, and a whole short fit against a loop written by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from repulse.particles.fit_networks import fit_networks
from repulse.particles.heads import Heads, Networks
from repulse.particles.loop import FitData, optimise
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Classification, Regression
from repulse.particles.view import View
from repulse.recipe import FS_RLL_E, Recipe

from . import naive
from .naive import RULES, random

TIGHT = {"rtol": 1e-11, "atol": 1e-12}
HEADS, D, K = 4, 5, 3
every_shape = pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])


def make_heads(hidden=(), task=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Heads(HEADS, D, task or Classification(K), hidden, generator).double()


def as_modules(heads):
    """One `nn.Linear` or `nn.Sequential` a head, with copies of its weights."""
    modules = []
    for i in range(heads.count):
        layers = []
        for weight, bias in zip(heads.weights, heads.biases, strict=True):
            layer = nn.Linear(weight.shape[2], weight.shape[1], dtype=weight.dtype)
            layer.weight.data, layer.bias.data = weight[i].detach().clone(), bias[i].detach().clone()
            layers += [layer, nn.ReLU()]
        modules.append(layers[0] if len(layers) == 2 else nn.Sequential(*layers[:-1]))
    return modules


def reordered(vectors, heads):
    """Rows in the order of `nn.Sequential` (weight, bias, weight, bias) put in that of `Heads` (weights, biases)."""
    sizes = [p[0].numel() for pair in zip(heads.weights, heads.biases, strict=True) for p in pair]
    parts = vectors.split(sizes, dim=1)
    return torch.cat([*parts[0::2], *parts[1::2]], dim=1)


@every_shape
def test_forward_is_a_loop_of_modules(hidden):
    heads, x = make_heads(hidden), random(7, D)
    assert_close(heads(x), torch.stack([module(x) for module in as_modules(heads)]), **TIGHT)


@every_shape
def test_initial_weights_are_those_of_linear(hidden):
    """Uniform within 1/sqrt(fan in), independent heads, the same for the same seed."""
    heads = Heads(200, D, Classification(K), hidden, torch.Generator().manual_seed(0))
    for weight, bias in zip(heads.weights, heads.biases, strict=True):
        bound = 1 / math.sqrt(weight.shape[2])
        for parameter in (weight.detach(), bias.detach()):
            assert 0.99 * bound < float(parameter.abs().max()) <= bound
            assert float(parameter.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
            assert len(parameter.flatten(1).unique(dim=0)) == 200
    assert_close(make_heads(hidden, seed=3).vectors(), make_heads(hidden, seed=3).vectors(), rtol=0, atol=0)


@every_shape
def test_folding_the_inputs_leaves_the_function_the_same(hidden):
    """Scaled features, and scaled features with whitened ones in place of the last two."""
    shift, scale, x = 10 * random(D + 2, seed=1), random(D + 2, seed=2).exp(), random(7, D + 2)
    for scaling in (
        Scaling(shift[:D], scale[:D], D),
        Scaling(shift, scale, D - 3, random(D + 2, 3, seed=3)),
    ):
        heads, raw = make_heads(hidden), x[:, : len(scaling.shift)]
        before = heads(scaling(raw))
        heads.fold_inputs(View(scaling))
        assert heads.features == raw.shape[1]
        assert_close(heads(raw), before, rtol=1e-10, atol=1e-10)


@every_shape
@pytest.mark.parametrize("noise", [None, 0.3])
def test_folding_the_targets_gives_the_law_of_the_unscaled_target(hidden, noise):
    """If (y - shift) / scale has mean m and variance v, then y has scale m + shift and scale^2 v."""
    heads, x = make_heads(hidden, Regression(noise)), random(7, D)
    shift, scale = torch.tensor(-4.0, dtype=torch.float64), torch.tensor(2.5, dtype=torch.float64)
    mean, log_variance = heads.task.gaussian(heads(x))
    heads.fold_targets(shift, scale)
    unscaled = Regression(None, 2 * math.log(2.5)) if noise is None else Regression(noise * 2.5)
    folded, folded_log_variance = unscaled.gaussian(heads(x))
    assert_close(folded, 2.5 * mean - 4, **TIGHT)
    assert_close(folded_log_variance.exp(), 2.5**2 * log_variance.exp(), **TIGHT)


@every_shape
def test_networks_with_the_parameters_of_heads_are_those_heads(hidden):
    heads, x = make_heads(hidden), random(7, D)
    networks = Networks(as_modules(heads), heads.task)
    assert networks.count == heads.count
    assert_close(networks(x), heads(x), **TIGHT)
    assert_close(reordered(networks.vectors(), heads), heads.vectors(), rtol=0, atol=0)
    k, targets = random(HEADS, HEADS, seed=4), torch.arange(7) % K
    for particles in (heads, networks):
        heads.task.nll(particles(x), targets).sum().backward()
    raw = torch.cat([p.grad.flatten(1) for p in heads.parameters()], dim=1)
    for particles in (heads, networks):
        particles.mix_gradients(k)
    mixed = torch.stack([sum(k[i, j] * raw[j] for j in range(HEADS)) / HEADS for i in range(HEADS)])
    assert_close(torch.cat([p.grad.flatten(1) for p in heads.parameters()], dim=1), mixed, **TIGHT)
    rows = [torch.cat([p.grad.flatten() for p in network.parameters()]) for network in networks.networks]
    assert_close(reordered(torch.stack(rows), heads), mixed, **TIGHT)
    assert_close(networks.predict(x).epistemic, heads.predict(x).epistemic, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("space", ["function", "parameters"])
def test_networks_fit_like_heads(hidden, rule, space):
    heads = make_heads(hidden)
    networks = Networks(as_modules(heads), heads.task)
    problem = FitData(random(30, D), torch.arange(30) % K, 2 * random(30, D, seed=1), lambda batch: batch, heads.task)
    recipe = Recipe(
        rule=rule, space=space, compare="jointly", strength=0.3, epochs=1, batch_size=15, repulsion_batch_size=8
    )
    for particles in (heads, networks):
        optimise(particles, problem, recipe, progress=False)
    assert_close(reordered(networks.vectors(), heads), heads.vectors(), rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
@pytest.mark.parametrize("space", ["function", "parameters", "none"])
@pytest.mark.parametrize(("schedule", "decay"), [("constant", "none"), ("linear", "cosine")])
def test_fit_is_the_loop_written_by_hand(space, schedule, decay):
    """Whole-set batches, so that their order is irrelevant; autograd of the written loss; Adam written out."""
    n, steps, strength, lr, std = 30, 4, 0.3, 0.02, 0.7
    x, y, away = random(n, D), torch.arange(n) % K, 2 * random(20, D, seed=1)
    networks = as_modules(make_heads())
    weights = [torch.cat([m.weight, m.bias.unsqueeze(1)], dim=1).detach().clone().requires_grad_() for m in networks]
    moments = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    for t in range(steps):
        outputs = [away @ w[:, :-1].T + w[:, -1] for w in weights]
        particles = [
            (o.softmax(-1) if space == "function" else w).flatten() for o, w in zip(outputs, weights, strict=True)
        ]
        fixed = torch.stack(particles).detach()
        h = naive.bandwidth("rbf", fixed)
        ramp = 1.0 if schedule == "constant" else min(2 * t / steps, 1.0)
        loss = 0
        for w, u in zip(weights, particles, strict=True):
            loss = loss + F.cross_entropy(x @ w[:, :-1].T + w[:, -1], y) + (w**2).sum() / (2 * n * std**2)
            if space != "none":
                loss = loss + ramp * strength * sum(naive.value("rbf", u, v, h) for v in fixed).log()
        rate = lr if decay == "none" else lr * (1 + math.cos(math.pi * t / steps)) / 2
        for w, g, m in zip(weights, torch.autograd.grad(loss, weights), moments, strict=True):
            m[0], m[1] = 0.9 * m[0] + 0.1 * g, 0.999 * m[1] + 0.001 * g**2
            step = m[0] / (1 - 0.9 ** (t + 1)) / ((m[1] / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
            w.data -= rate * step
    repel = {"space": space, "on": "probabilities", "rule": "kde", "kernel": "rbf", "bandwidth": "median"}
    train = {"lr": lr, "decay": decay, "epochs": steps, "batch_size": n, "repulsion_batch_size": 20, "prior_std": std}
    recipe = Recipe(**repel, **train, compare="jointly", strength=strength, schedule=schedule, prior="weights")
    fitted = fit_networks(networks, x, y, away, recipe, progress=False)
    expected = torch.stack([torch.cat([w[:, :-1].flatten(), w[:, -1]]) for w in weights])
    assert_close(fitted.vectors(), expected.detach(), rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
def test_different_architectures_repel_in_function_space():
    """As `Networks` says they can; only parameter space needs vectors of one length."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = [nn.Linear(D, K), nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, K))]
    x = random(30, D, dtype=torch.float32)

    def apart(strength):
        recipe = FS_RLL_E.replace(epochs=40, lr=0.01, strength=strength)
        fitted = fit_networks(copy.deepcopy(networks), x, torch.arange(30) % K, 2 * x, recipe, progress=False)
        one, other = fitted.predict(2 * x).log_probs.exp()
        return float((one - other).square().mean())

    assert apart(1.0) > 2 * apart(0.0)
