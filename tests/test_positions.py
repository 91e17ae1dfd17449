"""Outputs at every position: pixels, steps, voxels and tokens, from the split to the metrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import repulse
from repulse import BackboneError, DataError, DensePrediction, Recipe, TokenPrediction, metrics
from repulse.backbone.position_features import RowSample, changed_share, compute_position_features, draw_positions
from repulse.backbone.positions import FeatureMap, at_size, interpolated, resized
from repulse.backbone.split import split
from repulse.particles import at_positions
from repulse.particles.heads import Heads
from repulse.repulsion import Pasted, ReplacedWords

pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")
QUICK = Recipe(epochs=3, heads=4)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Dense(nn.Module):
    """A stem at half the size, a last layer at every position, and an interpolation to the size of the input."""

    def __init__(self, mode="bilinear", classes=3, axes=2, **how):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.stem = nn.Sequential(conv(2, 6, 3, padding=1), nn.ReLU())
        self.body = nn.Sequential(conv(6, 8, 3, padding=1, stride=2), nn.ReLU())
        self.head, self.mode, self.how = conv(8, classes, 1), mode, how

    def forward(self, x):
        z = self.head(self.body(self.stem(x)))
        return z if self.mode is None else F.interpolate(z, x.shape[2:], mode=self.mode, **self.how)


class Permuted(nn.Module):
    """A linear layer on positions in a row, as in a vision transformer, given back as an image."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        rows = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(rows).transpose(1, 2).unflatten(2, x.shape[2:])


IMAGES = normal(12, 2, 12, 16)
ENDINGS = {
    "as it is": (lambda: Dense(None), IMAGES, "", "none"),
    "bilinear": (lambda: Dense("bilinear"), IMAGES, "linear", "none"),
    "aligned": (lambda: Dense("bilinear", align_corners=True), IMAGES, "linear_aligned", "none"),
    "nearest": (lambda: Dense("nearest"), IMAGES, "nearest", "none"),
    "softmax": (lambda: nn.Sequential(Dense("bilinear"), nn.Softmax(dim=1)), IMAGES, "linear", "softmax"),
    "linear layer": (Permuted, IMAGES, "", "none"),
    "signals": (lambda: Dense("linear", axes=1), normal(4, 2, 20), "linear", "none"),
    "volumes": (lambda: Dense("trilinear", axes=3), normal(2, 2, 6, 8, 4), "linear", "none"),
}


@pytest.mark.parametrize("mode", ["nearest", "linear", "linear_aligned"])
@pytest.mark.parametrize("size", [(11,), (9, 14), (5, 7, 6)])
def test_interpolation_is_that_of_torch(mode, size):
    values = normal(2, 3, *[3 + i for i in range(len(size))])
    name = "nearest" if mode == "nearest" else ("linear", "bilinear", "trilinear")[len(size) - 1]
    wanted = F.interpolate(values, size, mode=name, **({"align_corners": True} if mode == "linear_aligned" else {}))
    assert_close(resized(values, size, mode), wanted)
    some = torch.tensor([0, 3, math.prod(size) - 1])
    assert_close(interpolated(values[1], some, size, mode), wanted[1].flatten(1)[:, some].T)


def test_a_mapping_with_the_output_of_a_segmentation_network():
    """Those of torchvision return `{"out": ..., "aux": ...}`."""

    class Mapped(Dense):
        def forward(self, x):
            return {"out": super().forward(x), "aux": x}

    backbone = split(Mapped().eval(), IMAGES)
    assert (backbone.ending.layers, backbone.ending.resize) == (("head",), "linear")


def test_finer_stages_are_averaged():
    values = normal(2, 3, 8, 6)
    assert_close(at_size(values, (4, 3)), F.avg_pool2d(values, 2))


class Stages(nn.Module):
    """Stages at a half, a quarter, an eighth and a sixteenth of the size, added up at full size."""

    def __init__(self):
        super().__init__()
        widths = [2, 6, 8, 10, 12]
        pairs = zip(widths, widths[1:], strict=False)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs
        )
        self.lateral, self.head = nn.ModuleList(nn.Conv2d(c, 6, 1) for c in widths), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        whole, now = self.lateral[0](x), x
        for stage, lateral in zip(self.stages, self.lateral[1:], strict=True):
            now = stage(now)
            whole = whole + F.interpolate(lateral(now), x.shape[2:])
        return self.head(whole.relu())


def test_stages_that_see_whole_scenes_are_tapped_only_if_named():
    torch.manual_seed(0)
    model, x = Stages().eval(), normal(2, 2, 32, 48)
    tapped = {tap.name for tap in split(model, x, layers="auto").taps}
    assert {"stages.0", "stages.1"} <= tapped
    assert not {"stages.2", "stages.3"} & tapped  # eight positions, and sixteen, share one of theirs along each axis
    named = split(model, x, layers=["stages.3"])
    assert [tap.name for tap in named.taps] == ["stages.3"]
    assert named.locate(x).columns == 6 + 12


@pytest.mark.parametrize("name", ENDINGS)
def test_endings_are_recognised(name):
    make, inputs, resize, activation = ENDINGS[name]
    torch.manual_seed(0)
    model = make().eval()
    backbone = split(model, inputs, layers="auto")
    assert (backbone.ending.positions, backbone.ending.resize) == ("channels_first", resize)
    assert backbone.ending.activation == activation
    found = backbone.locate(inputs)
    assert found.size == tuple(model(inputs).shape[2:])
    assert found.columns == backbone.width


@pytest.mark.parametrize("name", ["bilinear", "as it is", "volumes", "linear layer"])
def test_a_few_rows_at_a_time_give_what_all_at_once_give(name, monkeypatch):
    """Each head's logits interpolated by torch, then softmax and entropies, as algorithm and formula say."""
    make, inputs, *_ = ENDINGS[name]
    torch.manual_seed(0)
    model = make().eval()
    size = model(inputs).shape[2:]
    target = torch.randint(3, (len(inputs), *size), generator=torch.Generator().manual_seed(1))
    ensemble = repulse.retrofit(model, [(inputs, target)], recipe=QUICK, progress=False)
    monkeypatch.setattr(at_positions, "ELEMENTS", 200)
    p = ensemble.predict(inputs)
    found = ensemble.backbone.locate(inputs)
    rows = ensemble.heads(found.all_rows())
    maps = rows.unflatten(1, (len(inputs), *found.grid)).movedim(-1, 2)
    mode = (None, "linear", "bilinear", "trilinear")[len(found.grid)]
    if found.resize:
        maps = torch.stack([F.interpolate(one, found.size, mode=mode) for one in maps])
    probs = maps.softmax(dim=2)
    assert_close(p.probs, probs.mean(dim=0), rtol=1e-4, atol=1e-6)
    assert_close(p.aleatoric, torch.special.entr(probs).sum(dim=2).mean(dim=0), rtol=1e-4, atol=1e-5)
    assert_close(p.total, torch.special.entr(probs.mean(dim=0)).sum(dim=1), rtol=1e-3, atol=1e-5)
    assert_close(ensemble(inputs).exp(), p.probs, rtol=1e-4, atol=1e-6)
    assert p.epistemic.shape == target.shape


@pytest.mark.parametrize("size", [1.0, 30.0, 3000.0])
def test_logits_of_any_size_give_finite_maps(size):
    """Between two positions that are sure of different classes, all logits are far below those of both."""
    heads = Heads(3, 4, repulse.tasks.Classification(4), generator=torch.Generator().manual_seed(0)).requires_grad_(
        False
    )
    found = FeatureMap(size * normal(2, 4, 3, 4), (), (9, 12), "linear")
    p = at_positions.predict_positions(heads, found, channels_last=False)
    logits = heads(found.features.double().movedim(1, -1).flatten(0, 2).float()).double()
    maps = logits.view(3, 2, 3, 4, 4).movedim(-1, 2)
    probs = torch.stack([F.interpolate(one, (9, 12), mode="bilinear") for one in maps]).softmax(dim=2)
    assert_close(p.probs, probs.mean(dim=0).float(), rtol=0, atol=2e-5 * max(size, 10) / 10)
    assert_close(
        p.total, torch.special.entr(probs.mean(dim=0)).sum(dim=1).float(), rtol=0, atol=1e-4 * max(size, 10) / 10
    )


@given(st.integers(2, 5), st.integers(2, 4), st.floats(0.1, 50), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_the_two_parts_at_every_position(n, classes, size, seed):
    heads = Heads(n, 3, repulse.tasks.Classification(classes), generator=torch.Generator().manual_seed(seed))
    found = FeatureMap(size * normal(2, 3, 4, 5, seed=seed), (), (4, 5), "")
    p = at_positions.predict_positions(heads.requires_grad_(False), found, channels_last=False)
    assert_close(p.total, p.aleatoric + p.epistemic)
    assert bool((p.epistemic >= 0).all() and (p.epistemic <= math.log(n) + 1e-6).all())
    assert bool((p.total <= math.log(classes) + 1e-4).all())
    heads.weights[0].copy_(heads.weights[0].flip(0))
    heads.biases[0].copy_(heads.biases[0].flip(0))
    assert_close(at_positions.predict_positions(heads, found, channels_last=False).epistemic, p.epistemic)
    heads.weights[0].copy_(heads.weights[0][:1].expand_as(heads.weights[0]))
    heads.biases[0].copy_(heads.biases[0][:1].expand_as(heads.biases[0]))
    same = at_positions.predict_positions(heads, found, channels_last=False)
    assert_close(same.epistemic, torch.zeros_like(same.epistemic), rtol=0, atol=1e-5)


def test_sampled_positions_are_bounded_balanced_and_known():
    target = torch.zeros(40, 40, dtype=torch.int64)
    target[:4, :4] = 1  # one in a hundred
    target[20:, :] = 255
    chosen = draw_positions(target, target != 255, 100, True, torch.Generator().manual_seed(0))
    labels = target.flatten()[chosen]
    assert len(chosen) == len(chosen.unique()) == 100
    assert not bool((labels == 255).any())
    assert 5 <= int((labels == 1).sum()) <= 16  # by the root of its size, not one in a hundred
    kept = RowSample(50, 30, torch.Generator().manual_seed(0))
    for i in range(20):
        kept.add(torch.full((kept.per_input, 2), float(i)), torch.zeros(kept.per_input))
        assert sum(len(rows) for rows, _ in kept.parts) <= 100
    assert len(kept.rows()[0][:, 0].unique()) >= 10  # early and late inputs


@pytest.fixture(scope="module")
def textures():
    """Images whose left half is stripes and right half is noise, a network that tells them apart, and an ensemble."""
    torch.manual_seed(0)
    stripes = torch.sin(torch.arange(16.0) * 2.5).view(1, 1, 16, 1).expand(40, 2, 16, 12)
    images = torch.cat([stripes + 0.1 * normal(40, 2, 16, 12), 0.3 * normal(40, 2, 16, 12, seed=1)], dim=3)
    target = (torch.arange(24) >= 12).long().view(1, 1, 24).expand(40, 16, 24).clone()
    target[:, :2] = 255
    model = Dense("bilinear", classes=2)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        adam.zero_grad()
        F.cross_entropy(model(images), target, ignore_index=255).backward()
        adam.step()
    data = list(zip(images.split(8), target.split(8), strict=True))
    recipe = Recipe(epochs=4, heads=5)
    return (
        model,
        images,
        target,
        data,
        repulse.retrofit(model, data[:4], validation=data[4:], recipe=recipe, progress=False),
    )


def test_pixels_from_the_fit_to_the_file(textures, tmp_path):
    model, images, target, data, ensemble = textures
    p = ensemble.predict(images)
    assert isinstance(p, DensePrediction)
    assert p.epistemic.shape == p.labels.shape == (40, 16, 24)
    assert p.score.shape == (40,)
    ensemble.save(tmp_path)
    assert_close(repulse.load(tmp_path, model).predict(images).epistemic, p.epistemic, rtol=0, atol=0)
    assert_close(ensemble.predict(data).epistemic, p.epistemic)
    assert_close(p[3:5].probs, p.probs[3:5])
    told = repulse.evaluate(ensemble, data, {"noise": 3 * normal(8, 2, 16, 24)}, progress=False)
    known = target != 255
    assert told.task == "positions"
    assert told.id["accuracy"] == pytest.approx(float((p.labels == target)[known].float().mean()))
    assert told.id["nll"] == pytest.approx(-float(p.log_likelihood(target)[known].mean()), rel=1e-5)
    flat = repulse.ClassPrediction(p.probs.movedim(1, -1)[known].log().unsqueeze(0))
    assert told.id["ece"] == pytest.approx(metrics.ece(flat, target[known]), abs=1e-6)
    ious = [_iou(p.labels[known] == k, target[known] == k) for k in range(2)]
    assert told.id["mean_iou"] == pytest.approx(sum(ious) / 2)
    assert told.ood["noise"]["auroc"] > 0.9
    assert "mean iou" in repr(told)


def _iou(found, wanted):
    return float((found & wanted).sum() / (found | wanted).sum())


def test_heads_disagree_inside_of_what_was_pasted(textures):
    _, images, _, _, ensemble = textures
    pasted = images.clone()
    pasted[:, :, 4:12, 6:14] = 4 * torch.sign(normal(40, 2, 8, 8, seed=9))
    p = ensemble.predict(pasted)
    inside, outside = p.epistemic[:, 5:11, 7:13].flatten(), p.epistemic[:, 4:12, 20:].flatten()
    assert metrics.auroc(outside, inside) > 0.9


def test_pasting_changes_the_inside_alone():
    images = normal(6, 3, 32, 40)
    samples = Pasted().sample(images, torch.Generator().manual_seed(0))
    changed = (samples != images).any(dim=1)
    opaque = Pasted(opacity=1.0).sample(images, torch.Generator().manual_seed(0))
    assert_close(samples, (images + opaque) / 2)
    with pytest.raises(repulse.RecipeError, match="opacity"):
        Pasted(opacity=1.5)
    share = changed.float().mean(dim=(1, 2))
    assert bool((share > 0).all() and (share < 0.9).all())
    grid = changed_share(images, samples, (16, 20))
    assert_close(grid, F.avg_pool2d(changed.float(), 2))
    ids = torch.randint(5, 99, (4, 30), generator=torch.Generator().manual_seed(1))
    ids[:, 0], ids[:, -1] = 1, 2
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    replaced = ReplacedWords(0.3).sample(batch, torch.Generator().manual_seed(0))
    assert bool((replaced["input_ids"][:, [0, -1]] == ids[:, [0, -1]]).all())
    assert 0.1 < float(changed_share(batch, replaced, (30,)).mean()) < 0.45


def test_ignored_positions_take_no_part(textures):
    model, _, _, data, _ = textures
    backbone = split(model, data[0][0])
    features = compute_position_features(backbone, data, None, rows=300, progress=False)
    assert set(features.targets.tolist()) == {0, 1}
    assert len(features.train) <= 600
    other = [(x, torch.where(y == 255, -100, y)) for x, y in data]
    again = compute_position_features(backbone, other, None, rows=300, progress=False)
    assert_close(again.train, features.train)
    smaller = [(x, y[:, ::2, ::2]) for x, y in data]  # labels of another size: the nearest
    assert len(compute_position_features(backbone, smaller, None, rows=300, progress=False).train) <= 600


WRONG = {
    "a class that is not there": (lambda d: (d, {}), 7, ["from 0 to 1", "-100", "but got 7"]),
    "regression": (lambda d: (d, {"recipe": Recipe(task="regression")}), 1, ["classifier", "every position"]),
    "a cache": (lambda d: (d, {"cache": "somewhere"}), 1, ["cache", "every position"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_had_at_every_position(name, textures):
    how, value, words = WRONG[name]
    model, _, _, data, _ = textures
    batches, arguments = how([(x, torch.where(y == 1, value, y)) for x, y in data])
    with pytest.raises((BackboneError, DataError)) as error:
        repulse.retrofit(model, batches, progress=False, **arguments)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_verbs_that_are_for_one_output_per_input_say_so(textures):
    _, _, _, data, ensemble = textures
    for verb in (lambda: ensemble.forget([0]), lambda: ensemble.update(data)):
        with pytest.raises(DataError, match="one output per input"):
            verb()
    with pytest.raises(DataError):
        ensemble.gate(data)


def test_pictures(textures, tmp_path):
    pytest.importorskip("matplotlib")
    _, images, _, _, ensemble = textures
    p = ensemble.predict(images[:2])
    figure = p.plot(images[:2, :1], sample=1, class_names=["stripes", "noise"], path=tmp_path / "maps.png")
    titles = [axes.get_title() for axes in figure.axes[:4]]
    assert titles == ["image", "prediction", "aleatoric, nats", "epistemic, nats"]
    assert (tmp_path / "maps.png").stat().st_size > 1000
    with pytest.raises(repulse.CheckpointError, match="a file that can be written"):
        p.plot(path=tmp_path / "maps.png" / "below.png")


class Tagger(nn.Module):
    """A text tagger that sees its neighbours, called as those of Hugging Face are."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(50, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.embed(input_ids) * attention_mask.unsqueeze(2)
        return {"logits": self.head(self.mix(x.transpose(1, 2)).relu().transpose(1, 2))}


def test_tokens():
    torch.manual_seed(0)
    ids = torch.randint(3, 50, (32, 10), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[::2, 7:] = 0
    labels = torch.where(mask.bool(), ids % 3, -100)
    data = [
        {"input_ids": i, "attention_mask": m, "labels": y}
        for i, m, y in zip(ids.split(8), mask.split(8), labels.split(8), strict=True)
    ]
    ensemble = repulse.retrofit(Tagger(), data, recipe=QUICK, progress=False)
    assert ensemble.backbone.ending.positions == "channels_last"
    p = ensemble.predict(data[0])
    assert isinstance(p, TokenPrediction)
    assert p.probs.shape == (8, 10, 3)
    by_hand = (p.epistemic * mask[:8]).sum(dim=1) / mask[:8].sum(dim=1)
    assert_close(p.score, by_hand)
    shorter = {key: value[:, :7] for key, value in data[1].items()}
    both = ensemble.predict([data[0], shorter])
    assert both.probs.shape == (16, 10, 3)
    assert_close(both.score[8:], ensemble.predict(shorter).score)
    words = p.words([[None, 0, 0, 1, 2, 2, 2, None, None, None]] * 8)
    assert words.probs.shape == (8, 3, 3)
    assert_close(words.epistemic[:, 2], p.epistemic[:, 4])
    assert p.words([[None] * 10] * 8).probs.shape[1] == 0
    mean = p.words([[None, 0, 0, 1, 2, 2, 2, None, None, None]] * 8, "mean")
    assert_close(mean.aleatoric[:, 0], p.aleatoric[:, 1:3].mean(dim=1))
    assert_close(ensemble(**{key: data[0][key] for key in ("input_ids", "attention_mask")}).exp(), p.probs)
    told = repulse.evaluate(ensemble, data, progress=False)
    assert told.counts["id"] == 32


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_a_token_classifier_of_hugging_face():
    from repulse._operators import define_missing

    define_missing()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=4
    )
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(config)
    ids = torch.randint(3, 60, (8, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % 4}
    ensemble = repulse.retrofit(model, [batch], recipe=QUICK, progress=False)
    assert ensemble.predict(batch).epistemic.shape == (8, 12)
    assert ensemble.backbone.taps


def test_streaming_ranks_as_the_exact_metrics_do():
    inside, outside = normal(4000).exp(), normal(1000, seed=1).exp() + 1
    for sign in (1.0, -1.0):
        ranking = metrics.StreamingRanking()
        for part in (slice(0, 700), slice(700, None)):
            scores = torch.cat([inside[part], outside[part]])
            ranking.update(sign * scores, torch.arange(len(scores)) >= len(inside[part]))
        near, far = sign * inside, sign * outside
        assert ranking.auroc == pytest.approx(metrics.auroc(near, far), abs=1e-3)
        assert ranking.aupr == pytest.approx(metrics.aupr(near, far), abs=2e-3)
        assert ranking.fpr95 == pytest.approx(metrics.fpr_at_95(near, far), abs=5e-3)
    few = metrics.StreamingRanking()
    few.update(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([False, True, False, True]))
    assert few.auroc == metrics.auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    with pytest.raises(DataError, match="both kinds"):
        _ = metrics.StreamingRanking().auroc
