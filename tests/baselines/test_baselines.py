"""Each baseline against an independent formulation of what it computes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from torch import nn

from repulse import DataError, baselines, metrics
from repulse.baselines import (
    DDU,
    KNN,
    MAP,
    SNGP,
    DeepEnsemble,
    Discriminator,
    Energy,
    Laplace,
    LastLayer,
    Mahalanobis,
    MaxLogit,
    OutlierExposure,
    ReAct,
    RelativeMahalanobis,
    Temperature,
    ViM,
)
from repulse.baselines._gaussians import cholesky
from repulse.baselines.laplace import Kronecker, LaplaceTorch
from repulse.baselines.sngp import orthogonal_features
from repulse.errors import RecipeError

GENERATOR = torch.Generator().manual_seed(0)
FEATURES = torch.randn(400, 5, generator=GENERATOR) @ torch.randn(5, 5, generator=GENERATOR)
WEIGHT = torch.randn(4, 5, generator=GENERATOR)
TARGETS = (FEATURES @ WEIGHT.T + torch.randn(400, 4, generator=GENERATOR)).argmax(dim=1)
LAYER = LastLayer(WEIGHT, torch.tensor([0.1, -0.2, 0.3, 0.0]))
QUERIES = 2 * torch.randn(60, 5, generator=GENERATOR)
LOGITS = (QUERIES.double() @ WEIGHT.T.double() + LAYER.bias.double()).numpy()


def near(found: torch.Tensor, wanted, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(found.double().numpy(), np.asarray(wanted), rtol=rtol, atol=1e-5)


def test_map_is_the_entropy_of_the_softmax():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    near(MAP(LAYER).fit(FEATURES, TARGETS).score(QUERIES), -(p * np.log(p)).sum(axis=1))


def test_energy_and_max_logit():
    near(Energy(LAYER).fit(FEATURES, TARGETS).score(QUERIES), -np.log(np.exp(LOGITS).sum(axis=1)))
    near(MaxLogit(LAYER).fit(FEATURES, TARGETS).score(QUERIES), -LOGITS.max(axis=1))


def test_react_cuts_at_the_quantile():
    ceiling = np.quantile(FEATURES.numpy(), 0.8, method="inverted_cdf")
    cut = np.minimum(QUERIES.numpy(), ceiling) @ WEIGHT.T.numpy() + LAYER.bias.numpy()
    near(ReAct(LAYER, 0.8).fit(FEATURES, TARGETS).score(QUERIES), -np.log(np.exp(cut).sum(axis=1)))
    near(ReAct(LAYER, 1.0).fit(FEATURES, TARGETS).score(FEATURES), Energy(LAYER).fit(FEATURES, TARGETS).score(FEATURES))
    with pytest.raises(RecipeError, match="`quantile` to be above 0"):
        ReAct(LAYER, 0.0)


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_knn_against_scikit_learn(k):
    unit = lambda x: (x / x.norm(dim=1, keepdim=True)).double().numpy()  # noqa: E731
    search = NearestNeighbors(n_neighbors=min(k, 400), algorithm="brute").fit(unit(FEATURES))
    near(KNN(LAYER, k).fit(FEATURES, TARGETS).score(QUERIES), search.kneighbors(unit(QUERIES))[0][:, -1], rtol=1e-3)


def test_mahalanobis_by_the_inverse_covariance():
    x, z = FEATURES.double().numpy(), QUERIES.double().numpy()
    means = np.stack([x[c == TARGETS].mean(axis=0) for c in range(4)])
    inverse = np.linalg.inv((x - means[TARGETS]).T @ (x - means[TARGETS]) / len(x))
    distance = np.min([np.einsum("bi,ij,bj->b", z - m, inverse, z - m) for m in means], axis=0)
    near(Mahalanobis(LAYER).fit(FEATURES, TARGETS).score(QUERIES), distance)
    inverse = np.linalg.inv(np.cov(x.T, bias=True))
    whole = np.einsum("bi,ij,bj->b", z - x.mean(axis=0), inverse, z - x.mean(axis=0))
    near(RelativeMahalanobis(LAYER).fit(FEATURES, TARGETS).score(QUERIES), distance - whole)


def test_ddu_against_scipy():
    x, z = FEATURES.double().numpy(), QUERIES.double().numpy()
    density = sum(
        (share := (c == TARGETS).double().mean().item())
        * multivariate_normal(x[c == TARGETS].mean(axis=0), np.cov(x[c == TARGETS].T)).pdf(z)
        for c in range(4)
    )
    assert share > 0
    near(DDU(LAYER).fit(FEATURES, TARGETS).score(QUERIES), -np.log(density), rtol=1e-3)


def test_ddu_of_few_samples_leans_on_the_shared_covariance():
    """With one sample of class 0, its Gaussian has the covariance of all features about their class means."""
    rows = torch.cat([(TARGETS == 0).nonzero()[:1], (TARGETS == 1).nonzero()[:60]]).flatten()
    x, t = FEATURES[rows], TARGETS[rows]
    method = DDU(LAYER).fit(x, t)
    centred = (x[1:] - x[1:].mean(dim=0)).double()
    shared = centred.T @ centred / len(x)
    near(method.factors[0] @ method.factors[0].T, shared)
    near(method.factors[1] @ method.factors[1].T, torch.cov(x[1:].double().T))


def test_ddu_stays_in_log_space_and_survives_singular_features():
    flat = torch.cat([FEATURES, FEATURES[:, :1], torch.ones(400, 1)], dim=1)
    layer = LastLayer(torch.cat([WEIGHT, torch.zeros(4, 2)], dim=1), LAYER.bias)
    scores = DDU(layer).fit(flat, TARGETS).score(1e4 * torch.ones(1, 7))
    assert torch.isfinite(scores).all()
    assert scores > 1e4  # a density of exp(-1e4) underflows outside log space


def test_jitter_grows_until_it_works_and_no_further():
    good = torch.eye(3, dtype=torch.float64)
    bad = torch.ones(3, 3, dtype=torch.float64) - 1e-7 * good
    factors = cholesky(torch.stack([good, bad]))
    assert torch.equal(factors[0], good)
    added = (factors[1] @ factors[1].T - bad).diagonal().mean()
    assert 1e-7 < added < 1e-5
    with pytest.raises(DataError, match="finite covariances"):
        cholesky(torch.full((1, 2, 2), torch.nan, dtype=torch.float64))


def test_ddu_refuses_what_does_not_fit_into_memory():
    layer = LastLayer(torch.zeros(1000, 2000), torch.zeros(1000))
    with pytest.raises(DataError, match="shares one covariance"):
        DDU(layer).fit(torch.randn(1000, 2000), torch.arange(1000))


def test_vim_by_the_definition():
    x, z, w = FEATURES.double().numpy(), QUERIES.double().numpy(), WEIGHT.double().numpy()
    origin = -np.linalg.pinv(w) @ LAYER.bias.double().numpy()
    covariance = (x - origin).T @ (x - origin) / len(x)
    values, vectors = np.linalg.eig(covariance)
    null = vectors[:, np.argsort(-values)[2:]]
    logits = x @ w.T + LAYER.bias.numpy()
    alpha = logits.max(axis=1).mean() / np.linalg.norm((x - origin) @ null, axis=1).mean()
    wanted = alpha * np.linalg.norm((z - origin) @ null, axis=1) - np.log(np.exp(LOGITS).sum(axis=1))
    near(ViM(LAYER, 2).fit(FEATURES, TARGETS).score(QUERIES), wanted)


def test_discriminator_against_scikit_learn():
    outside = 3 + QUERIES
    ridge = 1e-2
    method = Discriminator(LAYER, outside, ridge=ridge).fit(FEATURES, TARGETS)
    shift = FEATURES.mean(dim=0)
    scale = (FEATURES - shift).square().mean().sqrt()
    x = ((torch.cat([FEATURES, outside]) - shift) / scale).double().numpy()
    y = np.repeat([0, 1], [len(FEATURES), len(outside)])
    weights = np.repeat([1 / len(FEATURES), 1 / len(outside)], [len(FEATURES), len(outside)])
    known = LogisticRegression(C=1 / (2 * ridge), tol=1e-10, max_iter=10_000).fit(x, y, sample_weight=weights)
    wanted = known.decision_function(((QUERIES - shift) / scale).double().numpy())
    assert np.abs(method.score(QUERIES).numpy() - wanted).max() < 1e-3


def test_outlier_exposure_is_sure_inside_and_not_outside():
    """Outside, two features that tell the classes apart contradict each other."""
    generator = torch.Generator().manual_seed(3)
    targets = torch.arange(600) % 2
    sign = (2.0 * targets - 1).unsqueeze(1)
    inside = sign * torch.tensor([3.0, 3.0]) + torch.randn(600, 2, generator=generator)
    outside = sign * torch.tensor([6.0, -3.0]) + torch.randn(600, 2, generator=generator)
    told = OutlierExposure(outside[:300], 2).fit(inside, targets)
    untold = OutlierExposure(outside[:300], 2, weight=0.0).fit(inside, targets)
    ranks = [metrics.auroc(method.score(inside), method.score(outside[300:])) for method in (told, untold)]
    assert ranks[0] > 0.95
    assert ranks[1] < ranks[0] - 0.1
    assert (told.predict(inside).labels == targets).float().mean() > 0.95


def test_temperature_finds_the_one_that_was_applied():
    torch_generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 4, generator=torch_generator)
    targets = torch.multinomial(logits.softmax(dim=1), 1, generator=torch_generator).squeeze(1)
    sharp = LastLayer(3 * torch.eye(4), torch.zeros(4))  # three times too sure
    method = Temperature(MAP(sharp)).fit(logits, targets)
    assert method.temperature == pytest.approx(3.0, rel=0.05)
    assert metrics.ece(method.predict(logits), targets) < 0.02
    assert metrics.ece(MAP(sharp).fit(logits, targets).predict(logits), targets) > 0.1
    assert torch.equal(method.predict(logits).labels, method.method.predict(logits).labels)
    kept = Temperature(KNN(sharp)).fit(logits[:500], targets[:500])
    assert torch.equal(kept.score(logits[:9]), kept.method.score(logits[:9]))  # a distance knows no temperature
    assert method.name == "MAP + temperature"


def test_sngp_variance_shrinks_with_data_and_grows_away_from_it():
    few, many = (SNGP(4, width=256, epochs=2).fit(FEATURES[:n], TARGETS[:n]) for n in (40, 400))
    assert many.variance(FEATURES[:40]).mean() < 0.7 * few.variance(FEATURES[:40]).mean()
    assert many.variance(1e3 * QUERIES).mean() > 3 * many.variance(FEATURES).mean()
    assert many.variance(1e3 * QUERIES).max() <= 1.5


def test_sngp_variance_is_that_of_the_weight_space_posterior():
    method = SNGP(4, width=32, epochs=2, share=0.0).fit(FEATURES, TARGETS)
    r, q = (method.random_features(x).double() for x in (FEATURES, QUERIES))
    covariance = torch.linalg.inv(torch.eye(32, dtype=torch.float64) + r.T @ r)
    near(method.variance(QUERIES), torch.einsum("bi,ij,bj->b", q, covariance, q))


def test_random_features_approximate_the_gaussian_kernel():
    projection = orthogonal_features(5, 20_000, torch.Generator().manual_seed(0))
    phase = 2 * math.pi * torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    x = 0.5 * QUERIES[:10]
    r = math.sqrt(2 / 20_000) * torch.cos(x @ projection + phase)
    wanted = torch.exp(-0.5 * torch.cdist(x, x).square())
    assert (r @ r.T - wanted).abs().max() < 0.05
    block = projection[:, :5]
    cosines = (block.T @ block) / block.norm(dim=0) / block.norm(dim=0).unsqueeze(1)
    assert torch.allclose(cosines, torch.eye(5), atol=1e-5)


@pytest.fixture(scope="module")
def map_layer() -> LastLayer:
    return LastLayer.fit(FEATURES, TARGETS, 4)


def test_closed_kronecker_posterior_is_that_of_laplace_torch(map_layer):
    reference = LaplaceTorch(map_layer.weight, map_layer.bias, "kron", FEATURES, TARGETS)
    closed = Kronecker.of(map_layer.weight, map_layer.bias, FEATURES)
    found = torch.einsum("ka,ba,la->bkl", closed.u, closed.variances(QUERIES), closed.u)
    wanted = reference.covariances(QUERIES).double()
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_closed_kronecker_covariance_by_brute_force(map_layer):
    """The precision as one dense matrix, inverted, pulled through the Jacobian."""
    closed = Kronecker.of(map_layer.weight, map_layer.bias, FEATURES)
    x = FEATURES.double()
    p = (x @ map_layer.weight.double().T + map_layer.bias.double()).softmax(dim=1)
    outer = torch.diag(p.sum(dim=0)) - p.T @ p
    delta = closed.bias_precision[0] - torch.linalg.eigvalsh(outer).clamp_min(0)[0]
    dense = torch.kron(outer, x.T @ x / len(x)) + delta * torch.eye(20, dtype=torch.float64)
    for z in QUERIES[:5].double():
        jacobian = torch.kron(torch.eye(4, dtype=torch.float64), z.unsqueeze(0))
        wanted = jacobian @ torch.linalg.inv(dense) @ jacobian.T
        wanted += torch.linalg.inv(outer + delta * torch.eye(4, dtype=torch.float64))
        variances = closed.variances(z.unsqueeze(0))[0]
        assert torch.allclose(closed.u @ torch.diag(variances) @ closed.u.T, wanted, rtol=1e-6)


def test_prior_precision_has_the_largest_marginal_likelihood(map_layer):
    closed = Kronecker.of(map_layer.weight, map_layer.bias, FEATURES)
    delta = float(closed.bias_precision.min())  # the smallest curvature, along equal logits, is zero
    curvature = torch.cat([closed.precision.flatten(), closed.bias_precision]) - delta
    squares = map_layer.weight.double().square().sum() + map_layer.bias.double().square().sum()

    def evidence(d: float) -> float:
        return float(len(curvature) * math.log(d) - (curvature + d).log().sum() - d * squares)

    assert evidence(delta) >= max(evidence(delta * 1.1), evidence(delta / 1.1)) - 1e-3


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_laplace_samples_have_the_posterior_covariance(structure, map_layer):
    method = Laplace(map_layer, structure, samples=20_000, engine="laplace-torch").fit(FEATURES, TARGETS)
    noise = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
    drawn = method.posterior.deviations(QUERIES[:3], noise)
    wanted = method.posterior.covariances(QUERIES[:3])
    for b in range(3):
        assert torch.allclose(torch.cov(drawn[:, b].T), wanted[b], atol=0.05 * float(wanted[b].abs().max()))
    assert (method.score(3 * QUERIES) > method.score(QUERIES)).float().mean() > 0.5


def test_laplace_refuses_what_it_has_not():
    with pytest.raises(RecipeError, match="Did you mean 'kron'"):
        Laplace(LAYER, "krone")
    with pytest.raises(DataError, match="'kron' for the closed form"):
        Laplace(LAYER, "full", engine="closed")


def test_deep_ensemble_is_the_mean_of_its_members():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        members = [nn.Linear(5, 4) for _ in range(3)]
    method = DeepEnsemble(members, prepare=lambda x: 2 * x).fit(FEATURES, TARGETS)
    with torch.no_grad():
        wanted = torch.stack([m(2 * QUERIES).softmax(dim=1) for m in members]).mean(dim=0)
    assert torch.allclose(method.predict(QUERIES).probs, wanted, atol=1e-6)
    assert method.name == "DE-3"
    assert all(member.training for member in members)
    with pytest.raises(DataError, match="at least one network"):
        DeepEnsemble([])


@pytest.mark.usefixtures("few_steps")
def test_our_heads_under_the_contract_are_fit_heads():
    from repulse import Recipe, fit_heads

    method = baselines.build("repulse", baselines.Resources(LAYER, 3 * QUERIES, 0, 4)).fit(FEATURES, TARGETS)
    start, recipe = (LAYER.weight, LAYER.bias), Recipe(seed=4)
    heads = fit_heads(FEATURES, TARGETS, 3 * QUERIES, recipe, classes=4, start=start, progress=False)
    assert torch.equal(method.score(QUERIES), heads.predict(QUERIES).epistemic)
    assert torch.equal(method.heads.network_weight, LAYER.weight)


def test_our_heads_calibrated_are_fitted_with_validation_data():
    from repulse import Recipe, fit_heads
    from repulse.baselines import LastLayerEnsemble

    recipe, start = Recipe(epochs=20, tap_scale=0.2), (LAYER.weight, LAYER.bias)
    generator = torch.Generator().manual_seed(8)
    validation = [
        (torch.randn(1200, 5, generator=generator), torch.randint(4, (1200,), generator=generator)) for _ in range(2)
    ]
    method = LastLayerEnsemble(4, recipe, 3 * QUERIES, layer=LAYER).fit(FEATURES, TARGETS)
    for known in (*validation, validation[0]):  # whatever was known before
        method.calibrate(*known)
        heads = fit_heads(
            FEATURES, TARGETS, 3 * QUERIES, recipe, classes=4, start=start, validation=known, progress=False
        )
        assert torch.equal(method.predict(QUERIES).log_probs, heads.predict(QUERIES).log_probs)
    with pytest.raises(DataError, match="`targets` to be classes from 0 to 3"):
        method.calibrate(FEATURES, TARGETS + 4)
    with pytest.raises(DataError, match="to be fitted first"):
        LastLayerEnsemble(4, recipe).calibrate(FEATURES, TARGETS)


def test_heads_that_stay_as_fitted_are_not_calibrated():
    from repulse import Recipe
    from repulse.baselines import LastLayerEnsemble

    method = LastLayerEnsemble(4, Recipe(epochs=5, centre="heads"), 3 * QUERIES, layer=LAYER).fit(FEATURES, TARGETS)
    before = method.score(QUERIES)
    assert not method.calibrates
    assert torch.equal(before, method.calibrate(FEATURES, TARGETS.roll(1)).score(QUERIES))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(RecipeError, match="`dimensions` to be from 1 to 4, but got 7"):
        ViM(LAYER, 7)
    for share in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="`share` to be at least 0 and below 1"):
            Temperature(MAP(LAYER), share)
        with pytest.raises(RecipeError, match="`share` to be at least 0 and below 1"):
            SNGP(4, share=share)


def test_what_became_nan_is_refused_and_not_taken_for_certain():
    with pytest.raises(DataError, match="last layer to be finite"):
        LastLayer(WEIGHT * torch.nan, LAYER.bias)
    with pytest.raises(DataError, match="`repulsion` to be finite"):
        OutlierExposure(QUERIES * torch.nan, 4).fit(FEATURES, TARGETS)


def test_features_of_another_width_are_refused_in_a_sentence():
    with pytest.raises(DataError, match=r"`features` to be of shape \(samples, 5\), but got shape \(60, 3\)"):
        KNN(LAYER).fit(FEATURES, TARGETS).score(QUERIES[:, :3])
    with pytest.raises(DataError, match=r"`repulsion` to be of shape \(samples, 5\)"):
        Discriminator(LAYER, QUERIES[:, :3]).fit(FEATURES, TARGETS)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_methods_fit_in_whatever_mode_the_caller_is(mode):
    resources = baselines.Resources(LAYER, 3 * QUERIES)
    for name in ("outlier exposure", "discriminator", "LL-Laplace"):
        with mode():
            scores = baselines.build(name, resources).fit(FEATURES, TARGETS).score(QUERIES)
        assert torch.equal(scores, baselines.build(name, resources).fit(FEATURES, TARGETS).score(QUERIES))


def test_knn_in_parts_is_knn_at_once(monkeypatch):
    whole = KNN(LAYER, 3).fit(FEATURES, TARGETS)
    scores = whole.score(QUERIES)
    monkeypatch.setattr("repulse.baselines.knn.MAX_PAIRS", 7 * len(FEATURES))
    assert torch.allclose(scores, whole.score(QUERIES), atol=1e-6)
