"""Folded heads: the same outputs as heads around a centre, in few operations."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deployable import ensemble_of
from models import normal
from repulse import Recipe, fit_heads
from repulse.particles.centre import Centre
from repulse.particles.centred import CentredHeads
from repulse.particles.folded import FoldedHeads

TARGETS = {
    "classification": lambda x: (x[:, 0] > 0).long() + (x[:, 1] > 0).long(),
    "multilabel": lambda x: (x[:, :3] > 0).float(),
    "regression": lambda x: x[:, 0] + 0.1 * normal(len(x), seed=5),
    "several targets": lambda x: x[:, :2] + 0.1 * normal(len(x), 2, seed=5),
}
pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")


def centred(kind: str, network: bool, shift: float) -> tuple[CentredHeads, torch.Tensor]:
    """Heads in double precision, and rows near, far, and so far that single precision has no squares of them."""
    x = normal(200, 6)
    task = "regression" if "target" in kind else kind
    targets, features = TARGETS[kind](x), x + shift
    outputs = {"regression": 1, "several targets": 2}.get(kind, 3)
    start = (normal(outputs, 6), torch.zeros(outputs)) if network else None
    recipe = Recipe(task=task, heads=4, epochs=2)
    heads = fit_heads(features, targets, features + 3, recipe, start=start, progress=False)
    assert isinstance(heads, CentredHeads)
    heads.centre = Centre(0.4, 1.7, 0.6, 2.0)
    scales = torch.tensor([1.0, 10.0, 1e6]).repeat_interleave(5).unsqueeze(1).double()
    return heads.double(), shift + scales * normal(15, 6, seed=2).double()


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize(("kind", "network"), [(kind, True) for kind in TARGETS] + [("classification", False)])
def test_folded_heads_say_what_heads_around_a_centre_say(kind, network, shift):
    heads, x = centred(kind, network, shift)
    with torch.no_grad():
        torch.testing.assert_close(FoldedHeads(heads)(x), heads(x), rtol=1e-9, atol=1e-7)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(call) -> int:
    with torch.inference_mode(), Counting() as found:
        call()
    return found.count


def test_a_deployed_ensemble_adds_few_operations_to_the_network():
    """Each costs microseconds, which is what a call with one small input consists of."""
    ensemble, x = ensemble_of("cnn")
    deployed = ensemble.deploy()
    added = operations(lambda: deployed(x[:1])) - operations(lambda: ensemble.model(x[:1]))
    assert len(ensemble.backbone.taps) == 2
    assert added <= 85
