"""What there is for every kind of output: each verb either does it, or says in one sentence that it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import repulse
from repulse import DataError, Recipe, RepulseError

pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
RECIPE = Recipe(epochs=2, heads=3)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Steps(nn.Module):
    """Stages at the size of the input, at a half and at a quarter, and a class at every position."""

    def __init__(self, axes):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.first = nn.Sequential(conv(2, 6, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(conv(6, 8, 3, stride=2, padding=1), nn.ReLU())
        self.third = nn.Sequential(conv(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.mix, self.head = nn.Sequential(conv(16, 8, 1), nn.ReLU()), conv(8, 3, 1)
        self.mode = ("linear", "bilinear", "trilinear")[axes - 1]

    def forward(self, x):
        half = self.second(self.first(x))
        coarse = F.interpolate(self.third(half), half.shape[2:], mode=self.mode)
        return F.interpolate(self.head(self.mix(torch.cat([half, coarse], dim=1))), x.shape[2:], mode=self.mode)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(50, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        return self.head(self.mix(self.embed(input_ids).transpose(1, 2)).relu().transpose(1, 2))


def perceptron(outputs):
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, outputs))


def draw(*shape):
    return torch.randint(3, shape, generator=torch.Generator().manual_seed(1))


ROWS, IDS = normal(120, 3), draw(24, 10) + torch.arange(10) + 3
LABELS = (normal(120, 4, seed=2) > 0.5).float()
KINDS: dict[str, tuple[Any, Any, Any, str]] = {
    "classes": (lambda: perceptron(4), ROWS, draw(120), "classification"),
    "shares": (lambda: perceptron(4), ROWS, normal(120, 4).softmax(dim=1), "classification"),
    "labels": (lambda: perceptron(4), ROWS, LABELS, "multilabel"),
    "number": (lambda: perceptron(1), ROWS, ROWS[:, 0], "regression"),
    "numbers": (lambda: perceptron(2), ROWS, ROWS[:, :2], "regression"),
    "pixels": (lambda: Steps(2), normal(24, 2, 8, 12), draw(24, 8, 12), "classification"),
    "steps": (lambda: Steps(1), normal(24, 2, 16), draw(24, 16), "classification"),
    "voxels": (lambda: Steps(3), normal(12, 2, 4, 4, 6), draw(12, 4, 4, 6), "classification"),
    "tokens": (Tagger, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, IDS % 3, "classification"),
}
POSITIONS = ("pixels", "steps", "voxels", "tokens")
KEPT: dict[str, Any] = {}


def data_of(kind):
    """All in one batch, as a loader of the kind gives it."""
    _, inputs, targets, _ = KINDS[kind]
    return {**inputs, "labels": targets} if isinstance(inputs, dict) else (inputs, targets)


def one_of(kind):
    inputs = KINDS[kind][1]
    return {key: value[:1] for key, value in inputs.items()} if isinstance(inputs, dict) else inputs[:1]


def ensemble_of(kind):
    if kind not in KEPT:
        make, _, _, task = KINDS[kind]
        torch.manual_seed(0)
        recipe = RECIPE.replace(task=task)
        KEPT[kind] = repulse.retrofit(make().eval(), [data_of(kind)], recipe=recipe, progress=False)
    return KEPT[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ledger_sums_to_the_whole(kind):
    """Of every kind: for an output at every position, that of a position."""
    ensemble, x = ensemble_of(kind), KINDS[kind][1]
    if kind in POSITIONS:
        size = ensemble.predict(one_of(kind)).epistemic.shape[1:]
        reasons = ensemble.why(one_of(kind), at=[(1,) * len(size), tuple(n - 1 for n in size)])
        alone = ensemble.why(one_of(kind), at=(1,) * len(size))
        assert alone.shares == pytest.approx(reasons[0].shares)
    else:
        reasons = ensemble.why(x[:3])
        assert [reason.epistemic for reason in reasons] == pytest.approx(ensemble.score(x[:3]).tolist(), rel=1e-4)
    for reason in reasons:
        assert sum(reason.shares.values()) == pytest.approx(1, abs=1e-6)
        assert reason.text
        assert "epistemic" in reason.json()


def test_the_ledger_of_several_numbers_has_no_units():
    ensemble = ensemble_of("numbers")
    shares = ensemble.why(ROWS[:1])[0].shares
    reasons = ensemble.why(ROWS[:9])
    assert reasons[0].shares == pytest.approx(shares)
    assert reasons[0].aleatoric is None
    assert len(str(reasons[0].label).split(",")) == len(str(reasons[0].nearest[0].target).split(",")) == 2


def test_reasons_name_labels():
    reason = ensemble_of("labels").why(ROWS[:1])[0]
    held = LABELS[reason.nearest[0].index].nonzero().flatten().tolist()
    assert reason.nearest[0].target == (", ".join(f"label {k}" for k in held) or "no label")


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_to_label_next(kind):
    ensemble, (_, inputs, *_) = ensemble_of(kind), KINDS[kind]
    found = repulse.acquire(ensemble, [inputs], 3)
    scores = ensemble.score(inputs)
    assert_close(scores[found.indices].double(), scores.topk(3).values.double())


@pytest.mark.parametrize("kind", ["shares", "labels", "numbers"])
def test_what_comes_later_and_what_has_to_go(kind):
    ensemble = ensemble_of(kind)
    grown = ensemble.update([(ROWS[:20], KINDS[kind][2][:20])], progress=False)
    for made in (grown, ensemble.forget([0, 5])):
        assert made.score(ROWS[:4]).shape == (4,)


def test_sources_are_compared_where_there_are_several_numbers():
    recipe = Recipe(task="regression", epochs=1, heads=2)
    found = repulse.suggest(perceptron(2), [data_of("numbers")], recipe=recipe, progress=False)
    assert len(found.trials) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_a_row_for_each_input(kind):
    prediction = ensemble_of(kind).predict(KINDS[kind][1])
    frame = prediction.to_frame()
    assert len(frame) == len(prediction)
    if kind in POSITIONS:
        assert_close(torch.tensor(frame["epistemic"].to_numpy()), prediction.score)


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_pictures(kind):
    pytest.importorskip("matplotlib")
    prediction = ensemble_of(kind).predict(ROWS)
    assert prediction.plot(KINDS[kind][2])._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"of shape \(120, "):
        prediction.plot(torch.zeros(120))


@pytest.mark.parametrize("kind", POSITIONS)
def test_deployed_maps(kind):
    ensemble, (_, inputs, *_) = ensemble_of(kind), KINDS[kind]
    module, prediction = ensemble.deploy(), ensemble.predict(inputs)
    answer = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    for name, value in answer._asdict().items():
        assert_close(value, getattr(prediction, name), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["steps", "tokens"])
def test_maps_in_another_runtime(kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    ensemble, (_, inputs, *_) = ensemble_of(kind), KINDS[kind]
    session = runtime.InferenceSession(str(ensemble.export(tmp_path / "maps.onnx")))
    few = inputs[:5] if kind == "steps" else {name: value[:5, :7] for name, value in inputs.items()}
    fed = {one.name: np.asarray(few[one.name] if isinstance(few, dict) else few) for one in session.get_inputs()}
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, fed), strict=True))
    prediction = ensemble.predict(few)
    for name in ("probs", "aleatoric", "epistemic", "total"):
        assert_close(torch.from_numpy(found[name]), getattr(prediction, name), rtol=1e-3, atol=2e-5)


REFUSED = {
    "evaluate shares": (lambda: repulse.evaluate(ensemble_of("shares"), data_of("shares")), "argmax"),
    "gate shares": (lambda: ensemble_of("shares").gate((ROWS + 1, KINDS["shares"][2])), "argmax"),
    "gate labels": (lambda: ensemble_of("labels").gate(data_of("labels")), "gate_within"),
    "gate pixels": (lambda: ensemble_of("pixels").gate(data_of("pixels")), "gate_within"),
    "gate numbers": (lambda: ensemble_of("numbers").gate(data_of("numbers")), "several numbers"),
    "batchbald labels": (lambda: repulse.acquire(ensemble_of("labels"), [ROWS], 3, score="batchbald"), "this score"),
    "audit shares": (lambda: repulse.audit(ensemble_of("shares")), "class indices"),
    "audit labels": (lambda: repulse.audit(ensemble_of("labels")), "one class or one number"),
    "audit numbers": (lambda: repulse.audit(ensemble_of("numbers")), "one class or one number"),
    "audit pixels": (lambda: repulse.audit(ensemble_of("pixels")), "one output per input"),
    "update pixels": (lambda: ensemble_of("pixels").update([data_of("pixels")]), "one output per input"),
    "forget tokens": (lambda: ensemble_of("tokens").forget([0]), "one output per input"),
    "suggest pixels": (
        lambda: repulse.suggest(Steps(2), [data_of("pixels")], progress=False),
        "outputs at every position",
    ),
    "nll pixels": (
        lambda: repulse.metrics.nll(ensemble_of("pixels").predict(KINDS["pixels"][1]), draw(24, 8, 12)),
        "PositionMetrics",
    ),
    "why pixels, many": (lambda: ensemble_of("pixels").why(KINDS["pixels"][1], at=(1, 1)), "one input"),
    "why pixels, nowhere": (lambda: ensemble_of("pixels").why(one_of("pixels")), "8 x 12"),
    "why pixels, outside": (lambda: ensemble_of("pixels").why(one_of("pixels"), at=(8, 1)), "8 x 12"),
    "why classes, at": (lambda: ensemble_of("classes").why(ROWS[:1], at=(1, 1)), "one output per input"),
    "total of numbers": (lambda: repulse.acquire(ensemble_of("numbers"), [ROWS], 3, score="total"), "units differ"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kind_does_not_have_is_said_in_one_sentence(name):
    call, word = REFUSED[name]
    with pytest.raises(RepulseError, match=word):
        call()
