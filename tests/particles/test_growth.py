"""Growth: the Gaussians of classes against closed forms, and what grows by how much."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from repulse import Recipe, _mapped, fit_heads
from repulse.particles import growth
from repulse.particles.growth import ClassGaussians, Growth, measures_of

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two_classes(count=4000):
    targets = torch.arange(count) % 2
    return normal(count, 3) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.2, 2.0]]) + 3 * targets.unsqueeze(
        1
    ), targets


def written_out(rows, targets, classes):
    """The log density of a mixture of Gaussians with shrunk covariances, by torch.distributions."""
    rows, width = rows.double(), rows.shape[1]
    own = [rows[targets == k] for k in range(classes) if bool((targets == k).any())]
    scatter = [(part - part.mean(dim=0)).T @ (part - part.mean(dim=0)) for part in own]
    pooled = sum(scatter) / len(rows)
    pooled = pooled + 1e-3 * pooled.diagonal().mean() * torch.eye(width)
    credit = width / 4
    covariances = [(s + credit * pooled) / (len(part) + credit) for s, part in zip(scatter, own, strict=True)]
    pairs = zip(own, covariances, strict=True)
    gaussians = [(len(part) / len(rows), MultivariateNormal(part.mean(dim=0), s)) for part, s in pairs]
    return lambda x: torch.stack([math.log(share) + one.log_prob(x.double()) for share, one in gaussians]).logsumexp(0)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_strangeness_is_the_negative_log_density_of_a_mixture(parts):
    rows, targets = two_classes()
    found = ClassGaussians.of(zip(rows.chunk(parts), targets.chunk(parts), strict=True), 3)  # nobody is of class 2
    assert found is not None
    assert found.means.shape == (2, 3)
    x = 3 * normal(50, 3, seed=1)
    constant = 1.5 * math.log(2 * math.pi)
    wanted = -written_out(rows, targets, 3)(x) - constant
    torch.testing.assert_close(found(x).double(), wanted, rtol=1e-4, atol=1e-4)


def test_gaussians_take_the_leading_axes_that_there_is_room_for(monkeypatch):
    rows, targets = two_classes()
    monkeypatch.setattr(growth, "MOST_NUMBERS", 2 * 2**2)
    found = ClassGaussians.of([(rows, targets)], 2)
    assert found is not None
    assert found.factors.shape == (2, 2, 2)
    narrow = ClassGaussians.of([(rows[:, :2], targets)], 2)
    assert narrow is not None
    assert torch.equal(found(rows), narrow(rows[:, :2]))
    monkeypatch.setattr(growth, "MOST_NUMBERS", 1)
    assert ClassGaussians.of([(rows, targets)], 2) is None


@pytest.mark.parametrize("rows", [torch.ones(6, 2), torch.eye(2)])
def test_classes_without_spread_have_finite_densities(rows):
    found = ClassGaussians.of([(rows, torch.arange(len(rows)) % 2)], 2)
    assert found is not None
    assert torch.isfinite(found(1e12 * normal(20, 2))).all()


def test_disagreement_grows_with_the_mean_of_the_scores_within_bounds():
    """By hand: two fifths for each standard deviation, five of them at most in either direction."""
    measures = torch.stack([normal(1000), 10 + 3 * normal(1000, seed=1)], dim=1)
    found = Growth.of(measures)
    mean, deviation = measures.double().mean(dim=0), measures.double().std(dim=0, correction=0)
    steps = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [100.0, 0.0], [-100.0, -100.0]], dtype=torch.float64)
    wanted = torch.tensor([0.0, 0.4, 0.4, 1.0, -2.0]).exp()
    torch.testing.assert_close(found((mean + steps * deviation).float()), wanted, rtol=1e-3, atol=0)


def test_nothing_grows_where_no_row_varies():
    found = Growth.of(torch.full((10, 1), 2.0))
    assert torch.equal(found(torch.full((4, 1), 2.0)), torch.ones(4))


def test_inputs_between_the_classes_are_strange():
    """A ring of classes around an empty centre: by the mean square its centre is nearest of all, by the density not."""
    angle = torch.arange(1200) % 6 * (2 * math.pi / 6)
    rows = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * normal(1200, 2)
    layer = normal(6, 2, seed=7), normal(6, seed=8)
    recipe = Recipe(heads=3, epochs=2)
    heads = fit_heads(rows, torch.arange(1200) % 6, 3 * rows, recipe, start=layer, progress=False)
    centre = 0.05 * normal(50, 2, seed=3)
    parts = heads.distances(centre), heads.distances.coordinates(centre)
    grown = Growth(heads.growth_usual, heads.gaussians)(measures_of(*parts, heads.gaussians))
    assert float(measures_of(*parts, None).max()) < float(heads.growth_usual[0, 0]) - 2
    assert float(measures_of(*parts, heads.gaussians)[:, 1].min()) > float(heads.growth_usual[0, 1])
    assert float(grown.min()) > 0


def test_features_that_are_read_in_parts_give_the_same_gaussians(monkeypatch):
    rows, targets = two_classes(1000)
    layer = normal(2, 3, seed=7), normal(2, seed=8)

    def gaussians():
        heads = fit_heads(rows, targets, 3 * rows, Recipe(heads=3, epochs=1), start=layer, progress=False)
        return heads.gaussians

    whole = gaussians()
    monkeypatch.setattr(_mapped, "MAX_ELEMENTS", 20)
    torch.testing.assert_close(vars(gaussians()), vars(whole), rtol=1e-3, atol=1e-4)


def test_disagreement_at_positions_does_not_grow():
    rows, targets = two_classes(400)
    layer = normal(2, 3, seed=7), normal(2, seed=8)
    recipe = Recipe(heads=3, epochs=2)
    with_classes, without = (
        fit_heads(rows, targets, 3 * rows, recipe, start=layer, positions=at, progress=False) for at in (False, True)
    )
    assert with_classes.gaussians is not None
    assert without.gaussians is None
    assert without.growth_usual.shape == (2, 0)
    assert torch.equal(without.growth(rows), torch.ones(400))
