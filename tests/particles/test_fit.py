"""The fit as a whole: reproducible, indifferent to units, honest about itself."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import nn

from repulse import (
    FS_RLL_E,
    LL_E,
    PAPER_TRAINING,
    RLL_E,
    DataError,
    FitWarning,
    Recipe,
    RegressionPrediction,
    fit_heads,
    fit_networks,
)
from repulse.particles.fit import _Fit, _hold_out
from repulse.particles.fit_data import identity
from repulse.particles.heads import Heads
from repulse.particles.scaling import Scaling
from repulse.particles.start import start_from
from repulse.particles.tasks import Regression
from repulse.recipe import Kernel, OutputSpace, Rule, Schedule

QUICK = Recipe(epochs=25, heads=5, lr=3e-2)


def blobs(count: int = 600, dimensions: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three Gaussian clusters, and far samples to repel on."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(3, dimensions, generator=generator)
    labels = torch.arange(count) % 3
    features = centres[labels] + torch.randn(count, dimensions, generator=generator)
    return features, labels, 6 * torch.randn(count, dimensions, generator=generator)


@pytest.fixture(scope="module")
def data():
    return blobs()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_seed_reproduces_the_fit_bit_by_bit(data):
    first, again = (fit_heads(*data, QUICK, progress=False) for _ in range(2))
    other = fit_heads(*data, QUICK.replace(seed=1), progress=False)
    assert same(first, again)
    assert not same(first, other)


def test_global_random_state_threads_and_dtype_are_untouched(data):
    before = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    fit_heads(*data, QUICK, progress=False)
    after = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize(("factor", "shift"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 50.0)])
def test_units_of_the_features_do_not_matter(data, factor, shift):
    features, labels, far = data
    plain = fit_heads(features, labels, far, QUICK, progress=False)
    moved = fit_heads(factor * features + shift, labels, factor * far + shift, QUICK, progress=False)
    expected = plain.predict(features).probs
    torch.testing.assert_close(moved.predict(factor * features + shift).probs, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("factor", [1e-9, 1e3, 1e8])
def test_units_of_regression_targets_do_not_matter(factor):
    features, _, far = blobs()
    targets = features[:, 0] + 0.1 * torch.randn(len(features), generator=torch.Generator().manual_seed(1))
    recipe = QUICK.replace(task="regression", lr=2e-3)
    plain = fit_heads(features, targets, far, recipe, progress=False).predict(features)
    moved = fit_heads(features, factor * targets + 7 * (factor > 1), far, recipe, progress=False).predict(features)
    assert isinstance(plain, RegressionPrediction)
    # Two float32 fits drift apart by rounding, but by less than a twentieth of the noise.
    torch.testing.assert_close(moved.mean, factor * plain.mean + 7 * (factor > 1), rtol=0, atol=0.005 * factor)
    torch.testing.assert_close(moved.std, factor * plain.std, rtol=0.05, atol=0)


def test_regression_starts_at_least_squares_and_each_head_where_it_was_in_directions_without_data():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 3, generator=generator)
    features[:, 2] = 0.0
    y = features @ torch.tensor([2.0, -1.0, 0.0]) + 0.1 * torch.randn(400, generator=generator)
    heads = Heads(5, 3, Regression(0.1), generator=generator)
    before = heads.weight[:, 0, 2].detach().clone()
    left = heads.task.warm_start(heads, features, identity, y).log_variance
    solution = torch.linalg.lstsq(features[:, :2].double(), y.double()).solution
    assert torch.allclose(heads.weight[:, 0, :2].double(), solution.expand(5, 2), atol=1e-3)
    assert torch.equal(heads.weight[:, 0, 2], before)
    residual = (features[:, :2].double() @ solution - y.double()).square().mean()
    assert left == pytest.approx(float(residual.log()), abs=1e-3)


@pytest.mark.parametrize("noise", [0.1, None])
def test_regression_knows_its_noise_and_what_it_has_not_seen(noise):
    features, _, far = blobs()
    targets = features[:, 0] + 0.1 * torch.randn(len(features), generator=torch.Generator().manual_seed(1))
    heads = fit_heads(features, targets, far, Recipe(task="regression", noise=noise), progress=False)
    near, away = heads.predict(features), heads.predict(far)
    assert (near.mean - targets).square().mean().sqrt() < 0.15
    assert near.aleatoric.sqrt().median() == pytest.approx(0.1, rel=0.05)
    assert away.epistemic.mean() > 20 * near.epistemic.mean()


@pytest.mark.parametrize("space", ["function", "parameters"])
@pytest.mark.parametrize("kernel", get_args(Kernel))
@pytest.mark.parametrize("rule", get_args(Rule))
def test_every_rule_kernel_and_space_fits_and_repels(data, rule, kernel, space):
    features, labels, far = data
    recipe = QUICK.replace(rule=rule, kernel=kernel, space=space, strength=0.1)
    heads = fit_heads(features, labels, far, recipe, progress=False)
    plain = fit_heads(features, labels, None, QUICK.replace(space="none"), progress=False)
    assert heads.predict(features).labels.eq(labels).float().mean() > 0.97
    assert heads.predict(far).epistemic.mean() > plain.predict(far).epistemic.mean()
    assert heads.history[-1].force_ratio > 0


@pytest.mark.parametrize("on", get_args(OutputSpace))
@pytest.mark.parametrize("compare", ["jointly", "pointwise"])
def test_every_space_of_comparison_raises_disagreement_where_it_repels(data, on, compare):
    features, labels, far = data
    heads = fit_heads(features, labels, far, QUICK.replace(on=on, compare=compare, strength=0.1), progress=False)
    assert heads.predict(far).epistemic.mean() > 5 * heads.predict(features).epistemic.mean()


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_every_schedule_and_both_priors_fit(data, schedule):
    for prior in ("weights", "function"):
        heads = fit_heads(*data, QUICK.replace(schedule=schedule, prior=prior), progress=False)
        assert heads.predict(data[0]).labels.eq(data[1]).float().mean() > 0.97


def test_heads_with_hidden_layers(data):
    plain = fit_heads(*data, QUICK.replace(hidden=(16, 8), centre="heads"), progress=False)
    assert [tuple(w.shape) for w in plain.weights] == [(5, 16, 6), (5, 8, 16), (5, 3, 8)]
    assert plain.predict(data[0]).labels.eq(data[1]).float().mean() > 0.97
    heads = fit_heads(*data, QUICK.replace(hidden=(16, 8)), progress=False)  # they see seven distance columns too
    assert [tuple(w.shape) for w in heads.weights] == [(5, 16, 13), (5, 8, 16), (5, 3, 8)]
    assert heads.features == 6
    assert heads.predict(data[0]).labels.eq(data[1]).float().mean() > 0.97


def test_pretrained_heads_start_near_the_last_layer(data):
    features, labels, far = data
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        last = nn.Linear(6, 3)
    recipe = QUICK.replace(init="pretrained", epochs=1, lr=1e-9, strength=0.0, centre="heads")
    heads = fit_heads(features, labels, far, recipe, start=(last.weight, last.bias), progress=False)
    mean = heads(features).mean(dim=0)
    spread = heads(features).std()
    torch.testing.assert_close(mean, last(features).detach(), rtol=0, atol=float(0.2 * spread))
    assert not torch.equal(heads.weight[0], heads.weight[1])


def test_without_repulsion_samples_it_is_a_plain_ensemble_and_says_so(data):
    features, labels, _ = data
    heads = fit_heads(features, labels, None, QUICK, progress=False)
    assert heads.recipe.space == "none"
    assert heads.history[-1].repulsion is None
    assert same(heads, fit_heads(features, labels, None, QUICK.replace(space="none"), progress=False))


def test_one_head_has_no_epistemic_uncertainty(data):
    with pytest.warns(FitWarning, match="nothing to disagree with"):
        heads = fit_heads(*data, QUICK.replace(heads=1), progress=False)
    assert heads.predict(data[2]).epistemic.abs().max() == 0


def test_a_fit_goes_on_from_heads_of_the_same_features_only(data):
    features, targets, _ = data
    heads = fit_heads(features, targets, None, QUICK, progress=False)
    again = fit_heads(features, targets, None, QUICK, warm=heads, progress=False)
    assert len(again.history) < len(heads.history)
    assert bool((again.predict(features).labels == heads.predict(features).labels).double().mean() > 0.95)
    with pytest.raises(DataError, match="Expected columns of `warm`"):
        fit_heads(features[:, 1:], targets, None, QUICK, warm=heads, progress=False)


@pytest.mark.parametrize("bias", [(0.0, 0.0), (50.0, -7000.0)])
def test_several_targets_start_at_the_network_in_their_own_units(bias):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) + 4
    weight, bias = torch.tensor([[1.0, 0, 2], [0, 300, 0]]), torch.tensor(bias)
    targets = x @ weight.T + bias
    recipe = Recipe(task="regression", init="pretrained", centre="heads", epochs=1, lr=1e-6, heads=3, hidden=())
    heads = fit_heads(x, targets, None, recipe, start=(weight, bias), progress=False)
    off = (heads.predict(x).mean - targets).square().mean(dim=0).sqrt()
    assert bool((off < 0.2 * targets.std(dim=0)).all())


def test_a_last_layer_is_copied_in_the_units_of_the_fit(monkeypatch):
    monkeypatch.setattr("repulse.particles.start.PRETRAINED_NOISE", 0.0)
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(50, 3, generator=generator) + 4
    weight, bias, shift, scale = (
        torch.tensor([[1.0, -2.0, 0.5]]),
        torch.tensor([7.0]),
        torch.tensor(50.0),
        torch.tensor(2.0),
    )
    scaling, heads = Scaling.of(x), Heads(2, 3, Regression(0.1), generator=generator)
    start_from(heads, (weight, bias), scaling, shift, scale, generator)
    wanted = (x @ weight[0] + bias - shift) / scale
    torch.testing.assert_close(heads(scaling(x))[..., 0].detach(), wanted.expand(2, 50), rtol=1e-4, atol=1e-4)


def test_every_sixth_row_is_kept_from_the_fit_if_there_are_enough():
    def held_out(count):
        x = torch.arange(float(count)).unsqueeze(1)
        fit = _Fit(x, x.squeeze(1), None, Recipe(), Regression(None), 0, None, None, False)
        smaller, (rows, targets) = _hold_out(fit)
        assert torch.equal(rows.squeeze(1), targets)
        return smaller.features.squeeze(1).tolist(), rows.squeeze(1).tolist()

    used, held = held_out(60)
    assert len(held) == 10
    assert sorted(used + held) == list(range(60))
    assert held_out(11) == (list(range(11)), list(range(11)))


def test_history_tells_what_happened(data):
    history = fit_heads(*data, QUICK, progress=False).history
    assert len(history) == 25
    assert history[-1].nll < history[0].nll
    assert 0 <= history[-1].repulsion <= math.log(5)
    assert history[-1].bandwidth > 0
    assert 0 < history[-1].kernel < 1
    assert history[-1].epistemic_repulsion > history[-1].epistemic_train


def test_unset_epochs_mean_two_thousand_steps_and_three_passes_at_least(data):
    assert len(fit_heads(*data, Recipe(heads=2), progress=False).history) == 100  # 4 steps a pass, 20 an epoch
    assert len(fit_heads(*data, Recipe(heads=2, batch_size=1), progress=False).history) == 4  # 600 steps a pass


def test_named_recipes_are_the_papers_variants():
    assert (LL_E.space, RLL_E.space, FS_RLL_E.space, FS_RLL_E.compare) == ("none", "parameters", "function", "jointly")
    assert LL_E.replace(space="parameters") == RLL_E
    paper = FS_RLL_E.replace(**PAPER_TRAINING)
    assert (paper.lr, paper.epochs, paper.strength, paper.decay) == (1e-4, 30, 0.1, "none")


class TestWarnings:
    def test_not_converged(self, data):
        with pytest.warns(FitWarning, match="not converged"):
            fit_heads(*data, QUICK.replace(lr=2e-3), progress=False)

    def test_kernel_underflow(self, data):
        with pytest.warns(FitWarning, match="underflowed"):
            fit_heads(*data, QUICK.replace(bandwidth=1e-9, on="logits"), progress=False)

    def test_collapse(self, data):
        features, labels, _ = data
        recipe = LL_E.replace(prior_std=0.05, epochs=400, lr=1e-2)
        with pytest.warns(FitWarning, match="collapsed"):
            fit_heads(features, labels, None, recipe, progress=False)


def test_networks_repel_through_the_same_rules(data):
    features, labels, far = data
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(4)]
    ensemble = fit_networks(networks, features, labels, far, QUICK.replace(lr=1e-2, strength=0.1), progress=False)
    assert ensemble.predict(features).labels.eq(labels).float().mean() > 0.97
    assert ensemble.score(far).mean() > 10 * ensemble.score(features).mean()


def test_networks_predict_in_eval_mode_and_stay_trainable(data):
    features, labels, far = data
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(3)]
    ensemble = fit_networks(networks, features, labels, far, QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(features[:1]).probs, ensemble.predict(features).probs[:1])
    assert all(p.requires_grad for network in networks for p in network.parameters())
    assert networks[0].training


def test_predictions_are_indexed_like_sequences(data):
    p = fit_heads(*data, QUICK, progress=False).predict(data[0][:5])
    assert len(list(p)) == 5
    assert p[p.epistemic.argmax()].epistemic == p.epistemic.max()
    with pytest.raises(IndexError):
        p[5]
