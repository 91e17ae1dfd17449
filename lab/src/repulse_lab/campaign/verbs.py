"""Random calls of what there is beside a fit and a prediction: gates, watches, updates, several outputs, estimators."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor

import repulse
from repulse.active import audit
from repulse_lab.campaign.calls_given import FLOATS, TARGETS, X, Y, fine, some
from repulse_lab.campaign.finding import QUICK, batches, ensemble, or_refused

LABELS = (X > 0.3).float()


def gates(draw: random.Random) -> None:
    """Make a gate, decide, and watch."""
    settings: dict[str, Any] = {"false_alarms": 0.1}
    for name, values in {
        "false_alarms": [0.05, 0.5, 0, 1, -1, float("nan"), "x", None, True],
        "risk": [None, 0.3, 0.01, 0, 2, "x", float("nan")],
        "delta": [0.1, 0, 1, float("nan")],
        "alpha": [0.1, 0.5, 1e-9, float("nan"), None],
        "sets": [None, "lac", "aps", "raps", "cqr", "x", 3],
        "by_class": [False, True],
        "tolerance": [None, 0.1, 0, float("inf")],
    }.items():
        if draw.random() < 0.08:
            settings[name] = draw.choice(values)
    data = (
        batches() if draw.random() < 0.7 else some(draw, [(X, Y), [(X[:3], Y[:3])], [(X, Y + 1)], [(X, X[:, 0])], [X]])
    )
    gate = copy.copy(ensemble()).gate(data, progress=False, **settings)
    x = X if draw.random() < 0.6 else some(draw, [*FLOATS, batches()])
    decision = gate(x, false_discoveries=draw.choice([None] * 6 + [0.1, 0.1, 0, 2, float("nan")]))
    assert bool(((decision.p_value > 0) & (decision.p_value <= 1)).all()), "no p-value"
    assert sum(decision.counts().values()) == len(decision) == len(decision.records())
    alarm, window = draw.choice([0.01] * 5 + [0.5, 0, float("nan")]), draw.choice([1, 10] * 4 + [0, -1, 2.5])
    watch = gate.watch(alarm, window=window)  # pyright: ignore[reportArgumentType]
    record = watch.update(decision)
    assert record.seen == len(decision)
    assert not len(decision) or 0 <= record.foreign <= 1
    watch.update(X[:5])
    assert "NaN" not in record.json()


def learning(draw: random.Random) -> None:
    """Learn new labels, forget old ones, and look at labels again."""
    made, which = ensemble(), draw.randrange(3)
    if which == 0:
        rows = X if draw.random() < 0.5 else some(draw, FLOATS)
        data = [(rows, Y if draw.random() < 0.5 else some(draw, [*TARGETS, Y + 1, Y + 3, Y + 10**12]))]
        foreign = draw.choice([None, None, 3 * X, [3 * X], some(draw, FLOATS)])
        names = draw.choice([None, None, ["a", "b", "c"], ["a"], "abc", 3])
        given = None if draw.random() < 0.1 else data
        made = made.update(given, foreign=foreign, class_names=names, progress=False)
    elif which == 1:
        made = made.forget(
            some(draw, [[0], [3, 4], [-1], [60], [0, 0], list(range(60)), torch.arange(4), X[0]]), progress=False
        )
    else:
        data = None if draw.random() < 0.4 else [(X, Y if draw.random() < 0.5 else some(draw, TARGETS))]
        found = audit(made, data, progress=False)
        assert bool(found.quality.isfinite().all())
        assert str(found)
    fine(made.predict(X), 60)


def several(draw: random.Random) -> None:
    """Fit heads for several labels, several numbers, and every position."""
    kind = draw.choice(["multilabel", "multilabel", "regression", "regression"])
    right = LABELS if kind == "multilabel" else X[:, :2]
    unknown = torch.where(X > 2, torch.nan, LABELS)
    targets = (
        right if draw.random() < 0.5 else some(draw, [unknown, 2 * LABELS, LABELS.bool(), LABELS.long(), *TARGETS])
    )
    features = X if draw.random() < 0.7 else some(draw, FLOATS)
    recipe = QUICK.replace(task=kind, heads=draw.choice([1, 2, 3]))
    repulsion = draw.choice([None, 3 * X])
    heads = repulse.fit_heads(features, targets, repulsion, recipe, progress=False)
    prediction = heads.predict(X)
    for value in (prediction.total, prediction.aleatoric, prediction.epistemic):
        assert bool(value.isfinite().all()), "not finite"
    assert len(prediction) == 60


def estimators(draw: random.Random) -> None:
    """Fit the estimators of scikit-learn; what scikit-learn refuses itself is a ValueError or TypeError of its own."""
    from repulse.integrations.sklearn import RepulseClassifier, RepulseRegressor

    kind = draw.choice([RepulseClassifier, RepulseRegressor])
    settings: dict[str, Any] = {"epochs": 1, "hidden": (4,), "recipe": None, "random_state": 0}
    if draw.random() < 0.3:
        name = draw.choice(["epochs", "hidden", "lr", "validation_fraction", "repulsion", "weight_decay"])
        settings[name] = draw.choice([0, -1, (), (0,), "x", None, 0.5, float("nan"), 1e30])
    x = X.numpy() if draw.random() < 0.6 else some(draw, [one.numpy() for one in FLOATS if _plain(one)])
    y: Any = Y.numpy() if kind is RepulseClassifier else X[:, 0].numpy()
    y = y if draw.random() < 0.8 else some(draw, [one.numpy() for one in TARGETS if _plain(one)])
    try:
        made = kind(**settings).fit(x, y)
        found = torch.as_tensor(made.predict_uncertainty(x).total)
    except (ValueError, TypeError) as reason:
        with or_refused():
            if "sklearn" not in _module_of(reason):
                raise
        return
    assert bool(found.isfinite().all()), "not finite"


def _plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not value.is_sparse
        and value.device.type == "cpu"
        and value.dtype != torch.bfloat16
    )


def _module_of(reason: BaseException) -> str:
    last = reason.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return "" if last is None else last.tb_frame.f_globals.get("__name__", "")
