"""How features, taps among them, are scaled and whitened before the fit."""

from __future__ import annotations

import statistics

import pytest
import torch

import repulse
from repulse import Recipe, fit_heads
from repulse.particles.heads import Heads
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Classification

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
        heads.fold_inputs(scaling)
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
    variances = torch.linalg.eigvalsh(torch.corrcoef(features.double().T))[1 - samples :]
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
