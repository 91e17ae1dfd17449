"""Heads around a network: of any precision, any depth, any number of classes, and of few rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from repulse import FitWarning, NonFiniteLossError, Recipe, fit_heads, retrofit
from repulse.particles.calibrate import recentre
from repulse.particles.centred import CentredHeads
from repulse.particles.distance import Release
from repulse.particles.growth import Growth, measures_of

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

QUICK = Recipe(heads=3, epochs=3, repulsion_samples=60)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def last_layer(outputs, features):
    return normal(outputs, features, seed=7), normal(outputs, seed=8)


def fit(features, targets, start, recipe=QUICK, **more):
    heads = fit_heads(features, targets, 3 * features, recipe, start=start, progress=False, **more)
    assert isinstance(heads, CentredHeads)
    return heads


def mean_outputs(heads, features):
    return heads(features).mean(dim=0)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inside_the_data_the_mean_of_the_logits_is_the_network_s(hidden, dtype):
    """Its last layer sees the first three of five columns; the others are taps."""
    features, (weight, bias) = normal(200, 5).to(dtype), last_layer(3, 3)
    heads = fit(features, torch.arange(200) % 3, (weight, bias), QUICK.replace(hidden=hidden), taps=2)
    inside = heads.release(heads.distances.mean_squares(features)) == 1
    assert inside.float().mean() >= 0.95
    wanted = features[:, :3].float() @ weight.T + bias
    torch.testing.assert_close(mean_outputs(heads, features)[inside], wanted[inside], rtol=1e-4, atol=1e-4)
    assert heads(features).std(dim=0).min() > 0


def test_outside_the_data_the_network_fades():
    features, (weight, bias) = normal(200, 3), last_layer(3, 3)
    heads = fit(features, torch.arange(200) % 3, (weight, bias))
    far = 1000 * features
    release = heads.release(heads.distances.mean_squares(far)).unsqueeze(1)
    assert release.min() > 100
    torch.testing.assert_close(mean_outputs(heads, far), (far @ weight.T + bias) / release, rtol=1e-3, atol=1e-3)


def test_a_thousand_classes_with_one_sample_each():
    features, start = normal(1000, 20), last_layer(1000, 20)
    heads = fit(features, torch.arange(1000), start, QUICK.replace(heads=2, epochs=1))
    prediction = heads.predict(features)
    assert torch.isfinite(prediction.probs).all()
    inside = heads.release(heads.distances.mean_squares(features)) == 1
    wanted = features @ start[0].T + start[1]
    torch.testing.assert_close(mean_outputs(heads, features)[inside], wanted[inside], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("samples", [2, 3, 12])
@pytest.mark.parametrize("taps", [0, 30])
def test_rows_fewer_than_their_columns_keep_the_network(samples, taps):
    """A row that the whitening knows is not further out than one that it does not know."""
    features, (weight, bias) = normal(samples, 50), last_layer(2, 50 - taps)
    heads = fit(features, torch.arange(samples) % 2, (weight, bias), taps=taps)
    wanted = features[:, : 50 - taps] @ weight.T + bias
    torch.testing.assert_close(mean_outputs(heads, features), wanted, rtol=1e-4, atol=1e-4)


def test_rows_that_are_all_equal_keep_the_network():
    features, (weight, bias) = torch.ones(6, 4), last_layer(2, 4)
    heads = fit(features, torch.arange(6) % 2, (weight, bias))
    torch.testing.assert_close(mean_outputs(heads, features), features @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_nothing_is_released_where_no_row_varies():
    release = Release.of(torch.zeros(10, 3))
    assert torch.equal(release(torch.zeros(4, 3)), torch.ones(4))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_deviations_of_classes_have_grown_and_those_of_numbers_grow_with_the_release(task):
    features, classes = normal(200, 4), 3 if task == "classification" else 1
    targets = torch.arange(200) % 3 if task == "classification" else features[:, 0]
    heads = fit(features, targets, last_layer(classes, 4), Recipe(heads=4, epochs=2, task=task))
    far = 3 * features
    logs, coordinates = heads.distances(far), heads.distances.coordinates(far)
    fitted, (found, _, release) = heads.raw_outputs(torch.cat([far, logs], dim=1)), heads.uncentred(far)
    growth = torch.ones(200)
    if task == "classification":
        growth = Growth(heads.growth_usual, heads.gaussians)(measures_of(logs, coordinates, heads.gaussians))
        torch.testing.assert_close(heads.growth(far), growth)
        assert float(growth.median()) > 1.2
    wanted = growth.unsqueeze(1) * (fitted - fitted.mean(dim=0))
    torch.testing.assert_close(found - found.mean(dim=0), wanted, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.mean(dim=0), fitted.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert torch.equal(release, heads.release(heads.distances.mean_squares(far)))


def test_heads_of_a_fit_that_diverged_take_features():
    features, start = normal(60, 4), last_layer(2, 4)
    with pytest.raises(NonFiniteLossError) as caught:
        fit(features, torch.arange(60) % 2, start, Recipe(heads=3, epochs=5, lr=1e30, decay="none"))
    assert isinstance(caught.value.heads, CentredHeads)
    assert caught.value.heads.features == 4
    assert torch.isfinite(caught.value.heads.predict(features).probs).all()


@pytest.mark.parametrize(("rows", "other"), [(999, False), (1000, True)])
def test_a_new_centre_takes_the_release_of_a_thousand_rows_but_not_of_fewer(rows, other):
    features, labels = normal(100, 4), torch.arange(100) % 3
    heads = fit(features, labels, last_layer(3, 4))
    fitted, far = heads.release_quantiles.clone(), 3 * normal(rows, 4, seed=2)
    recentre(heads, (far, torch.arange(rows) % 3))
    wanted = Release.of(heads.distances.mean_squares(far)) if other else Release(fitted, heads.release_largest)
    torch.testing.assert_close(heads.release_quantiles, wanted.quantiles)
    torch.testing.assert_close(heads.release_largest, wanted.largest)
    assert bool((wanted.quantiles > 2 * fitted).any()) == other
    assert heads.centre.cost is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_networks_of_any_precision_keep_their_predictions(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x, y = normal(40, 4).to(dtype), torch.arange(40) % 3
    ensemble = retrofit(model, [(x, y)], recipe=QUICK, progress=False)
    assert isinstance(ensemble.heads, CentredHeads)
    centre = ensemble.heads(ensemble.backbone.run(x)).mean(dim=0)
    release = ensemble.heads.release(ensemble.heads.distances.mean_squares(ensemble.backbone.run(x)))
    inside = (release == 1).detach()
    assert inside.float().mean() > 0.9
    wanted = model(x).detach().float()
    torch.testing.assert_close(centre.detach().float()[inside], wanted[inside], rtol=0.02, atol=0.02)


def test_a_single_logit_keeps_its_sign_inside_the_data():
    """The log of the odds of the mean probabilities; heads differ around the network's logit, evenly on average."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = normal(200, 4)
    ensemble = retrofit(model, [(x, (x[:, 0] > 0).float())], recipe=QUICK, progress=False)
    features = ensemble.backbone.run(x)
    logits = ensemble.heads(features).mean(dim=0).detach()
    inside = (ensemble.heads.release(ensemble.heads.distances.mean_squares(features)) == 1).detach()
    wanted = model(x).detach()
    torch.testing.assert_close((logits[:, 1:] - logits[:, :1])[inside], wanted[inside], rtol=1e-4, atol=1e-4)
    assert ensemble(x).shape == wanted.shape


@pytest.mark.parametrize("outputs", [1, 2])
def test_validation_rows_decide_the_centre_of_a_regression_whose_noise_is_known(outputs):
    """A network that is useless, and heads that are not: they become the centre."""
    features = normal(400, 3)
    targets = features[:, :outputs] if outputs > 1 else features[:, 0]
    start = 20 * normal(outputs, 3, seed=7), torch.zeros(outputs)
    recipe = QUICK.replace(task="regression", noise=0.1 if outputs == 1 else (0.1, 0.1))
    heads = fit(features, targets, start, recipe, validation=(features[:100], targets[:100]))
    error = (mean_outputs(heads, features).squeeze() - targets).square().mean()
    assert error < 0.2
    assert (heads.centre.alpha if outputs == 1 else heads.task.shares) in (0.0, (0.0, 0.0))


def test_heads_that_see_no_distances_say_that_they_are_not_around_the_network():
    features, start = normal(60, 3), last_layer(3, 3)
    labels = torch.arange(60) % 3
    with pytest.warns(FitWarning, match="not put around the network"):
        fit_heads(features, labels, None, QUICK.replace(distances=False), start=start, progress=False)
