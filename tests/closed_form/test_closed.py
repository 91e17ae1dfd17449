"""The step in closed form against autograd of the written loss: gradients, whole fits and records."""

from __future__ import annotations

import copy
import itertools
import math
from typing import get_args

import pytest
import torch
from torch.testing import assert_close

from repulse import NonFiniteLossError
from repulse.particles import fit
from repulse.particles import loop as optimise
from repulse.particles.fast import repulsion as push
from repulse.particles.fast import step as closed
from repulse.particles.fast.step import ClosedFormStep, has_closed_form
from repulse.particles.fit import fit_heads
from repulse.particles.fit_data import FitData, identity
from repulse.particles.heads import Heads, Networks
from repulse.particles.loop import AutogradStep, backward, compute_forces
from repulse.particles.tasks import Classification, Regression
from repulse.recipe import Bandwidth, Comparison, Kernel, OutputSpace, Recipe, Rule

from .naive import random

N, B, R, D, K, HEADS = 40, 7, 5, 3, 4, 5
X, AWAY = random(N, D, seed=1), 2 * random(N - 9, D, seed=2)
Y, VALUES = torch.arange(N) % K, X[:, 0] + 0.3 * random(N, seed=3)
STEP = Recipe(strength=0.3, prior_std=0.7, batch_size=B, repulsion_batch_size=R, lr=0.01, epochs=3)
FUNCTION = list(itertools.product(get_args(Rule), get_args(Kernel), get_args(Comparison)))
pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")


def make_problem(task, dtype, away=AWAY):
    y = Y if isinstance(task, Classification) else VALUES.to(dtype)
    return FitData(X.to(dtype), y, None if away is None else away.to(dtype), identity, task)


def make_heads(task, heads=HEADS, dtype=torch.float64):
    return Heads(heads, D, task, generator=torch.Generator().manual_seed(5)).to(dtype)


def gradients(heads, problem, recipe, monkeypatch):
    """Gradients of one step in closed form, as Adam is given them, and by autograd; and what else the step tells."""
    batch = torch.randperm(N, generator=torch.Generator().manual_seed(6))[:B]
    away = None if problem.repulsion is None else torch.arange(R) + 2
    written = copy.deepcopy(heads)
    r = None if away is None else problem.repulsion[away]
    forces = compute_forces(written, problem, recipe, problem.x[batch], problem.y[batch], r)
    ratio = backward(written, forces, recipe.strength, recipe, measure=True)
    want = [p.grad.flatten() for p in written.parameters()]
    got = [[], []]

    def adam(parameters, found, means, squares, *_, weight_decay, **__):
        for whole, parameter, gradient in zip(got, parameters, found, strict=True):
            whole.append((gradient + weight_decay * parameter).flatten())

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adam_", adam)
        taken = ClosedFormStep(heads, problem, recipe).step(batch, away, recipe.lr, recipe.strength, measure=True)
    return [torch.cat(parts) for parts in got], want, taken, forces, ratio


def compare(heads, problem, recipe, monkeypatch, rtol=1e-8, atol=1e-11):
    got, want, taken, forces, ratio = gradients(heads, problem, recipe, monkeypatch)
    close = {"rtol": rtol, "atol": atol}
    for mine, theirs in zip(got, want, strict=True):
        assert_close(mine, theirs, **close)
    assert taken.nll == pytest.approx(float(forces.nll.detach().mean()), rel=rtol)
    assert_close(taken.measured.outputs, forces.outputs.detach(), **close)
    if forces.repulsion_outputs is not None:
        assert_close(taken.measured.repulsion_outputs.detach(), forces.repulsion_outputs.detach(), **close)
    if forces.repulsion is None:
        assert (taken.repulsion, taken.measured.ratio, taken.measured.k) == (None, None, None)
    else:
        assert taken.repulsion == pytest.approx(float(forces.repulsion.detach()), rel=rtol)
        assert_close(taken.measured.k.reshape(forces.pairs.k.shape), forces.pairs.k, **close)
        assert_close(taken.measured.bandwidth.reshape(forces.pairs.bandwidth.shape), forces.pairs.bandwidth, **close)
        assert taken.measured.ratio == pytest.approx(ratio, rel=max(rtol, 1e-7))


@pytest.mark.parametrize(("rule", "kernel", "how"), FUNCTION)
def test_function_space(rule, kernel, how, monkeypatch):
    task = Classification(K)
    for on, bandwidth, prior in itertools.product(
        get_args(OutputSpace), (*get_args(Bandwidth), 0.3), ("weights", "function")
    ):
        recipe = STEP.replace(rule=rule, kernel=kernel, compare=how, on=on, bandwidth=bandwidth, prior=prior)
        compare(make_heads(task), make_problem(task, torch.float64), recipe, monkeypatch)


@pytest.mark.parametrize(("rule", "kernel"), list(itertools.product(get_args(Rule), get_args(Kernel))))
def test_parameter_space(rule, kernel, monkeypatch):
    task = Classification(K)
    for away, bandwidth, prior in itertools.product((AWAY, None), (*get_args(Bandwidth), 0.3), ("weights", "function")):
        recipe = STEP.replace(space="parameters", rule=rule, kernel=kernel, bandwidth=bandwidth, prior=prior)
        compare(make_heads(task), make_problem(task, torch.float64, away), recipe, monkeypatch)


@pytest.mark.parametrize(("rule", "kernel", "how"), FUNCTION)
def test_regression(rule, kernel, how, monkeypatch):
    for noise, space, prior in itertools.product((0.4, None), ("function", "parameters"), ("weights", "function")):
        task = Regression(noise, log_variance=0.0 if noise else -0.7)
        recipe = STEP.replace(
            task="regression", noise=noise, rule=rule, kernel=kernel, compare=how, space=space, prior=prior
        )
        compare(make_heads(task), make_problem(task, torch.float64), recipe, monkeypatch)


@pytest.mark.parametrize("prior", ["weights", "function"])
@pytest.mark.parametrize("task", [Classification(K), Regression(0.4), Regression()])
@pytest.mark.parametrize("away", [AWAY, None])
@pytest.mark.parametrize("change", [{"space": "none"}, {"strength": 0.0}, {"heads": 1}])
def test_without_repulsion(change, away, task, prior, monkeypatch):
    if away is None:
        change = change | {"space": "none"}
    recipe = STEP.replace(prior=prior, **change)
    compare(make_heads(task, 1 if recipe.heads == 1 else HEADS), make_problem(task, X.dtype, away), recipe, monkeypatch)


def test_predicted_variances_beyond_their_bounds_feel_nothing(monkeypatch):
    task = Regression()
    heads = make_heads(task)
    with torch.no_grad():
        heads.bias[0, 1], heads.bias[1, 1] = 40.0, -35.0
    got, want, *_ = gradients(heads, make_problem(task, X.dtype), STEP.replace(prior_std=1e9), monkeypatch)
    assert_close(got[0], want[0], rtol=1e-8, atol=1e-11)
    assert float(got[1].view(HEADS, 2)[:2, 1].abs().max()) < 1e-12


@pytest.mark.parametrize("how", get_args(Comparison))
@pytest.mark.parametrize("heads", [2, 3, 4, 11])
def test_medians_of_few_and_many_heads(heads, how, monkeypatch):
    task = Classification(K)
    for bandwidth in get_args(Bandwidth):
        recipe = STEP.replace(compare=how, bandwidth=bandwidth)
        compare(make_heads(task, heads), make_problem(task, X.dtype), recipe, monkeypatch)


@pytest.mark.parametrize("outlier", [0, -1])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("how", get_args(Comparison))
@pytest.mark.parametrize("on", get_args(OutputSpace))
def test_single_precision_keeps_the_digits(on, how, spread, outlier, monkeypatch):
    """Also of heads that lie close together beside one that does not; float32 outputs themselves hold only so many."""
    task = Classification(K)
    heads = make_heads(task, dtype=torch.float32)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(parameter[:1] + spread * (parameter - parameter[:1]))
            parameter[outlier] += torch.linspace(-1, 1, parameter[0].numel()).view_as(parameter[0])
    recipe = STEP.replace(on=on, compare=how, strength=1.0, prior_std=1e3)
    exact = gradients(copy.deepcopy(heads).double(), make_problem(task, torch.float64), recipe, monkeypatch)[1]
    got, by_autograd, *_ = gradients(heads, make_problem(task, torch.float32), recipe, monkeypatch)
    for mine, theirs, want in zip(got, by_autograd, exact, strict=True):
        lost, lost_by_autograd = (float((g - want).norm() / want.norm()) for g in (mine, theirs))
        assert lost < max(2 * lost_by_autograd, 1e-6)
        assert lost < 1e-6 / spread


@pytest.mark.parametrize("how", get_args(Comparison))
@pytest.mark.parametrize("same", [2, 4, 5])
def test_coinciding_heads(same, how, monkeypatch):
    """Where the median is zero nothing is pushed, and nothing is NaN."""
    task = Classification(K)
    heads = make_heads(task)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter[:same] = parameter[0].clone()
    compare(heads, make_problem(task, X.dtype), STEP.replace(compare=how), monkeypatch)


@pytest.mark.parametrize("how", get_args(Comparison))
def test_small_blocks_and_groups_change_nothing(how, monkeypatch):
    """Many classes are compared, and many weights updated, part by part."""
    task = Classification(K)
    recipe, problem = STEP.replace(compare=how), make_problem(task, X.dtype)
    whole = make_heads(task)
    optimise.optimise(whole, problem, recipe, progress=False)
    pointwise = how == "pointwise"
    for block, group, blocks in ((1, 2 * K * D, [3] * K), (7 * K * R, 1, [2]), (3 * HEADS * R, 1, [3, 1])):
        monkeypatch.setattr(push, "CACHED_ELEMENTS", block)
        monkeypatch.setattr(closed, "GROUP_ELEMENTS", group)
        heads = make_heads(task)
        stepper = ClosedFormStep(heads, problem, recipe)
        assert len(stepper.groups) == math.ceil(HEADS * K * D / max(group, K * D))
        assert [len(part.blocks) for part in stepper.function_repulsion.pairs.parts] == [
            pointwise * count for count in blocks
        ]
        compare(heads, problem, recipe, monkeypatch)
        optimise.optimise(heads, problem, recipe, progress=False)
        assert_close(heads.vectors(), whole.vectors(), rtol=1e-10, atol=1e-12)


def fit_both(task, recipe, dtype):
    fitted = []
    for autograd in (False, True):
        heads = make_heads(task, dtype=dtype)
        history = optimise.optimise(heads, make_problem(task, dtype), recipe, progress=False, autograd=autograd)
        fitted.append((heads.vectors().detach(), history))
    start = make_heads(task, dtype=dtype).vectors().detach()
    assert float((fitted[0][0] - start).abs().min()) > 1e-6  # all of it moved
    return fitted


def assert_same_records(history, expected, rel):
    for mine, theirs in zip(history, expected, strict=True):
        for name, value in vars(theirs).items():
            assert getattr(mine, name) == (None if value is None else pytest.approx(value, rel=rel, abs=1e-6)), name


@pytest.mark.parametrize("task", [Classification(K), Regression()])
@pytest.mark.parametrize(("schedule", "decay"), [("linear", "cosine"), ("tanh", "none")])
@pytest.mark.parametrize("prior", ["weights", "function"])
@pytest.mark.parametrize(
    ("space", "rule", "how"),
    [
        ("none", "kde", "jointly"),
        ("parameters", "blob", "jointly"),
        *itertools.product(["function"], ["kde", "svgd"], get_args(Comparison)),
    ],
)
def test_whole_fits_and_their_records_agree(space, rule, how, prior, schedule, decay, task):
    recipe = STEP.replace(space=space, rule=rule, compare=how, schedule=schedule, decay=decay, prior=prior)
    (mine, history), (theirs, expected) = fit_both(task, recipe, torch.float64)
    assert_close(mine, theirs, rtol=1e-6, atol=1e-8)
    assert_same_records(history, expected, rel=1e-5)  # sums over an epoch are float32


@pytest.mark.parametrize("how", get_args(Comparison))
def test_whole_fits_agree_in_single_precision(how):
    (mine, history), (theirs, expected) = fit_both(Classification(K), STEP.replace(compare=how), torch.float32)
    assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert_same_records(history, expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_features_that_must_be_prepared_batch_by_batch(dtype, monkeypatch):
    """Other precisions, and sets too large to be scaled at once."""
    data = X.to(dtype), Y, AWAY.to(dtype), STEP
    ready = fit_heads(*data, progress=False)
    monkeypatch.setattr(fit, "MAX_PRESCALED", 0)
    assert_close(fit_heads(*data, progress=False).vectors(), ready.vectors(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["kde", "ssge"])
def test_a_fit_that_diverges_keeps_the_last_good_heads(rule):
    good = fit_heads(X.float(), Y, AWAY.float(), STEP.replace(rule=rule, decay="none", on="logits"), progress=False)
    assert bool(good.vectors().isfinite().all())
    with pytest.raises(NonFiniteLossError, match=r"NaN or infinite in epoch \d+ of 3") as caught:
        fit_heads(X.float(), Y, AWAY.float(), STEP.replace(rule=rule, lr=1e30, on="logits"), progress=False)
    assert bool(caught.value.heads.vectors().isfinite().all())


def test_fitted_heads_can_be_trained_further():
    heads = fit_heads(X.float(), Y, AWAY.float(), STEP, progress=False).requires_grad_()
    heads(X.float()).square().sum().backward()
    for parameter in heads.parameters():
        assert not parameter.is_inference()
        assert float(parameter.grad.abs().sum()) > 0


def test_who_has_a_closed_form():
    task = Classification(K)
    assert has_closed_form(make_heads(task))
    assert not has_closed_form(Heads(3, D, task, hidden=(4,)))
    assert not has_closed_form(Networks([torch.nn.Linear(D, K)], task))
    assert not has_closed_form(make_heads(task, dtype=torch.bfloat16))
    assert not has_closed_form(make_heads(task).to("meta"))
    shared = make_heads(task)
    shared.weights[0].data = shared.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
    assert not has_closed_form(shared)


def test_what_has_no_closed_form_is_fitted_by_autograd(monkeypatch):
    task = Classification(K)
    taken, step = [], AutogradStep.step
    monkeypatch.setattr(AutogradStep, "step", lambda *given, **named: taken.append(1) or step(*given, **named))
    for heads in (make_heads(task), Heads(3, D, task, hidden=(4,)).double()):
        before = len(taken)
        optimise.optimise(heads, make_problem(task, X.dtype), STEP, progress=False)
        assert (len(taken) > before) == (not has_closed_form(heads))
