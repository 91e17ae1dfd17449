"""Steps on a GPU, as far as they can be known without one: on the device "meta", where nothing has a value.

There, asking what a number is raises an error, as it would make the host wait for a GPU; and so do most operations on
tensors of two devices.
"""

from __future__ import annotations

import pytest
import torch

from repulse.particles.fast.step import has_closed_form
from repulse.particles.fit_data import FitData, identity
from repulse.particles.heads import Heads
from repulse.particles.loop import AutogradStep
from repulse.particles.pool import batches
from repulse.particles.tasks import Classification, Regression
from repulse.recipe import FS_RLL_E, LL_E, RLL_E, Recipe

N, D, K = 60, 5, 3
FAR = torch.device("meta")
RECIPES = {
    "default": Recipe(),
    "FS-RLL-E": FS_RLL_E,
    "LL-E": LL_E,
    "RLL-E": RLL_E,
    "blob, imq, logits": Recipe(rule="blob", kernel="imq", on="logits"),
    "svgd, laplace, log-probabilities": Recipe(rule="svgd", kernel="laplace", on="log_probabilities"),
    "sge, l2": FS_RLL_E.replace(rule="sge", kernel="l2"),
    "a fixed bandwidth and a prior on functions": Recipe(bandwidth=0.5, prior="function"),
    "hidden layers": Recipe(hidden=(4,)),
    "regression": Recipe(task="regression"),
}


def stepper(recipe: Recipe) -> AutogradStep:
    regression = recipe.task == "regression"
    task = Regression() if regression else Classification(K)
    x, far = (torch.empty(N, D, device=FAR) for _ in range(2))
    y = torch.empty(N, dtype=torch.float32 if regression else torch.long, device=FAR)
    heads = Heads(4, D, task, recipe.hidden).to(FAR)
    assert not has_closed_form(heads)
    return AutogradStep(heads, FitData(x, y, far, identity, task), recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_steps_stay_on_their_device_and_ask_for_no_number(name):
    recipe = RECIPES[name]
    steps = stepper(recipe)
    near, far = (batches(N, 8, torch.Generator(), FAR) for _ in range(2))
    for _ in range(2):
        taken = steps.step(next(near), next(far), 1e-3, recipe.strength_for(K), measure=False)
    assert taken.nll.device == FAR
    assert all(p.grad.device == FAR for p in steps.particles.parameters())
    with pytest.raises(RuntimeError, match="meta"):  # which this test would notice
        float(taken.nll)
