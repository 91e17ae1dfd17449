"""One contract, every method: what ranks, tabulates or plots methods may rely on all of this."""

from __future__ import annotations

import copy
import pkgutil
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from repulse import FS_RLL_E, RLL_E, DataError, Recipe, baselines, fit_heads, retrofit
from repulse.baselines import (
    SNGP,
    DeepEnsemble,
    LastLayer,
    LastLayerEnsemble,
    OutlierExposure,
    Predictor,
    RepulsiveDeepEnsemble,
    Resources,
    registry,
)
from repulse.errors import CheckpointError, RecipeError
from repulse.prediction import ClassPrediction

CLASSES, WIDTH = 3, 6
MEANS = 4 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))


def blobs(count: int, seed: int = 0, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    """A Gaussian a class, easy to tell apart."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % classes
    return MEANS[targets] + torch.randn(count, WIDTH, generator=generator), targets


def far(count: int = 200, seed: int = 2) -> torch.Tensor:
    return 12 + 5 * torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def networks() -> list[nn.Module]:
    made = []
    with torch.random.fork_rng():
        for seed in range(3):
            torch.manual_seed(seed)
            made.append(nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES)))
    return made


def train(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, number: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()


def repulsive(recipe):
    return lambda r: RepulsiveDeepEnsemble(networks(), recipe.replace(epochs=20, lr=0.01, seed=r.seed), far())


EVERY = {
    **{name: method.build for name, method in baselines.METHODS.items()},
    "DE-3": lambda r: DeepEnsemble(networks(), train),
    "repulsive DE-3, parameters": repulsive(RLL_E),
    "repulsive DE-3, function": repulsive(FS_RLL_E),
}
BLIND = ("MAP", "MAP + temperature", "MaxLogit", "Energy", "ReAct", "DE-3", "repulsive DE-3, parameters")
"""Methods that only look at logits, which may be large far away, and that use no repulsion samples."""
WHOLE = ("DE-3", "repulsive DE-3, parameters", "repulsive DE-3, function")


def made(name: str, resources: Resources):
    """A method that is quick enough to be fitted many times."""
    method = EVERY[name](resources)
    if isinstance(method, SNGP):
        method.width, method.epochs = 64, 100
    if isinstance(method, OutlierExposure):
        method.steps = 800
    if isinstance(method, LastLayerEnsemble):
        method.recipe = method.recipe.replace(epochs=40, lr=0.02)
    return method


@pytest.fixture(scope="module")
def resources() -> Resources:
    features, targets = blobs(300)
    return Resources(LastLayer.fit(features, targets, CLASSES), far())


@pytest.fixture(scope="module")
def fitted(resources):
    """Every method, fitted once."""
    kept: dict[str, baselines.Method] = {}

    def get(name: str) -> baselines.Method:
        if name not in kept:
            kept[name] = made(name, resources).fit(*blobs(300))
        return kept[name]

    return get


@pytest.mark.parametrize("name", EVERY)
def test_shapes_types_and_the_sum_of_uncertainties(name, fitted):
    x, targets = blobs(50, seed=5)
    prediction, scores = fitted(name).predict_and_score(x)
    assert isinstance(prediction, ClassPrediction)
    assert prediction.log_probs.shape[1:] == (50, CLASSES)
    assert prediction.log_probs.dtype == torch.float32
    assert scores.shape == (50,)
    assert scores.dtype == torch.float32
    assert torch.equal(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert (prediction.epistemic >= 0).all()
    assert torch.allclose(prediction.probs.sum(dim=-1), torch.ones(50), atol=1e-5)
    assert (prediction.labels == targets).float().mean() > 0.9
    assert torch.equal(scores, fitted(name).score(x))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in BLIND])
def test_a_larger_score_is_further_away(name, fitted):
    """A cloud that is pulled away from the data step by step is told from it better and better."""
    inside, ranks = fitted(name).score(blobs(200, seed=5)[0]), []
    for step in (0.0, 0.5, 1.0):
        cloud = fitted(name).score(step * far(200, seed=6) + (1 - step) * blobs(200, seed=6)[0]).unsqueeze(1)
        ranks.append(float((cloud > inside).float().mean() + 0.5 * (cloud == inside).float().mean()))
    assert abs(ranks[0] - 0.5) < 0.1
    assert ranks[0] + 0.1 < min(ranks[1:]), ranks
    assert ranks[2] > 0.7


@pytest.mark.parametrize("name", BLIND)
def test_of_logits_the_undecided_are_further_away(name, fitted):
    undecided = (MEANS[0] + MEANS[1]).unsqueeze(0) / 2
    assert fitted(name).score(undecided) > fitted(name).score(MEANS[:1])


@pytest.mark.parametrize("name", EVERY)
def test_nothing_depends_on_the_batch(name, fitted):
    x = torch.cat([blobs(20, seed=7)[0], far(20, seed=8)])
    whole, scores = fitted(name).predict_and_score(x)
    parts = [fitted(name).predict_and_score(part) for part in x.split(7)]
    assert torch.allclose(whole.log_probs, torch.cat([p.log_probs for p, _ in parts], dim=1), atol=1e-4, rtol=1e-4)
    assert torch.allclose(scores, torch.cat([s for _, s in parts]), atol=1e-4, rtol=1e-4)
    one, score = fitted(name).predict_and_score(x[:1])
    assert len(one) == 1
    assert score.shape == (1,)


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides_all(name, resources):
    x = far(30, seed=9)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = made(name, resources).fit(*blobs(150)).score(x)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, made(name, resources).fit(*blobs(150)).score(x))
    method = made(name, Resources(resources.layer, resources.repulsion, 0, 7))
    assert torch.equal(first, method.fit(*blobs(150)).score(x)) != method.random


@pytest.mark.parametrize("name", EVERY)
def test_extreme_inputs_stay_finite(name, fitted):
    x = torch.cat([torch.zeros(1, WIDTH), 1e6 * far(3), 1e12 * far(3), torch.full((1, WIDTH), -1e12)])
    prediction, scores = fitted(name).predict_and_score(x)
    assert torch.isfinite(scores).all()
    assert torch.isfinite(prediction.probs).all()
    assert torch.isfinite(prediction.total).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WHOLE])
def test_a_class_may_be_missing_or_have_one_sample(name, resources):
    features, targets = blobs(120)
    keep = (targets != 2) | (torch.arange(120) == 2)
    for mask in (targets != 2, keep):
        prediction, scores = made(name, resources).fit(features[mask], targets[mask]).predict_and_score(features)
        assert prediction.log_probs.shape[-1] == CLASSES
        assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WHOLE])
def test_one_training_sample_is_enough_or_refused(name, resources):
    features, targets = blobs(1)
    if name in ("SNGP", "LL-E", "RLL-E", "fs-RLL-E", "repulse"):
        with pytest.raises(DataError, match="at least two classes"):
            made(name, resources).fit(features, targets)
        return
    scores = made(name, resources).fit(features, targets).score(far(4))
    assert scores.shape == (4,)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WHOLE])
def test_a_thousand_classes(name):
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(2000, 8, generator=generator), torch.arange(2000) % 1000
    layer = LastLayer(torch.randn(1000, 8, generator=generator), torch.zeros(1000))
    outside = torch.randn(50, 8, generator=generator)
    method = made(name, Resources(layer, outside))
    if isinstance(method, OutlierExposure):
        method.steps = 20
    if isinstance(method, SNGP):
        method.epochs = 2
    if isinstance(method, LastLayerEnsemble):
        method.recipe = method.recipe.replace(epochs=1)
    if name in ("LL-Laplace (full)", "LL-Laplace (diagonal)"):
        with pytest.raises(DataError, match="'kron' with the closed form"):
            method.fit(features, targets)
        return
    prediction, scores = method.fit(features, targets).predict_and_score(outside)
    assert prediction.log_probs.shape[1:] == (50, 1000)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WHOLE])
def test_saved_and_loaded_it_is_the_same(name, fitted, tmp_path):
    method, path = fitted(name), tmp_path / "method.safetensors"
    if name in ("LL-E", "RLL-E", "fs-RLL-E", "repulse", "MAP + temperature") or "Laplace" in name:
        with pytest.raises(CheckpointError, match="cannot be saved: its `"):
            method.save(path)
        assert not path.exists()
        return
    again = type(method).load(method.save(path))
    assert torch.equal(method.score(far(9)), again.score(far(9)))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="a whole safetensors file"):
        type(method).load(path)


def test_a_file_of_another_method_is_refused(resources, tmp_path):
    path = baselines.build("MAP", resources).fit(*blobs(30)).save(tmp_path / "map.safetensors")
    with pytest.raises(CheckpointError, match="a saved KNN, but got MAP"):
        baselines.KNN.load(path)
    with pytest.raises(CheckpointError, match="No such file"):
        baselines.KNN.load(tmp_path / "none")


@pytest.mark.parametrize("name", EVERY)
def test_bad_input_gets_a_sentence(name, resources):
    features, targets = blobs(30)
    method = made(name, resources)
    kind = method.takes
    with pytest.raises(DataError, match=f"`{kind}` to be finite"):
        method.fit(features * torch.nan, targets)
    with pytest.raises(DataError, match="`targets` to be integers of shape"):
        method.fit(features, targets[:5])
    with pytest.raises(DataError, match="`targets` to be"):
        method.fit(features, targets.float())
    with pytest.raises(DataError, match="not empty"):
        method.fit(features[:0], targets[:0])
    if kind == "features":
        with pytest.raises(DataError, match="classes from 0 to 2"):
            method.fit(features, targets + 1)
        with pytest.raises(DataError, match="of shape"):
            made(name, resources).fit(features.unsqueeze(1), targets)


def test_an_unfitted_method_says_so(resources):
    with pytest.raises(DataError, match="KNN to be fitted first"):
        baselines.build("KNN", resources).score(far(3))


def test_unknown_names_and_missing_samples(resources):
    with pytest.raises(RecipeError, match="Did you mean 'Energy'"):
        baselines.build("energie", resources)
    with pytest.raises(DataError, match="`repulsion` to be features of out-of-distribution samples"):
        baselines.build("outlier exposure", Resources(resources.layer))


@pytest.mark.parametrize("name", EVERY)
def test_attributes_say_what_it_is(name, fitted):
    method = fitted(name)
    assert method.family
    assert method.takes == ("inputs" if name in WHOLE else "features")
    assert method.seconds > 0
    assert isinstance(method, Predictor)


def to_calibrate(method):
    """A copy of a fitted method; heads that are fitted while it is calibrated take few steps."""
    method = copy.deepcopy(method)
    if isinstance(method, OutlierExposure):
        method.steps, method._heads = 60, {}
    return method


@pytest.mark.parametrize("name", EVERY)
def test_calibrating_changes_what_calibrates_and_nothing_else(name, fitted):
    method, x = to_calibrate(fitted(name)), blobs(30, seed=4)[0]
    before = method.predict_and_score(x)
    features, targets = blobs(60, seed=3)
    prediction, scores = method.calibrate(features, targets.roll(1)).predict_and_score(x)  # as wrong as can be
    assert torch.equal(before[0].log_probs, prediction.log_probs) != method.calibrates
    assert method.calibrates or torch.equal(before[1], scores)
    assert method.calibrates == (name in ("MAP + temperature", "SNGP", "tuned outlier exposure", "repulse"))
    if method.calibrates:  # less certain than before
        assert prediction.probs.amax(dim=1).mean() < before[0].probs.amax(dim=1).mean()


@pytest.mark.parametrize("name", [name for name, kind in baselines.METHODS.items() if kind.chosen])
@pytest.mark.parametrize("wrong", [0.02, 0.5])
def test_no_constant_is_chosen_at_an_end_of_what_was_tried(name, wrong, fitted):
    """However wrong the network is, twice and half of what `calibrate` chose are no better."""
    method, (features, targets) = to_calibrate(fitted(name)), blobs(100, seed=3)
    targets = torch.where(torch.arange(100) < 100 * wrong, targets.roll(1), targets)
    method.calibrate(features, targets)
    for field in method.chosen:
        best = getattr(method, field)
        losses = []
        for value in (best / 2, best, 2 * best):
            setattr(method, field, value)
            if name == "tuned outlier exposure":
                method.layer = method._head(*method._known, value)
            losses.append(nn.functional.nll_loss(method.predict(features).log_probs[0], targets))
        assert losses[1] <= min(losses[0], losses[2])


def test_what_uses_repulsion_samples_changes_with_them(resources):
    other = Resources(resources.layer, far(seed=11))
    for name, kind in baselines.METHODS.items():
        first, second = (made(name, one).fit(*blobs(60)).score(far(5)) for one in (resources, other))
        assert torch.equal(first, second) != kind.uses_repulsion, name


def test_a_method_is_listed_by_its_class_alone(resources, monkeypatch):
    monkeypatch.setattr(registry, "METHODS", dict(baselines.METHODS))

    @baselines.register
    @dataclass
    class FeatureNorm(baselines.Detector):
        name = "feature norm"
        family = "distance"

        def _score(self, features, prediction):
            return -features.norm(dim=1)

    assert list(registry.METHODS)[:3] == ["MAP", "MAP + temperature", "MaxLogit"]
    assert list(registry.METHODS).index("feature norm") < list(registry.METHODS).index("DDU")  # by family
    features, targets = blobs(30)
    method = registry.build("feature norm", resources).fit(features, targets)
    assert torch.allclose(method.score(features), -features.norm(dim=1))
    with pytest.raises(RecipeError, match="`name` to be of one method only, but got 'feature norm' twice"):
        baselines.register(type("Other", (FeatureNorm,), {}))


def test_a_new_file_is_found_without_being_named(tmp_path, monkeypatch):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "__init__.py").write_text("")
    (tmp_path / "strange" / "norm.py").write_text("FOUND = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.import_methods("strange", [str(tmp_path / "strange")])
    assert sys.modules["strange.norm"].FOUND
    named = {module.name for module in pkgutil.iter_modules(baselines.__path__)}
    assert {f"repulse.baselines.{name}" for name in named} <= set(sys.modules)


def test_heads_and_ensembles_keep_the_contract_too():
    features, targets = blobs(60)
    heads = fit_heads(features, targets, far(), Recipe(epochs=2), progress=False)
    network = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, CLASSES))
    ensemble = retrofit(
        network, [(features, targets)], repulsion=far(), recipe=Recipe(epochs=2, layers="last"), progress=False
    )
    for method in (heads, ensemble):
        assert isinstance(method, Predictor)
        prediction, scores = method.predict_and_score(features)
        assert torch.equal(scores, prediction.epistemic)
        assert torch.equal(scores, method.score(features))
    alone = fit_heads(features, targets, None, Recipe(heads=1, epochs=2, space="none"), progress=False)
    assert torch.equal(alone.score(features), alone.predict(features).total)  # nothing to disagree with
