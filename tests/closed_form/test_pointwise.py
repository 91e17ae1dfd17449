"""Pointwise comparison: one kernel a sample, averaged."""

from __future__ import annotations

import pytest
import torch

from repulse.functional import repulsion
from repulse.recipe import KERNELS, RULES


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rule", RULES)
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
