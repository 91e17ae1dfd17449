"""Pointwise comparison: one kernel a sample, averaged."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch.nn import functional as F

from repulse.functional import kernel_matrix, repulsion
from repulse.particles.heads import Heads
from repulse.particles.loop import FitData, backward, compute_forces
from repulse.particles.tasks import Classification
from repulse.recipe import Kernel, Recipe, Rule


@pytest.mark.parametrize("kernel", get_args(Kernel))
@pytest.mark.parametrize("rule", get_args(Rule))
def test_it_is_the_mean_over_samples_of_joint_repulsions(rule, kernel):
    outputs = torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = outputs.clone().requires_grad_()
    loss = repulsion(together, rule=rule, kernel=kernel, on="probabilities", compare="pointwise")
    loss.backward()
    apart = outputs.clone().requires_grad_()
    each = [repulsion(apart[:, i], rule=rule, kernel=kernel, on="probabilities") for i in range(7)]
    mean = torch.stack(each).mean()
    mean.backward()
    torch.testing.assert_close(loss, mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(together.grad, apart.grad, rtol=1e-9, atol=1e-12)


def test_of_a_single_sample_it_is_the_joint_repulsion():
    outputs = torch.randn(5, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert repulsion(outputs, compare="pointwise") == repulsion(outputs)


def test_heads_that_agree_on_one_sample_are_pushed_there_only_pointwise():
    """Two samples; on the second the heads nearly agree. A joint kernel hardly sees it, a pointwise one does."""
    spread = torch.linspace(-1, 1, 6, dtype=torch.float64)
    sizes = {}
    for compare in ("jointly", "pointwise"):
        outputs = torch.stack([spread, 1e-3 * spread], dim=1).requires_grad_()
        repulsion(outputs, compare=compare).backward()
        sizes[compare] = outputs.grad.abs().mean(dim=0)
    assert sizes["jointly"][1] < 1e-2 * sizes["jointly"][0]
    assert sizes["pointwise"][1] > 100 * sizes["pointwise"][0]


@pytest.mark.parametrize("rule", ["kde", "svgd"])
def test_a_step_of_the_default_comparison_is_the_written_loss(rule):
    """Gradients of a pointwise step: likelihood at the training batch, mean pointwise repulsion at the other one."""
    generator = torch.Generator().manual_seed(0)
    heads = Heads(4, 6, Classification(3), generator=generator).double()
    x, y = torch.randn(9, 6, dtype=torch.float64, generator=generator), torch.arange(9) % 3
    r = 3 * torch.randn(5, 6, dtype=torch.float64, generator=generator)
    recipe = Recipe(rule=rule, strength=0.3, compare="pointwise")
    forces = compute_forces(heads, FitData(x, y, r, lambda b: b, heads.task), recipe, x, y, r)
    backward(heads, forces, 0.3, recipe)
    got = heads.weight.grad.clone(), heads.bias.grad.clone()

    heads.zero_grad()
    outputs = heads(x)
    nll = torch.stack([F.cross_entropy(out, y) for out in outputs]).sum()
    prior = sum(p.square().sum() for p in heads.parameters()) / (2 * len(x) * recipe.prior_std**2)
    (nll + prior).backward()
    driving = heads.weight.grad.clone(), heads.bias.grad.clone()
    if rule == "svgd":  # linear heads have one Jacobian, so averaging outputs' forces averages parameters' forces
        p = heads(r).detach().softmax(dim=-1)
        k = torch.stack([kernel_matrix(p[:, i]) for i in range(5)]).mean(dim=0)
        driving = tuple(torch.tensordot(k, d, dims=1) / 4 for d in driving)
    heads.zero_grad()
    p = heads(r).softmax(dim=-1)
    (0.3 * sum(repulsion(p[:, i], rule=rule) for i in range(5)) / 5).backward()
    for have, drive, repel in zip(got, driving, (heads.weight.grad, heads.bias.grad), strict=True):
        torch.testing.assert_close(have, drive + repel, rtol=1e-9, atol=1e-12)
