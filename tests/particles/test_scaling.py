"""How features, taps among them, are scaled and whitened before the fit."""

from __future__ import annotations

import statistics

import pytest
import torch

import repulse
from repulse import Recipe, fit_heads
from repulse.particles import whitening
from repulse.particles.heads import Heads
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Classification
from repulse.particles.view import View
from repulse.particles.whitening import Whitening

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def standardised(features):
    """Over deviations that have the floor of penultimate features: ten samples of the median variance."""
    features = features.double()
    variance = features.var(dim=0, correction=0)
    return (features - features.mean(dim=0)) / (variance + 10 / len(features) * variance.median()).sqrt()


def test_taps_are_scaled_one_by_one_and_kept_small():
    features = normal(50, 7) * torch.tensor([1.0, 2, 3, 0.01, 100, 5, 0]) + torch.tensor([0.0, 1, 2, 3, 4, 5, 6])
    scaling = Scaling.of(features, taps=4, tap_scale=0.2)
    shift, scale = scaling.shift, scaling.scale
    columns = features.double().T.tolist()
    means, deviations = ([of(column) for column in columns] for of in (statistics.fmean, statistics.pstdev))
    torch.testing.assert_close(shift.double(), torch.tensor(means).double(), rtol=1e-5, atol=1e-5)
    common = (sum(deviation**2 for deviation in deviations[:3]) / 3) ** 0.5
    wanted = [common] * 3 + [deviation / 0.2 for deviation in deviations[3:6]]
    torch.testing.assert_close(scale[:6].double(), torch.tensor(wanted).double(), rtol=1e-4, atol=0.0)
    assert scale[6] == torch.inf
    scaled = scaling(features)
    torch.testing.assert_close(scaled[:, 3:6].std(dim=0, correction=0), torch.full((3,), 0.2), rtol=1e-4, atol=0.0)
    assert not scaled[:, 6].any()


def test_without_taps_all_features_have_one_scale():
    features = normal(50, 3) * torch.tensor([1.0, 2.0, 0.0])
    scale = Scaling.of(features).scale
    assert float(scale.amax()) == float(scale.amin())
    torch.testing.assert_close(scale[0] ** 2, features.var(dim=0, correction=0).mean())


@pytest.mark.parametrize("value", [1e-3, 1.0, 1e6])
def test_columns_that_never_vary_are_left_out_whatever_their_size(value):
    features = normal(1000, 4)
    features[:, 2] = value
    assert Scaling.of(features, taps=2).scale.isinf().tolist() == [False, False, True, False]


def test_heads_on_raw_features_say_what_heads_on_scaled_ones_do():
    features = 3 + normal(40, 6) * torch.tensor([1.0, 2.0, 30.0, 0.1, 4.0, 0.0])
    for hidden, whiten in (((), False), ((5,), False), ((), True), ((5,), True)):
        scaling = Scaling.of(features, taps=3, tap_scale=0.3, whiten=whiten)
        heads = Heads(4, scaling.columns, Classification(3), hidden, torch.Generator().manual_seed(0))
        scaled = heads(scaling(features))
        heads.fold_inputs(View(scaling))
        torch.testing.assert_close(heads(features), scaled, rtol=1e-4, atol=1e-4)
        assert not heads.weight[:, :, 5].any()


def test_whitened_features_have_no_correlations_and_one_spread():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20_000, 6, generator=generator) @ torch.randn(6, 6, generator=generator)
    features = features * torch.tensor([1.0, 1, 1, 1e3, 1e-3, 1]) + 5
    scaling = Scaling.of(features, taps=3, tap_scale=0.2, whiten=True)
    scaled = scaling(features)
    assert scaled.shape == (20_000, 3 + 6)
    covariance = torch.cov(scaled[:, 3:].double().T)
    torch.testing.assert_close(covariance, 0.04 * torch.eye(6).double(), rtol=0.02, atol=1e-3)
    plain = Scaling.of(features, taps=3, tap_scale=0.2)
    torch.testing.assert_close(scaled[:, :3], plain(features)[:, :3])


def test_whitening_makes_leaving_the_data_visible():
    """A direction in which two features almost agree on the training data is as wide as any other."""
    one, noise = normal(5000, 1), normal(5000, 1, seed=1)
    features = torch.cat([one, one + 0.05 * noise], dim=1)
    leaving, going = torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    seen = {w: Scaling.of(features, tap_scale=1.0, whiten=w)(torch.cat([leaving, going])) for w in (True, False)}
    far, near = seen[True][:, 2:].norm(dim=1)
    assert far > 15 * near
    far, near = seen[False].norm(dim=1)
    assert far < 1.5 * near


@pytest.mark.parametrize("samples", [3, 10])
def test_of_few_samples_whitening_makes_no_more_than_they_say(samples):
    """With fewer samples than dimensions, axes without variance are left out and the others are held back."""
    features = normal(samples, 20)
    whitened = Scaling.of(features, tap_scale=1.0, whiten=True)(features)[:, 20:]
    variances = torch.linalg.eigvalsh(torch.cov(standardised(features).T, correction=0))[1 - samples :]
    assert whitened.shape[1] == samples - 1
    covariance = torch.cov(whitened.double().T, correction=0)
    torch.testing.assert_close(covariance, torch.diag(variances / (variances + 20 / samples)), rtol=1e-4, atol=1e-4)


def test_scaling_in_batches_is_scaling_at_once(monkeypatch):
    from repulse.particles import fit

    features, targets, far = normal(200, 6), torch.arange(200) % 3, 4 * normal(60, 6, seed=1)
    recipe = Recipe(epochs=5, heads=4)
    one = fit_heads(features, targets, far, recipe, taps=3, progress=False)
    monkeypatch.setattr(fit, "MAX_PRESCALED", 0)
    other = fit_heads(features, targets, far, recipe, taps=3, progress=False)
    torch.testing.assert_close(one(far), other(far), rtol=1e-4, atol=1e-4)


def test_the_fit_does_not_mind_the_units_of_taps():
    """Taps in other units, each its own, and a constant: the same heads, and a constant that is not looked at."""
    features, targets = normal(60, 6), torch.arange(60) % 3
    far = 4 * normal(60, 6, seed=1)
    features[:, 5], far[:, 5] = 2.0, 7.0
    units = torch.tensor([1.0, 1.0, 1.0, 1e3, 1e-3, 5.0])
    offset = torch.tensor([0.0, 0.0, 0.0, 1e3, 2e-3, -4.0])
    recipe = Recipe(epochs=20, heads=4, whiten=False)
    one = fit_heads(features, targets, far, recipe, taps=3, progress=False)
    other = fit_heads(features * units + offset, targets, far * units + offset, recipe, taps=3, progress=False)
    torch.testing.assert_close(one(far), other(far * units + offset), rtol=1e-3, atol=1e-3)
    moved = far + torch.tensor([0.0, 0, 0, 0, 0, 100])
    assert torch.equal(one(far), one(moved))
    larger = fit_heads(features, targets, far, recipe.replace(tap_scale=2.0), taps=3, progress=False)
    assert (larger(far) - one(far)).abs().max() > 0.1


@pytest.mark.parametrize("taps", [-1, 6, True, 1.5])
def test_taps_are_some_of_the_columns(taps):
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(repulse.DataError, match=rf"Expected `taps` to be from 0 to 5, but got {taps}\."):
            fit_heads(normal(20, 6), torch.arange(20) % 2, recipe=Recipe(epochs=1), taps=taps, progress=False)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


# Sizes that are far from one, and values that are errors.


def two_classes(samples=400, width=6):
    """Two Gaussians, apart in all features."""
    targets = torch.arange(samples) % 2
    return normal(samples, width) + 1.5 * targets.unsqueeze(1), targets


def accuracy(features, targets, recipe, taps=2):
    heads = fit_heads(features, targets, None, recipe, taps=taps, progress=False)
    return float(heads.predict(features).labels.eq(targets).double().mean())


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("unit", [1e18, 1e-30])
def test_the_fit_does_not_mind_units_of_any_size(unit, whiten):
    features, targets = two_classes()
    recipe = Recipe(epochs=20, heads=3, whiten=whiten)
    one = fit_heads(features, targets, None, recipe, taps=2, progress=False)
    other = fit_heads(unit * features, targets, None, recipe, taps=2, progress=False)
    torch.testing.assert_close(other(unit * features), one(features), rtol=1e-2, atol=1e-2)
    assert accuracy(unit * features, targets, recipe) == pytest.approx(accuracy(features, targets, recipe), abs=0.003)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("column", [0, 5], ids=["penultimate", "tap"])
@pytest.mark.parametrize("value", [1e20, -1e20, 3e38, 1e6])
def test_one_huge_value_does_not_silence_the_other_features(value, column, whiten):
    features, targets = two_classes()
    spoilt = features.clone()
    spoilt[7, column] = value
    one, other = (Scaling.of(x, taps=2, whiten=whiten) for x in (features, spoilt))
    others = [i for i in range(6) if i != column]
    torch.testing.assert_close(other.scale[others], one.scale[others], rtol=0.05, atol=0)
    recipe = Recipe(epochs=60, lr=0.01, heads=3, whiten=whiten)
    heads = fit_heads(spoilt, targets, None, recipe, taps=2, progress=False)
    right = heads.predict(features).labels.eq(targets).double().mean()
    assert float(right) >= accuracy(features, targets, recipe) - 0.01


def test_what_is_cut_off_does_not_depend_on_units():
    spoilt = torch.cat([normal(200, 3), torch.full((1, 3), 1e20)])
    one, other = (whitening.Moments.of(unit * spoilt) for unit in (1, 1000))
    torch.testing.assert_close(other.variance, 1e6 * one.variance, rtol=1e-4, atol=0)


def test_heavy_tails_are_no_errors():
    """Neither rare activations, nor columns in units of their own, are cut off."""
    features = normal(2000, 4).exp()
    features[:, 1] = torch.where(torch.arange(2000) == 700, 500.0, 0.0)
    features[:, 2] *= 1e9
    assert Scaling.of(features).bounds is None


# Few samples, many columns, many classes.


def sizes_of_decompositions(monkeypatch):
    """Sizes of all eigendecompositions from now on: they are what takes time and memory."""
    sizes, real = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda a: sizes.append(len(a)) or real(a))
    return sizes


@pytest.mark.parametrize("samples", [2, 60, 1100])
def test_thousands_of_columns_are_whitened_at_a_bounded_cost(samples, monkeypatch):
    sizes = sizes_of_decompositions(monkeypatch)
    features = normal(samples, 2500)
    scaling = Scaling.of(features, taps=500, tap_scale=1.0, whiten=True)
    assert max(sizes) <= 1024
    assert scaling.axes.shape[1] <= min(samples - 1, 1024)
    assert torch.isfinite(scaling(features)).all()


@pytest.mark.parametrize("columns", [40, 61, 400, 2100])
def test_of_few_samples_and_many_columns_whitening_is_exact(columns):
    """As from the eigendecomposition of all correlations, which has no axes beyond the samples."""
    features = normal(30, columns)
    whitened = Scaling.of(features, tap_scale=1.0, whiten=True)(features)[:, columns:].double()
    u, s, _ = torch.linalg.svd(standardised(features), full_matrices=False)
    variances = s[:29].square() / 30
    rows = u[:, :29] * s[:29] / (variances + columns / 30).sqrt()
    assert whitened.shape == (30, 29)
    torch.testing.assert_close(whitened @ whitened.T, rows @ rows.T, rtol=1e-3, atol=1e-3)


@pytest.fixture
def low_bounds(monkeypatch):
    """As if a hundred columns were many."""
    for name, value in (("MAX_EXACT", 100), ("MAX_AXES", 80), ("SKETCHED", 20), ("POWER_ROWS", 400)):
        monkeypatch.setattr(whitening, name, value)


@pytest.mark.usefixtures("low_bounds")
def test_leading_axes_of_wide_features_are_found():
    """Ten strong directions in 300 columns: their variances and coordinates are about what exact whitening has."""
    features = normal(1500, 10) @ normal(10, 300, seed=1) + normal(1500, 300, seed=2)
    found = Whitening.of(features)
    standard = (features.double() - features.double().mean(dim=0)) / features.double().std(dim=0, correction=0)
    u, s, _ = torch.linalg.svd(standard, full_matrices=False)
    variances = s.square() / 1500
    torch.testing.assert_close(found.variances[-10:].flip(0), variances[:10], rtol=0.01, atol=0)
    wanted = u[:, :10] * s[:10] / (variances[:10] + 300 / 1500).sqrt()
    leading = found(features)[:, -10:].double()
    torch.testing.assert_close(leading.square().sum(dim=1), wanted.square().sum(dim=1), rtol=0.05, atol=0)
    covariance = torch.cov(found(features).double().T, correction=0)
    wanted = found.variances / (found.variances + 300 / 1500)
    torch.testing.assert_close(covariance, torch.diag(wanted), rtol=1e-3, atol=2e-3)


@pytest.mark.usefixtures("low_bounds")
def test_whitening_of_wide_features_is_the_same_each_time():
    features = normal(500, 200)
    assert torch.equal(Whitening.of(features).axes, Whitening.of(features).axes)


def test_one_sample_of_each_class_is_enough_for_a_fit():
    features, targets = normal(10, 40), torch.arange(10)
    recipe = Recipe(epochs=200, lr=0.03, heads=3)
    heads = fit_heads(features, targets, 4 * normal(50, 40, seed=1), recipe, taps=20, progress=False)
    assert torch.isfinite(heads(features)).all()
    assert accuracy(features, targets, recipe, taps=20) == 1.0


def test_a_thousand_classes_are_fitted():
    centres = 3 * normal(1000, 20)
    targets = torch.arange(2000) % 1000
    features = centres[targets] + 0.1 * normal(2000, 20, seed=1)
    assert accuracy(features, targets, Recipe(epochs=20, lr=0.03, heads=2), taps=5) > 0.9
