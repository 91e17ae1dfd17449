"""The paper's toy figure, with fewer steps: where there is no data, a deep ensemble is sure and fs-RLL-E is not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parent.parent / "examples" / "toy.py"


@pytest.fixture(scope="module")
def toy():
    spec = importlib.util.spec_from_file_location("toy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["toy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fitted(toy):
    regression = toy.regression(torch.Generator().manual_seed(0))
    moons = toy.moons(torch.Generator().manual_seed(0))
    return {"regression": (regression, fit(toy, regression, 800)), "moons": (moons, fit(toy, moons, 200))}


def fit(toy, problem, steps):
    """Fit as the figure does, but six networks instead of thirty, which take most of the time."""
    repulsive = [toy.train(problem, toy.SharedBase(problem, 0), how, steps, 0) for how in ("jointly", "pointwise")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "PARTICLES", 6)
        return [toy.train(problem, toy.DeepEnsemble(problem, 0), None, steps, 0), *repulsive]


def test_regression_spread_outside_is_several_times_that_inside(toy, fitted):
    problem, (ensemble, joint, pointwise) = fitted["regression"]
    inside, outside = toy.inside_outside(problem, ensemble)
    assert outside / inside < 3
    for model in (joint, pointwise):
        inside, outside = toy.inside_outside(problem, model)
        assert outside / inside > 6
        assert inside < 1.2 * toy.NOISE  # and it still fits the data


def test_pointwise_spread_grows_on_both_sides_of_the_data(toy, fitted):
    problem, (_, _, pointwise) = fitted["regression"]
    left, right = toy.spread(problem, pointwise, torch.tensor([[0.0], [7.5]]))
    assert min(left, right) > 3 * toy.NOISE


def test_classification_heads_part_outside_the_data_only(toy, fitted):
    problem, (ensemble, joint, pointwise) = fitted["moons"]
    _, outside = toy.inside_outside(problem, ensemble)
    assert outside < 0.15
    for model in (joint, pointwise):
        inside, outside = toy.inside_outside(problem, model)
        assert outside > 0.3
        assert inside < 0.05


def test_the_figure_shows_every_model_as_it_predicts(toy, fitted):
    axes = toy.figure(fitted).axes
    problem, models = fitted["regression"]
    for axis, model, title in zip(axes[:3], models, toy.TITLES, strict=True):
        *curves, mean = axis.lines
        drawn = torch.tensor(curves[0].get_xdata()).unsqueeze(1)
        with torch.no_grad():
            wanted = model(drawn).squeeze(-1)
        assert (axis.get_title(), len(curves), len(axis.collections[-1].get_offsets())) == (
            title,
            len(wanted),
            len(problem.x),
        )
        assert torch.equal(torch.tensor(curves[2].get_ydata()), wanted[2])
        assert torch.allclose(torch.tensor(mean.get_ydata()), wanted.mean(dim=0))
    problem, models = fitted["moons"]
    for axis, model in zip(axes[3:6], models, strict=True):
        shown = torch.tensor(axis.collections[0].get_array().data).flatten()
        corner = toy.spread(problem, model, torch.tensor([[-3.0, -3.0]]))
        assert torch.allclose(shown[:1], corner)
