"""Random calls of public functions with right, odd and wrong arguments: a right answer, or one sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import repulse
from repulse import Recipe, functional, metrics
from repulse_lab.campaign.calls_given import FLOATS, ODD, TARGETS, X, Y, fine, some
from repulse_lab.campaign.finding import QUICK, Finding, batches, network, or_refused
from repulse_lab.campaign.verbs import estimators, gates, learning, several

RECIPES: list[dict[str, Any]] = [
    *({}, {"heads": 1}, {"heads": 2, "hidden": (5,)}, {"rule": "svgd"}, {"rule": "ssge"}, {"kernel": "laplace"}),
    *({"space": "parameters"}, {"space": "none"}, {"prior": "function"}, {"bandwidth": 1e-30}, {"strength": 1e30}),
    *({"task": "regression"}, {"task": "regression", "centre": "heads"}, {"whiten": False}, {"batch_size": 10**9}),
    *({"lr": 1e30}, {"prior_std": 1e-30}, {"init": "pretrained"}, {"compare": "jointly"}, {"noise": 1e-30}),
]


def calls(times: int, seed: int) -> Iterator[Finding]:
    """Make this many calls of each kind."""
    draw = random.Random(seed)
    kinds: dict[str, Callable[[random.Random], None]] = {
        "`fit_heads`": _fit_heads,
        "`retrofit` and `predict`": _retrofit,
        "`fit_networks`": _fit_networks,
        "`Recipe`": _recipe,
        "`functional`": _functional,
        "`metrics`": _metrics,
        "`acquire`, `batchbald`, `ActiveLearning`": _active,
        "`repulsion` sources": _sources,
        "gates and watches": gates,
        "`update`, `forget`, `audit`": learning,
        "heads for several labels and numbers": several,
        "the estimators for scikit-learn": estimators,
    }
    for name, call in kinds.items():
        found = Finding("random calls of", name)
        for number in range(times):
            one = random.Random(draw.random())
            with found.trial(f"call {number}"), or_refused(found):
                call(one)
        yield found


def _recipe_of(draw: random.Random) -> Recipe:
    return QUICK.replace(heads=2).replace(**draw.choice(RECIPES))


def _fit_heads(draw: random.Random) -> None:
    recipe = _recipe_of(draw)
    number = recipe.task == "regression"
    right = X[:, 0] if number else Y
    targets = right if draw.random() < 0.8 else some(draw, TARGETS)
    features = X if draw.random() < 0.6 else some(draw, FLOATS)
    repulsion = draw.choice([None, 3 * X]) if draw.random() < 0.8 else some(draw, FLOATS)
    more: dict[str, Any] = {}
    if draw.random() < 0.1:
        more["classes"] = some(draw, [3, 4, 2, 0, -1])
    if draw.random() < 0.2:
        more["validation"] = draw.choice([(X, right), (X, right), (some(draw, FLOATS), some(draw, TARGETS)), 3])
    if draw.random() < 0.3:
        first = 1 if number else 3
        more["start"] = draw.choice([(torch.ones(first, 4), torch.zeros(first)), (X, Y)])
    if draw.random() < 0.1:
        more["taps"] = some(draw, [0, 1, 3, 4, -1])
    heads = repulse.fit_heads(features, targets, repulsion, recipe, progress=False, **more)
    fine(heads.predict(features), len(features))


def _retrofit(draw: random.Random) -> None:
    usual: list[Any] = [batches(), [(X, Y)], [{"x": X, "labels": Y}], [(X, Y), (X[:0], Y[:0])], [X], iter(batches())]
    usual += [[(some(draw, FLOATS), some(draw, TARGETS))] for _ in range(4)]
    usual += [[{"input": X[0], "labels": Y[0]}, {"input": X[1], "labels": Y[1]}]]
    model: Any = (
        network() if draw.random() < 0.9 else draw.choice([network().double(), network().to("meta"), nn.ReLU(), 3])
    )
    more: dict[str, Any] = {}
    if draw.random() < 0.2:
        more["validation"] = draw.choice([batches(), some(draw, usual)])
    if draw.random() < 0.1:
        more["class_names"] = draw.choice([["a", "b", "c"], ["a"], 3, "abc", [1, 2, 3], ()])
    if draw.random() < 0.1:
        more["device"] = draw.choice(["cpu", "nowhere", "cuda:99", torch.device("cpu"), 3.5])
    repulsion = draw.choice([None, "auto", [X], [3 * X], repulse.repulsion.UniformBox()])
    repulsion = repulsion if draw.random() < 0.8 else some(draw, FLOATS)
    data = batches() if draw.random() < 0.6 else some(draw, usual)
    made = repulse.retrofit(model, data, repulsion=repulsion, recipe=_recipe_of(draw), progress=False, **more)
    x = X if draw.random() < 0.5 else some(draw, [*FLOATS, batches(), [X, X], (X, Y), {"x": X}])
    with or_refused():
        prediction = made.predict(x)
        fine(prediction, len(prediction))
        if isinstance(x, Tensor):
            assert bool(made(x).isfinite().all())


def _fit_networks(draw: random.Random) -> None:
    nets: list[Any] = [network(), network()]
    wrong: list[Any] = [[network().requires_grad_(False)], [network().double()], [3], [], 3, network()]
    nets = nets if draw.random() < 0.8 else draw.choice(wrong)
    recipe = draw.choice([QUICK, QUICK.replace(prior="function"), QUICK.replace(space="parameters")])
    x = X if draw.random() < 0.8 else some(draw, FLOATS)
    y = Y if draw.random() < 0.8 else some(draw, TARGETS)
    made = repulse.fit_networks(nets, x, y, draw.choice([None, 2 * X]), recipe, progress=False)
    fine(made.predict(x), len(x))


def _recipe(draw: random.Random) -> None:
    values = [*ODD, 0, -1, 1, 2, 0.5, True, "auto", "none", "kde", (), (3,), 10**30, float("inf"), "median"]
    names = [*Recipe.__dataclass_fields__, "head", "strenght", "Heads"]
    made = Recipe(**{draw.choice(names): draw.choice(values) for _ in range(draw.choice([1, 1, 2]))})
    assert made == eval(repr(made), {"Recipe": Recipe})


def _functional(draw: random.Random) -> None:
    size = draw.choice([1.0, 1e-30, 1e10, 1e18, 3e38])
    outputs = (torch.randn(draw.choice([1, 2, 5]), 4, 3).clamp(-1, 1) * size).requires_grad_()
    how = {
        "on": draw.choice(["logits", "probabilities", "centred_logits", "log_probabilities"]),
        "kernel": draw.choice(["rbf", "imq", "l2", "laplace"]),
        "bandwidth": draw.choice(["median", "median_offdiagonal", 1.0, 1e-3]),
    }
    rule: Any = draw.choice(["kde", "blob", "sge", "ssge", "svgd"])
    compare: Any = draw.choice(["jointly", "pointwise"])
    loss = functional.repulsion(outputs, rule=rule, compare=compare, **how)
    loss.backward()
    assert bool(loss.isfinite()), (size, how, rule, compare)
    assert bool(outputs.grad.isfinite().all()), (size, how, rule, compare)  # pyright: ignore[reportOptionalMemberAccess]
    k = functional.kernel_matrix(outputs, **how)
    assert bool(((k >= 0) & (k <= 1)).all())


def _metrics(draw: random.Random) -> None:
    scores = [X[:, 0], X[:, 0].double(), 0 * X[:, 0], 1e30 * X[:, 0], X[:0, 0], X[:, 0] / 0, X, Y, torch.zeros(1)]
    a, b = (X[:, 0] if draw.random() < 0.5 else some(draw, scores) for _ in range(2))
    value = draw.choice([metrics.auroc, metrics.aupr, metrics.fpr_at_95])(a, b)
    assert 0 <= float(value) <= 1


def _active(draw: random.Random) -> None:
    log_probs = torch.randn(3, 20, 4).log_softmax(dim=-1)
    which = draw.randrange(3)
    if which == 0:
        given = log_probs if draw.random() < 0.5 else some(draw, [log_probs[:1], log_probs[0], log_probs.exp(), X])
        chosen, gains = repulse.batchbald(given, some(draw, [1, 3, 20, 21, 0]))
        assert len(set(chosen.tolist())) == len(chosen) == len(gains)
    elif which == 1:
        learning = repulse.ActiveLearning(X, lambda *_: None)
        learning.tell([0, 1], [2, 1])
        before = dict(learning.known)
        try:
            indices = some(draw, [[3], [4], [60], [-1], [2, 2], [1.5]])
            learning.tell(indices, some(draw, [[0], [2], [1.5], [True], [1, 2], ["a"]]))
        except repulse.RepulseError:
            assert learning.known == before, "changed by a call that failed"
            raise
        assert all(isinstance(label, int) for label in learning.known.values())
    else:
        heads = repulse.fit_heads(X, Y, None, QUICK, progress=False)
        pool, k = some(draw, [X, X[:3], X[:, :2], [X, X]]), some(draw, [1, 5, 60, 61])
        score = draw.choice(["epistemic", "total", "batchbald", "random", "own", "x"])
        found = repulse.acquire(heads, pool, k, score, exclude=some(draw, [(), [0, 1], [99]]))
        assert len(found.indices.unique()) == k


def _sources(draw: random.Random) -> None:
    from repulse import repulsion

    images = torch.rand(4, 3, 8, 8)
    tiles: Any = draw.choice([4, 16, 0, -1, 10**16, 2.5, "x"])
    makes: list[Callable[[], Any]] = [
        *(lambda: repulsion.PatchShuffle(tiles), repulsion.DeadLeaves),
        *(repulsion.PhaseScramble, repulsion.Swirl, repulsion.Shear, repulsion.HalfShuffle, repulsion.Mixup),
        *(repulsion.UniformBox, repulsion.Noise),
    ]
    source = draw.choice(makes)()
    usual = [images, images[:0], images[:1], images[:, :, :0], (255 * images).byte(), images.double(), images[0], X, Y]
    batch = images if draw.random() < 0.4 else draw.choice([*usual, images / 0])
    with or_refused():
        if isinstance(batch, Tensor):
            made = source.sample(batch, torch.Generator().manual_seed(0))
            assert made.shape == batch.shape
            assert made.dtype == batch.dtype
