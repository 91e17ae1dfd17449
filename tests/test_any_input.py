"""Public calls with whatever hypothesis comes up with: a right answer, or one sentence that names what is wrong."""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import repulse
from models import normal, perceptron
from repulse import Recipe, RepulseError, metrics
from repulse.repulsion import UniformBox

pytestmark = pytest.mark.filterwarnings("ignore")
FEW, SOME = (settings(max_examples=count, deadline=None, derandomize=True, database=None) for count in (6, 40))
X, Y = normal(24, 4), torch.arange(24) % 3
QUICK = Recipe(epochs=1, heads=2, repulsion_samples=20)
BATCHES = list(zip(X.split(8), Y.split(8), strict=True))

FLOATS = [torch.float32] * 3 + [torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.uint8, torch.uint16, torch.bool, torch.complex64]
SIZES = [1.0] * 4 + [0.0, 1e-40, 1e-30, 1e-5, 1e5, 1e18, 1e20, 3e38]
SPOILS = ["nothing"] * 6 + ["NaN", "infinity", "sparse", "meta", "one value of 1e20", "gradients", "transposed"]


@st.composite
def tensors(draw, columns=4):
    """Numbers of any type, shape and size, some with something odd about them."""
    usual = st.tuples(st.integers(0, 30), st.just(columns))
    shape = draw(usual | usual | st.lists(st.integers(0, 5), max_size=3).map(tuple))
    found = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))) * draw(
        st.sampled_from(SIZES)
    )
    spoil = draw(st.sampled_from(SPOILS))
    if found.numel() and spoil in ("NaN", "infinity", "one value of 1e20"):
        found.view(-1)[-1] = {"NaN": torch.nan, "infinity": torch.inf}.get(spoil, 1e20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not finite becomes some integer
        found = found.to(draw(st.sampled_from(DTYPES)))
    number = found.is_floating_point() or found.is_complex()
    changes = {"sparse": lambda x: x.to_sparse() if number else x, "meta": lambda x: x.to("meta")}
    changes["transposed"] = lambda x: x.mT if x.ndim > 1 else x
    changes["gradients"] = lambda x: x.requires_grad_() if number else x
    return changes.get(spoil, lambda x: x)(found)


@st.composite
def classes(draw, rows=24):
    """Class indices of any type and shape, some of them of no class."""
    low, high = draw(st.sampled_from([(0, 2)] * 4 + [(-1, 2), (0, 3), (0, 200), (1, 1)]))
    drawn = torch.tensor(draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows)))
    shape = draw(st.sampled_from([(rows,)] * 5 + [(rows, 1), (1, rows), (rows // 2, 2)]))
    return drawn.view(shape).to(draw(st.sampled_from([torch.int64] * 4 + DTYPES)))


NO_TENSOR = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.floats(), max_size=3)


def mostly(usual, *others):
    """Draw the usual thing three times of four, so that what comes after it is reached."""
    return st.integers(0, 3).flatmap(lambda odd: st.one_of(*others) if odd == 3 else st.just(usual))


INPUTS = mostly(X, tensors(), tensors(), NO_TENSOR)
TARGETS = mostly(Y, classes(), classes(), tensors(), NO_TENSOR)


@pytest.fixture(autouse=True, scope="module")
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@contextmanager
def refused_in_a_sentence():
    """Let an error of the library pass if it is one sentence."""
    message = "Expected it to be right, but got right."
    try:
        yield
    except RepulseError as reason:
        message = str(reason)
    assert re.fullmatch(r"(Expected .+ to be .+, but got .+|The loss became .+)[.?]", message), message


def network(outputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return perceptron(outputs)


def fitted(data=BATCHES, repulsion=None, recipe=QUICK, **more):
    return repulse.retrofit(network(), data, repulsion=repulsion, recipe=recipe, progress=False, **more)


@pytest.fixture(scope="module")
def ensemble():
    return fitted(repulsion=UniformBox(-3, 3))


def check(prediction, rows):
    """Check what every prediction promises."""
    assert len(prediction) == rows
    parts = prediction.total, prediction.aleatoric, prediction.epistemic
    assert all(bool(part.isfinite().all()) for part in parts)
    assert torch.allclose(prediction.total, prediction.aleatoric + prediction.epistemic, rtol=1e-4, atol=1e-5)
    assert bool((prediction.epistemic >= -1e-5).all())
    if isinstance(prediction, repulse.ClassPrediction):
        assert torch.allclose(prediction.probs.sum(dim=-1), torch.ones(rows).to(prediction.probs), atol=1e-4)
        assert torch.equal(prediction.labels, prediction.probs.argmax(dim=-1))


@SOME
@given(INPUTS, TARGETS, mostly(3 * X, st.none(), tensors()))
def test_fit_heads(features, targets, repulsion):
    with refused_in_a_sentence():
        heads = repulse.fit_heads(features, targets, repulsion, QUICK, progress=False)
        check(heads.predict(features), len(features))
        assert len(targets) == len(features)


@SOME
@given(INPUTS, st.sampled_from(["regression", "multilabel"]), mostly(None, tensors(), tensors(columns=2), NO_TENSOR))
def test_fit_heads_of_other_tasks(features, task, odd):
    targets = (X[:, :2] if task == "regression" else (X > 0).float()) if odd is None else odd
    with refused_in_a_sentence():
        heads = repulse.fit_heads(features, targets, None, QUICK.replace(task=task), progress=False)
        check(heads.predict(features), len(features))
        assert len(targets) == len(features)


NETWORKS = [network] * 6 + [lambda: network(2), lambda: network().double(), lambda: network().requires_grad_(False), 3]


@SOME
@given(mostly([network, network], st.lists(st.sampled_from(NETWORKS), max_size=3), NO_TENSOR), INPUTS, TARGETS)
def test_fit_networks(makes, inputs, targets):
    networks = [make() if callable(make) else make for make in makes] if isinstance(makes, list) else makes
    with refused_in_a_sentence():
        made = repulse.fit_networks(networks, inputs, targets, None, QUICK, progress=False)
        check(made.predict(inputs), len(inputs))


@SOME
@given(INPUTS, TARGETS, mostly(UniformBox(-3, 3), st.none(), st.just("auto"), INPUTS, INPUTS.map(lambda x: [x])))
def test_retrofit(inputs, targets, repulsion):
    with refused_in_a_sentence():
        made = fitted([(inputs, targets)], repulsion)
        check(made.predict(X), len(X))
        assert made.heads.task.class_count == 3


@SOME
@given(data=INPUTS | INPUTS | INPUTS.map(lambda x: [x]) | INPUTS.map(lambda x: {"x": x}))
def test_predict(ensemble, data):
    with refused_in_a_sentence():
        found = ensemble.predict(data)
        whole = torch.cat(data) if isinstance(data, list) else data
        check(found, len(whole))
        if len(whole) > 1:
            alone = ensemble.predict(whole[-1:])
            assert torch.allclose(alone.probs[0], found.probs[-1], atol=1e-5)


LEVELS = ("false_alarms", "alpha", "delta")
ODD_LEVELS = st.fixed_dictionaries({}, optional={name: st.floats() | NO_TENSOR for name in (*LEVELS, "risk")})


@SOME
@given(
    data=st.tuples(INPUTS, TARGETS),
    levels=mostly({"false_alarms": 0.2}, st.fixed_dictionaries({name: st.floats(0, 1) for name in LEVELS}), ODD_LEVELS),
    inputs=INPUTS,
)
def test_gate(ensemble, data, levels, inputs):
    with refused_in_a_sentence():
        decision = ensemble.gate(data, progress=False, **levels)(inputs)
        assert len(decision) == len(inputs) == sum(decision.counts().values())
        assert bool(((decision.p_value > 0) & (decision.p_value <= 1)).all())
        assert bool(((decision.p_value <= levels.get("false_alarms", 0.05)) == decision.foreign).all())


@SOME
@given(inputs=INPUTS, targets=TARGETS, foreign=mostly(None, tensors(), tensors().map(lambda x: [x])))
def test_update(ensemble, inputs, targets, foreign):
    with refused_in_a_sentence():
        made = ensemble.update([(inputs, targets)], foreign=foreign, progress=False)
        check(made.predict(X), len(X))
        assert torch.equal(made.kept.train[:24], ensemble.kept.train)
        assert torch.equal(made.kept.targets[24:], targets.reshape(-1).long())


@FEW
@given(INPUTS, TARGETS, mostly([UniformBox(-3, 3)], NO_TENSOR), mostly(24, st.integers(-1, 40)))
def test_suggest(inputs, targets, candidates, samples):
    with refused_in_a_sentence():
        found = repulse.suggest(
            network(), [(inputs, targets)], candidates=candidates, recipe=QUICK, samples=samples, progress=False
        )
        assert found.trials[0].source == "nowhere"
        check(fitted(repulsion=found.repulsion, recipe=found.recipe).predict(X), len(X))


@SOME
@given(
    pool=INPUTS | INPUTS.map(lambda x: [x]),
    k=mostly(3, st.integers(-1, 30), NO_TENSOR),
    score=st.sampled_from(["epistemic", "total", "batchbald", "random", "own", "totl"]),
    exclude=mostly((), st.lists(st.integers(0, 20), max_size=5), st.lists(st.integers(-1, 30)), NO_TENSOR),
)
def test_acquire(ensemble, pool, k, score, exclude):
    with refused_in_a_sentence():
        found = repulse.acquire(ensemble, pool, k, score, exclude=exclude, progress=False)
        whole = torch.cat(pool) if isinstance(pool, list) else pool
        assert len(set(found.indices.tolist()) - set(exclude)) == k
        assert int(found.indices.max()) < len(whole)
        if score in ("epistemic", "total"):
            left = [i for i in range(len(whole)) if i not in exclude]
            every = getattr(ensemble.predict(whole), score)[left].sort(descending=True).values
            assert torch.allclose(found.scores, every[:k].to(found.scores), atol=1e-5)


VECTORS = mostly(X[:, 0], tensors(), tensors().map(lambda x: x if x.is_sparse else x.flatten()), NO_TENSOR)
OF_SCORES = (metrics.auroc, metrics.aupr, metrics.fpr_at_95)


@SOME
@given(VECTORS, VECTORS)
def test_metrics_of_scores(inside, outside):
    for metric in OF_SCORES:
        with refused_in_a_sentence():
            assert 0 <= metric(inside, outside) <= 1
    with refused_in_a_sentence():
        assert metrics.auroc(inside, outside) == pytest.approx(1 - metrics.auroc(outside, inside), abs=1e-9)


@SOME
@given(uncertainty=VECTORS, wrong=mostly(X[:, 1] > 0, tensors(), st.lists(st.booleans()).map(torch.tensor), NO_TENSOR))
def test_metrics_of_mistakes(uncertainty, wrong):
    for metric in (metrics.aurc, metrics.coverage_at_risk):
        with refused_in_a_sentence():
            assert 0 <= metric(uncertainty, wrong) <= 1


@SOME
@given(targets=TARGETS, bins=mostly(15, st.integers(-1, 20), NO_TENSOR))
def test_metrics_of_predictions(ensemble, targets, bins):
    prediction = ensemble.predict(X)
    measured = (metrics.accuracy, metrics.brier, metrics.nll, metrics.misclassification_auroc)
    for metric in (*measured, lambda p, y: metrics.ece(p, y, bins)):
        with refused_in_a_sentence():
            value = metric(prediction, targets)
            assert 0 <= value <= (100 if metric is metrics.nll else 2)
    with refused_in_a_sentence():
        found = metrics.accuracy(prediction, targets)
        assert found == pytest.approx(sum(map(int.__eq__, prediction.labels.tolist(), targets.tolist())) / 24)


@SOME
@given(tensors() | tensors().map(lambda x: x.unsqueeze(0)) | NO_TENSOR, st.sampled_from(["jointly", "pointwise"]))
def test_functional(outputs, compare):
    from repulse import functional

    with refused_in_a_sentence():
        loss = functional.repulsion(outputs, compare=compare)
        assert bool(loss.isfinite()) == bool(outputs.isfinite().all())
    with refused_in_a_sentence():
        k = functional.kernel_matrix(outputs)
        assert bool(((k >= 0) & (k <= 1)).all()) or not bool(outputs.isfinite().all())
