"""Distance columns: closed forms, and what must not change them."""

from __future__ import annotations

import pytest
import torch

from repulse import DataError, Recipe
from repulse.particles.calibrate import ENOUGH, release_of
from repulse.particles.distance import DistanceColumns, Release
from repulse.particles.view import View
from repulse.particles.whitening import Whitening


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixed(samples=4000, width=8, seed=0):
    """Correlated Gaussian features with means."""
    return normal(samples, width, seed=seed) @ normal(width, width, seed=99) + torch.arange(width)


def columns_of(features, **settings):
    return DistanceColumns.of(Whitening.of(features), features, **settings)


def test_mean_squares_of_gaussian_data_are_those_of_the_formula():
    features = mixed()
    x = mixed(seed=1)[:5]
    found = columns_of(features, penultimate=3, bands=4)

    def mean_squares(train, rows, band):
        train, rows = train.double(), rows.double()
        mean, deviation = train.mean(dim=0), train.std(dim=0, correction=0)
        w, v = torch.linalg.eigh(torch.corrcoef(train.T))
        a = ((rows - mean) / deviation) @ v / (w + train.shape[1] / len(train)).sqrt()
        return a.flip(1)[:, band].square().mean(dim=1)

    bands = [slice(0, 8), *(slice(i, i + 2) for i in range(0, 8, 2))]
    wanted = [mean_squares(features, x, band) for band in bands]
    wanted.append(mean_squares(features[:, :3], x[:, :3], slice(0, 3)))
    assert found.columns == 6
    torch.testing.assert_close(found(x).exp().double(), torch.stack(wanted, dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.mean_squares(x)[:, 0].double(), wanted[0], rtol=1e-4, atol=1e-5)


def test_on_the_training_data_mean_squares_are_about_one():
    features = 5 + normal(4000, 8) * torch.logspace(-3, 3, 8)
    found = columns_of(features, penultimate=5, bands=4)
    torch.testing.assert_close(found(features).exp().mean(dim=0), torch.ones(6), rtol=0.01, atol=0)


def test_the_release_is_one_on_95_percent_and_grows_without_bound():
    """By hand on three columns: the largest ratio to its own quantile, relative to that ratio's quantile."""
    squares = normal(1000, 3).square() * torch.tensor([1.0, 10.0, 100.0])
    release = Release.of(squares)
    share = (release(squares) <= 1).double().mean()
    assert 0.95 <= share <= 0.951
    quantiles = squares.sort(dim=0).values[949]
    ratios = (squares / quantiles).amax(dim=1)
    wanted = (ratios / ratios.sort().values[949]).clamp_min(1)
    torch.testing.assert_close(release(squares), wanted)
    assert float(release(1e6 * squares).min()) > 1e3


def test_the_columns_rise_along_every_ray():
    found = columns_of(mixed(), penultimate=5, bands=8)
    for direction in normal(20, 8, seed=3):
        steps = torch.logspace(-2, 10, 60).unsqueeze(1)
        along = found(found.shift + steps * direction)
        assert (along.diff(dim=0) > 0).all()


def test_units_of_features_do_not_matter():
    features, x = mixed(), mixed(seed=1)[:50]
    units, offset = torch.logspace(-12, 12, 8), torch.arange(8.0)
    one = columns_of(features, penultimate=5)
    other = columns_of((features + offset) * units, penultimate=5)
    torch.testing.assert_close(other((x + offset) * units), one(x), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("value", [0.0, 1e-38, -1e30, 3e38, -3e38])
def test_they_are_finite_for_all_finite_features(value):
    features = mixed()
    features[:, 2] = 7.0
    found = columns_of(features, penultimate=5)
    assert torch.isfinite(found(torch.full((1, 8), value))).all()
    assert torch.isfinite(found(found.shift.unsqueeze(0))).all()
    for column in range(8):
        x = found.shift.repeat(1, 1)
        x[0, column] = value
        assert torch.isfinite(found(x)).all()


def test_what_leaves_the_data_in_one_direction_is_seen_in_its_band():
    """Two features that almost agree: the band of small variance sees where they do not."""
    one = normal(5000, 1)
    features = torch.cat([one, one + 0.05 * normal(5000, 1, seed=1)], dim=1)
    found = columns_of(features, bands=2)
    _, large, small = found(torch.tensor([[1.0, -1.0]]))[0]
    assert small > large + 5


@pytest.mark.parametrize(
    ("samples", "width"), [(3, 20), (2, 5), (30, 2500), (100, 1500)], ids=["few", "two", "wide", "less wide"]
)
def test_few_samples_and_wide_features(samples, width):
    features = normal(samples, width)
    found = columns_of(features, penultimate=width // 2, bands=4)
    assert found.axes.shape[1] <= 2 * (samples - 1)
    values = found(torch.cat([features, 100 * normal(samples, width, seed=1)]))
    assert torch.isfinite(values).all()
    assert values[samples:, 0].min() > values[:samples, 0].max()


def test_features_that_never_vary_give_numbers_too():
    found = columns_of(torch.ones(10, 3))
    assert torch.equal(found(5 * torch.ones(2, 3)), found(torch.ones(2, 3)))


@pytest.mark.parametrize("penultimate", [0, 9, -1])
def test_penultimate_features_are_some_of_the_features(penultimate):
    with pytest.raises(DataError, match=rf"Expected `penultimate` to be from 1 to 8, but got {penultimate}\."):
        columns_of(mixed(), penultimate=penultimate)


def test_bands_are_counted():
    with pytest.raises(ValueError, match=r"Expected `bands` to be a positive integer, but got 0\."):
        columns_of(mixed(), bands=0)


def test_plenty_of_validation_rows_decide_the_release_alone():
    features = normal(60, 3)
    distances = DistanceColumns.of(Whitening.of(features), features, 3)
    for count in (ENOUGH, ENOUGH - 1):
        rows = 2 * normal(count, 3, seed=1)
        found, alone = release_of(distances, features, 0, (rows, rows)), Release.of(distances.mean_squares(rows))
        assert torch.equal(found.quantiles, alone.quantiles) == (count == ENOUGH)


def test_heads_see_distances_without_correlation_shrunk_towards_their_mean_variance():
    """An axis of variance v has `tap_scale^2 v / (v + m / N mean v)` of it left; m columns of N rows."""
    features = torch.cat([normal(60, 4), 3 * normal(60, 2, seed=1)], dim=1)
    view = View.of(features, 2, Recipe(), 0.3)
    own = view(features)[:, view.scaling.columns :].double()
    centred = view.distances(features).double()
    centred = centred - centred.mean(dim=0)
    variances = torch.linalg.eigvalsh(centred.T @ centred / len(features))
    wanted = 0.09 * variances / (variances + len(variances) / len(features) * variances.mean())
    found = own.T @ own / len(features)
    torch.testing.assert_close(found, torch.diag(wanted), rtol=2e-3, atol=1e-5)
