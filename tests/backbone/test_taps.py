"""Taps: what they read, where they are put, and what it costs."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import repulse
from models import columns_of
from repulse import FS_RLL_E, LL_E, RLL_E, BackboneError, Recipe, retrofit
from repulse.backbone import Backbone, Tap, split
from repulse.backbone.tap_choice import MAX_COLUMNS, within_columns
from repulse.particles.scaling import TAP_SCALE, Scaling
from repulse_lab.networks.resnet_cifar import ResNetCifar
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers is imported later, inside the tests
pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")
QUICK = Recipe(epochs=1, heads=3, repulsion_samples=64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(build):
    """A model with random weights that are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


# What a tap reads.


def naive(rows):
    """Mean and population standard deviation of lists of numbers, in plain Python."""
    means = [sum(row) / len(row) for row in rows]
    squares = [sum((v - m) ** 2 for v in row) / len(row) for row, m in zip(rows, means, strict=True)]
    return means, [square**0.5 for square in squares]


@pytest.mark.parametrize("reads", ["both", "mean", "deviation"])
@pytest.mark.parametrize("sides", [(7,), (4, 3), (2, 3, 2)], ids=["length", "image", "volume"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_tap_reads_mean_and_deviation_of_every_channel(layout, sides, reads):
    values = 3 + 2 * normal(2, 5, *sides)
    flat = values.flatten(start_dim=2).tolist()
    rows = [naive(sample) for sample in flat]
    wanted = torch.tensor([{"both": m + d, "mean": m, "deviation": d}[reads] for m, d in rows])
    shown = values if layout == "channels_first" else values.movedim(1, -1)
    tap = Tap("here", layout, wanted.shape[1], reads)
    torch.testing.assert_close(columns_of(tap, shown, None), wanted)
    torch.testing.assert_close(
        columns_of(tap, (shown, None), None), wanted
    )  # what a block returns beside it is not read


def test_a_vector_is_read_as_it_is():
    values = normal(3, 6)
    assert torch.equal(columns_of(Tap("here", "vector", 6), values, None), values)
    assert torch.equal(columns_of(Tap("here", "vector", 6), values.view(3, 6, 1, 1), None), values)
    assert torch.equal(columns_of(Tap("here", "vector", 6), values, torch.zeros(3, 6)), values)


@pytest.mark.parametrize("reads", ["both", "mean", "deviation"])
def test_tokens_that_the_mask_leaves_out_are_not_read(reads):
    values, lengths = normal(3, 7, 5), [7, 4, 2]
    mask = (torch.arange(7) < torch.tensor(lengths).unsqueeze(1)).long()
    rows = [naive([c[:n] for c in sample]) for sample, n in zip(values.mT.tolist(), lengths, strict=True)]
    wanted = torch.tensor([{"both": m + d, "mean": m, "deviation": d}[reads] for m, d in rows])
    tap = Tap("here", "channels_last", wanted.shape[1], reads)
    torch.testing.assert_close(columns_of(tap, values, mask), wanted, rtol=1e-4, atol=1e-5)
    spoilt = torch.where(mask.unsqueeze(2) > 0, values, 1e6)
    torch.testing.assert_close(columns_of(tap, spoilt, mask), wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_may_be_shorter_where_the_network_pads_and_is_none_where_it_is_longer():
    values = normal(3, 7, 5)
    tap = Tap("here", "channels_last", 10)
    short, long = torch.ones(3, 6), torch.ones(3, 8)
    torch.testing.assert_close(columns_of(tap, values, short), columns_of(tap, values[:, :6], None))
    assert torch.equal(columns_of(tap, values, long), columns_of(tap, values, None))


@pytest.mark.parametrize("value", [0.0, 4.0, -4e3])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_a_channel_that_does_not_vary_has_no_deviation_and_a_finite_slope(masked, value):
    """No deviation beside the thousandth of its size that it is known to."""
    values = torch.full((2, 6, 3), value, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]) if masked else None
    read = columns_of(Tap("here", "channels_last", 6), values, mask)
    assert read[:, 3:].abs().max() <= 1.01e-3 * abs(value) + 1e-5
    read.sum().backward()
    assert bool(values.grad.isfinite().all())


def test_small_deviations_beside_large_means_are_seen():
    """Down to a hundredth of the mean, in single precision."""
    values = 50 + 0.5 * normal(2, 5, 100)
    wanted = values.double().std(dim=2, correction=0).float()
    torch.testing.assert_close(
        columns_of(Tap("here", "channels_first", 5, "deviation"), values, None), wanted, rtol=0.02, atol=0
    )


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_large_maps_of_short_floats_are_read_without_overflow(dtype, layout):
    """Sums over a hundred by a hundred pixels, and squares of them, are more than half precision can hold."""
    values = (6 + 2 * normal(2, 3, 100, 100)).to(dtype)
    deviation, mean = torch.std_mean(values.float(), dim=(2, 3), correction=0)
    shown = values if layout == "channels_first" else values.movedim(1, -1)
    read = columns_of(Tap("here", layout, 6), shown, None).float()
    torch.testing.assert_close(read, torch.cat([mean, deviation], dim=1), rtol=0.02, atol=0.0)


def test_what_is_no_tensor_cannot_be_tapped():
    with pytest.raises(BackboneError, match=r"Expected the output of `here` to be a tensor, but got dict\."):
        columns_of(Tap("here", "channels_first", 6), {"a": normal(2, 3)}, None)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_channels_of_a_group_share_the_statistics_of_all_their_values(layout):
    values = 3 + 2 * normal(2, 7, 4, 3)
    rows = [[group.flatten().tolist() for group in sample.split(3)] for sample in values]
    wanted = torch.tensor([m + d for m, d in map(naive, rows)])
    shown = values if layout == "channels_first" else values.movedim(1, -1)
    tap = Tap("here", layout, 14).grouped(3)
    assert (tap.columns, tap.group) == (6, 3)
    torch.testing.assert_close(columns_of(tap, shown, None), wanted)
    mean, deviation = Tap("here", layout, 7, "mean").grouped(3), Tap("here", layout, 7, "deviation").grouped(3)
    torch.testing.assert_close(
        torch.cat([columns_of(mean, shown, None), columns_of(deviation, shown, None)], dim=1), wanted
    )


def test_neighbours_in_a_vector_are_averaged():
    values = torch.tensor([[1.0, 3.0, 5.0, 9.0, 4.0]])
    assert columns_of(Tap("here", "vector", 5).grouped(2), values, None).tolist() == [[2.0, 7.0, 4.0]]


# Padding.


@pytest.fixture(scope="module")
def bert():
    define_missing()
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=100, num_labels=3, **shape)
    return seeded(lambda: transformers.BertForSequenceClassification(config)).train()


def padded(more, other=0):
    """The same sentences of 3 to 7 tokens, with more or less padding (and other ids in it)."""
    lengths = torch.arange(8) % 5 + 3
    ids = torch.randint(3, 90, (8, 7), generator=torch.Generator().manual_seed(0))
    ids = F.pad(ids, (0, more))
    mask = (torch.arange(7 + more) < lengths.unsqueeze(1)).long()
    return {"input_ids": torch.where(mask > 0, ids, other), "attention_mask": mask}


def test_features_of_a_text_do_not_depend_on_its_padding(bert):
    backbone = split(bert, padded(2), layers="auto")
    assert [tap.name for tap in backbone.taps] == [f"bert.encoder.layer.{i}" for i in range(3)]
    with torch.no_grad():
        features = backbone(padded(0))
        assert features.shape == (8, 32 + 3 * 32)
        for more, other in ((1, 0), (9, 0), (5, 42)):
            torch.testing.assert_close(backbone(padded(more, other)), features, rtol=1e-4, atol=1e-5)
        unmasked = backbone({**padded(9), "attention_mask": torch.ones(8, 16, dtype=torch.long)})
    assert (unmasked - features).abs().max() > 0.01


def test_predictions_for_a_text_do_not_depend_on_its_padding(bert):
    batches = [{**padded(more), "labels": torch.arange(8) % 3} for more in (0, 4)]
    ensemble = retrofit(bert, batches, repulsion=None, recipe=QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(padded(0)).probs, ensemble.predict(padded(9)).probs)


# Where the taps are.


def timm_model(name, **settings):
    define_missing()
    timm = pytest.importorskip("timm")
    return timm.create_model(name, num_classes=5, **settings)


def convolved(kind, *widths):
    pairs = itertools.pairwise(widths)
    return [part for inside, outside in pairs for part in (kind(inside, outside, 3, padding=1), nn.ReLU())]


def vgg():
    return nn.Sequential(
        *(*convolved(nn.Conv2d, 3, 8, 8), nn.MaxPool2d(2)),
        *(*convolved(nn.Conv2d, 8, 16), nn.MaxPool2d(2)),
        *(*convolved(nn.Conv2d, 16, 24), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(24, 5)),
    )


def series():
    return nn.Sequential(
        *(*convolved(nn.Conv1d, 4, 8), nn.MaxPool1d(2)),
        *(*convolved(nn.Conv1d, 8, 16), nn.MaxPool1d(2)),
        *(*convolved(nn.Conv1d, 16, 24), nn.AdaptiveAvgPool1d(1)),
        *(nn.Flatten(), nn.Linear(24, 5)),
    )


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def vit(depth):
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4}
    return timm_model("vit_tiny_patch16_224", depth=depth, **shape)


SWIN = {"img_size": 64, "embed_dim": 96, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8), "window_size": 4}
FIRST, LAST = "channels_first", "channels_last"
WHERE = {
    "resnet18": (
        lambda: timm_model("resnet18"),
        (3, 64, 64),
        [("act1", 64), ("layer1", 64), ("layer2", 128), ("layer3", 256), ("layer4", 256)],
        FIRST,
    ),
    "cifar resnet": (
        lambda: ResNetCifar(20),
        (3, 32, 32),
        [
            *(("layer1.0", 32), ("layer1.1", 32), ("layer1", 32)),
            *(("layer2.0", 64), ("layer2.1", 64), ("layer2", 64)),
            *(("layer3.0", 128), ("layer3.1", 128), ("layer3", 64)),
        ],
        FIRST,
    ),
    "vgg": (vgg, (3, 16, 16), [("3", 16), ("6", 32), ("9", 24)], FIRST),
    "vgg, not square": (vgg, (3, 16, 24), [("3", 16), ("6", 32), ("9", 24)], FIRST),
    "vit": (lambda: vit(8), (3, 32, 32), [(f"blocks.{i}", 32) for i in (1, 3, 5)], LAST),
    "deep vit": (lambda: vit(12), (3, 32, 32), [(f"blocks.{i}", 32) for i in (2, 5, 8)], LAST),
    "shallow vit": (lambda: vit(2), (3, 32, 32), [("blocks.0", 32), ("blocks.1", 32)], LAST),
    "swin": (
        lambda: timm_model("swin_tiny_patch4_window7_224", **SWIN),
        (3, 64, 64),
        [("layers.0", 64), ("layers.1", 128), ("layers.2", 256), ("layers", 512)],
        LAST,
    ),
    "mlp": (mlp, (4,), [("inputs", 4), ("1", 8)], "vector"),
    "time series": (series, (4, 32), [("1", 16), ("4", 32), ("7", 24)], FIRST),
}


@pytest.mark.parametrize("name", WHERE)
def test_taps_are_put_at_the_end_of_every_stage(name):
    build, shape, wanted, layout = WHERE[name]
    model, x = seeded(build).train(), normal(3, *shape)
    backbone = split(model, x, layers="auto")
    assert [(tap.name, tap.columns) for tap in backbone.taps] == wanted
    assert {tap.layout for tap in backbone.taps} <= {layout}
    assert backbone.width == backbone.penultimate + sum(columns for _, columns in wanted)
    with torch.no_grad():
        features = backbone(x)
        assert torch.equal(features[:, : backbone.penultimate], split(model, x)(x))
    assert features.shape == (3, backbone.width)
    wanted = read_alone(model, x, backbone.taps)
    torch.testing.assert_close(features[:, backbone.penultimate :], wanted, rtol=1e-4, atol=2e-6)


def read_alone(model, x, taps):
    """The same statistics from outputs that were kept, of a copy in eval mode."""
    model, kept = copy.deepcopy(model).eval(), {}
    for tap in taps:
        if tap.reads == "inputs":
            kept[tap.name] = x
            continue
        model.get_submodule(tap.name).register_forward_hook(
            lambda _, inputs, output, name=tap.name: kept.update({name: output.clone()})
        )
    with torch.no_grad():
        model(x)
    parts = [torch.empty(len(x), 0)]
    for tap in taps:
        if tap.layout == "vector":
            parts.append(kept[tap.name].flatten(start_dim=1))
            continue
        values = kept[tap.name] if tap.layout == FIRST else kept[tap.name].movedim(-1, 1)
        groups = values.flatten(start_dim=2).split(tap.group, dim=1)
        both = [torch.std_mean(group.flatten(start_dim=1), dim=1, correction=0) for group in groups]
        deviation, mean = (torch.stack(columns, dim=1) for columns in zip(*both, strict=True))
        parts.append({"mean": mean, "deviation": deviation}.get(tap.reads, torch.cat([mean, deviation], dim=1)))
    return torch.cat(parts, dim=1)


def test_taps_work_in_half_precision():
    model = seeded(vgg).to(torch.bfloat16)
    x = normal(3, 3, 16, 16).to(torch.bfloat16)
    backbone = split(model, x, layers="auto")
    assert backbone(x).shape == (3, backbone.width)
    found = backbone(x).detach().float()
    wanted = Backbone(model.float(), backbone.ending, backbone.taps)(x.float()).detach()
    assert float((found - wanted).abs().mean() / wanted.abs().mean()) < 0.02


@pytest.mark.parametrize("size", [16, 17, 24])
def test_means_that_are_the_penultimate_features_are_not_repeated(size):
    model, x = seeded(vgg), normal(4, 3, size, size)
    backbone = split(model, x, layers="auto")
    assert [tap.reads for tap in backbone.taps] == ["both", "both", "deviation"]
    with torch.no_grad():
        features = backbone(x)
    alive = features[:, features.amax(dim=0) > 1e-4].T  # activations that are always zero are equal
    for i, column in enumerate(alive):
        assert int(torch.isclose(alive, column).all(dim=1).sum()) == 1, i


class LowersByOnePixel(nn.Module):
    """A block that pads, convolves with stride two or one, and adds nothing of its own to look at."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.pad, self.conv = nn.ZeroPad2d(2), nn.Conv2d(inside, outside, 5, stride)
        self.norm, self.act = nn.BatchNorm2d(outside), nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(self.pad(x))))


def padded_blocks():
    blocks = (
        LowersByOnePixel(3, 4, 2),
        LowersByOnePixel(4, 4, 1),
        LowersByOnePixel(4, 6, 2),
        LowersByOnePixel(6, 8, 2),
    )
    head = nn.Conv2d(8, 9, 1), nn.BatchNorm2d(9), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 5)
    return nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Sequential(*blocks), *head)


@pytest.mark.parametrize("side", [24, 31, 48, 63])
def test_blocks_are_tapped_and_neither_their_paddings_nor_a_norm_after_them(side):
    backbone = split(seeded(padded_blocks), normal(3, 3, side, side), layers="auto")
    assert [(tap.name, tap.columns) for tap in backbone.taps] == [("1.0", 8), ("1.1", 8), ("1.2", 12), ("1", 16)]


@pytest.mark.parametrize("name", ["cifar resnet", "resnet18", "vit"])
def test_a_network_inside_another_is_tapped_where_it_is_tapped_alone(name):
    build, shape, wanted, _ = WHERE[name]
    model, x = nn.Sequential(nn.BatchNorm2d(3), seeded(build)), normal(3, *shape)
    found = [(tap.name, tap.columns) for tap in split(model, x, layers="auto").taps]
    assert found == [(f"1.{part}", columns) for part, columns in wanted]


class OfBytes(nn.Module):
    """Takes images of 8-bit integers, channels first or last, as cameras and files give them."""

    def __init__(self, model, last):
        super().__init__()
        self.model, self.last = model, last

    def forward(self, x):
        x = x.movedim(-1, 1) if self.last else x
        return self.model(x.float() / 255)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_images_of_integers_are_tapped_as_others_are(last):
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    model = seeded(ResNetCifar)
    alone = split(model, images.float() / 255, layers="auto")
    shown = images.movedim(1, -1).contiguous() if last else images
    backbone = split(OfBytes(model, last), shown, layers="auto")
    assert [tap.name for tap in backbone.taps] == [f"model.{tap.name}" for tap in alone.taps]
    with torch.no_grad():
        torch.testing.assert_close(backbone(shown), alone(images.float() / 255))


class ResidualRows(nn.Module):
    """A perceptron for tables whose hidden layers are residual blocks."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.narrow(self.wide(x).relu())


class InWords(nn.Module):
    """Activations that are functions, not modules."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.two(self.one(x).relu()).relu())


def flattened(width):
    return lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(width, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 8), nn.Linear(8, 3)
    )


PERCEPTRONS = {
    "residual blocks": (ResidualRows, (6,), [("inputs", 6), ("first", 8), ("blocks.0", 8), ("blocks.1", 8)]),
    "functions between layers": (InWords, (6,), [("inputs", 6), ("one", 8), ("two", 8)]),
    "flattened images": (flattened(64), (1, 8, 8), [("inputs", 64), ("2", 8)]),
    "many pixels": (flattened(3 * 32 * 32), (3, 32, 32), [("inputs", 1024), ("2", 8)]),
}


@pytest.mark.parametrize("name", PERCEPTRONS)
def test_of_a_perceptron_inputs_and_hidden_layers_are_tapped(name):
    build, shape, wanted = PERCEPTRONS[name]
    model, x = seeded(build), normal(4, *shape)
    backbone = split(model, x, layers="auto")
    assert [(tap.name, tap.columns) for tap in backbone.taps] == wanted
    with torch.no_grad():
        features = backbone(x)
    assert features.shape == (4, backbone.width)
    group = x[0].numel() // wanted[0][1]
    columns = features[:, backbone.penultimate :][:, : wanted[0][1]]
    torch.testing.assert_close(columns, x.view(4, -1, group).mean(dim=2))


def test_taps_of_a_perceptron_are_saved_with_the_ensemble(tmp_path):
    model, x = seeded(flattened(3 * 32 * 32)), normal(9, 3, 32, 32)
    ensemble = retrofit(model, [(x, torch.arange(9) % 3)], repulsion=None, recipe=QUICK, progress=False)
    assert ensemble.layers == ("inputs", "2", "5")
    back = repulse.load(ensemble.save(tmp_path / "heads"), model)
    assert back.backbone.taps == ensemble.backbone.taps
    assert torch.equal(back.predict(x).probs, ensemble.predict(x).probs)


def test_wide_networks_have_few_columns():
    """Channels are grouped until there are few, equally in all taps."""
    taps = [Tap("a", FIRST, 512), Tap("b", FIRST, 4096), Tap("c", LAST, 2048, "deviation")]
    found = within_columns(taps)
    assert [(tap.group, tap.columns) for tap in found] == [(6, 86), (6, 684), (6, 342)]
    assert sum(tap.columns for tap in found) <= MAX_COLUMNS
    assert within_columns(found[:1]) == found[:1]


def tapped_script():
    path = Path(__file__).parents[2] / "benchmarks" / "tapped.py"
    spec = importlib.util.spec_from_file_location("tapped", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TAPPED = tapped_script()


@pytest.mark.parametrize("name", TAPPED.NETWORKS)
def test_the_table_of_real_architectures_is_what_is_tapped(name):
    try:
        backbone = TAPPED.tapped(name)
    except ImportError as reason:
        pytest.skip(f"{reason}")
    assert TAPPED.row(name, backbone) in TAPPED.PAGE.read_text().splitlines()
    assert sum(tap.columns for tap in backbone.taps) <= MAX_COLUMNS


# Layers by name.


def test_layers_can_be_named_in_any_order():
    model, x = seeded(vgg), normal(4, 3, 16, 16)
    backbone = split(model, x, layers=["6", "1"])
    assert [(tap.name, tap.columns) for tap in backbone.taps] == [("6", 32), ("1", 16)]
    with torch.no_grad():
        wanted = read_alone(model, x, backbone.taps)
        torch.testing.assert_close(backbone(x)[:, 24:], wanted, rtol=1e-4, atol=2e-6)
    assert split(model, x, layers=[]).taps == split(model, x, layers="last").taps == ()


def test_vectors_can_be_tapped_by_name():
    model, x = seeded(mlp), normal(4, 4)
    backbone = split(model, x, layers=["1"])
    assert backbone.taps == (Tap("1", "vector", 8),)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x)[:, 8:], model[1](model[0](x)))


class Halved(nn.Module):
    """A mean and a variance from one layer, of which the head sees the mean."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 16), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x)[:, :8])


def test_a_vector_that_begins_with_the_penultimate_features_is_read_whole_or_once():
    model, x = seeded(Halved), normal(6, 4)
    backbone = split(model, x, layers=["encoder"])
    with torch.no_grad():
        features = backbone(x)
        assert features.shape == (6, backbone.width)
        assert torch.equal(features[:, :8], model.encoder(x)[:, :8])
        assert torch.equal(features[:, -8:], model.encoder(x)[:, 8:])


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (["layer1", "lyer2"], ["`layers`", "names of modules of the model that run", "'lyer2'", "mean 'layer2'?"]),
        (["layer1.0.conv9"], ["'layer1.0.conv9'", "Did you mean 'layer1.0.conv"]),
        ([""], ["`layers`", "names of modules"]),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest(layers, words):
    model, x = seeded(ResNetCifar), normal(4, 3, 32, 32)
    with pytest.raises(BackboneError, match=r"^Expected .+ to be .+, but got .+[.?]$") as caught:
        split(model, x, layers=layers)
    for word in words:
        assert word in str(caught.value)
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_that_are_no_list_are_refused():
    with pytest.raises(BackboneError, match=r"Expected `layers` to be 'auto', 'last' or a list .+, but got '1'\."):
        split(seeded(mlp), normal(4, 4), layers="1")


DATA = [(normal(8, 3, 16, 16), torch.arange(8) % 5)]


@pytest.mark.parametrize("recipe", [LL_E, RLL_E, FS_RLL_E], ids=["LL_E", "RLL_E", "FS_RLL_E"])
def test_named_recipes_see_the_last_layer_alone_unless_told_otherwise(recipe):
    model, recipe = seeded(vgg), recipe.replace(epochs=1, heads=3)
    alone = retrofit(model, DATA, recipe=recipe, progress=False)
    assert alone.layers == ("12",)
    assert alone.heads.features == 24
    told = retrofit(model, DATA, recipe=recipe, layers="auto", progress=False)
    assert told.layers == ("3", "6", "9", "12")
    assert told.heads.features == 24 + 16 + 32 + 24
    assert told.recipe.layers == "auto"


def test_layers_are_named_in_a_list_or_a_tuple():
    model = seeded(vgg)
    for layers in (("6",), ["6"]):
        ensemble = retrofit(model, DATA, repulsion=None, recipe=QUICK, layers=layers, progress=False)
        assert ensemble.layers == ("6", "12")
        assert ensemble.recipe.layers == ("6",)


def test_taps_are_what_retrofit_uses_and_it_says_so(capsys):
    ensemble = retrofit(seeded(vgg), DATA, recipe=QUICK)
    assert "they also see 3, 6, 9" in capsys.readouterr().err
    assert "3 taps" in repr(ensemble)
    retrofit(seeded(vgg), DATA, recipe=QUICK, layers="last")
    assert "also see" not in capsys.readouterr().err


# Modules that are awkward to tap.


class Shared(nn.Module):
    """One activation and one pooling for all stages, as many networks are written."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.relu, self.pool, self.head = nn.ReLU(), nn.MaxPool2d(2), nn.Linear(16 * 4 * 4, 5)

    def forward(self, x):
        x = self.pool(self.relu(self.first(x)))
        return self.head(self.pool(self.relu(self.second(x))).flatten(start_dim=1))


class Recurrent(nn.Module):
    """One block that runs four times, on tokens."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh())])
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        for _ in range(4):
            x = self.layers[0](x)
        return self.head(x[:, 0])


class Folded(nn.Module):
    """Blocks that see every patch as a sample of its own, as MobileViT's do."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        maps = self.stem(x)  # (B, 6, 4, 4)
        rows = self.blocks(maps.movedim(1, -1).reshape(-1, 4, 6))
        return self.head(rows.reshape(len(x), -1, 6).mean(dim=1))


@pytest.mark.parametrize(
    ("build", "shape"),
    [(Shared, (3, 16, 16)), (Recurrent, (7, 6)), (Folded, (3, 16, 16))],
    ids=["modules shared by stages", "a block that runs again", "other samples inside"],
)
def test_features_are_as_wide_as_the_backbone_says(build, shape):
    """Whatever is chosen; and no module is tapped twice, since what it gives would be there twice."""
    model, x = seeded(build), normal(6, *shape)
    backbone = split(model, x, layers="auto")
    names = [tap.name for tap in backbone.taps]
    assert len(set(names)) == len(names)
    with torch.no_grad():
        features = backbone(x)
        torch.testing.assert_close(F.linear(features[:, : backbone.penultimate], *backbone.weights), model(x))
    assert features.shape == (6, backbone.width)


def test_a_convolution_over_words_has_its_channels_first():
    """The inputs are token ids, which say nothing of layouts; the width must not depend on their number."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.conv, self.head = nn.Embedding(50, 16), nn.Conv1d(16, 8, 3), nn.Linear(8, 3)

        def forward(self, ids):
            return self.head(self.conv(self.embedding(ids).mT).relu().amax(dim=2))

    ids = torch.randint(0, 50, (6, 12), generator=torch.Generator().manual_seed(0))
    backbone = split(seeded(Words), ids, layers=["conv"])
    assert backbone.taps == (Tap("conv", FIRST, 16),)
    assert backbone(ids[:, :9]).shape == backbone(ids).shape == (6, 24)


def test_a_longer_sound_has_no_more_features():
    """A network that convolves the waves first, and is a transformer after that."""
    define_missing()
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    filters = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2}
    places = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16}
    config = transformers.Wav2Vec2Config(num_labels=3, **shape, **filters, **places)
    model = seeded(lambda: transformers.Wav2Vec2ForSequenceClassification(config))
    backbone = split(model, {"input_values": normal(4, 400)}, layers="auto")
    with torch.no_grad():
        assert backbone({"input_values": normal(4, 560)}).shape == (4, backbone.width)


def test_a_map_that_shrinks_along_one_side_has_its_channels_first():
    """Of a spectrogram, say, which is pooled over time alone."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((1, 4))),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((1, 4))),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
    )
    backbone = split(model, normal(4, 1, 16, 120), layers="auto")
    assert {tap.layout for tap in backbone.taps} == {FIRST}
    with torch.no_grad():
        assert backbone(normal(4, 1, 16, 160)).shape == (4, backbone.width)


def test_gradients_pass_taps_before_an_activation_in_place():
    parts = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(8, 3))
    x = normal(4, 3, 8, 8).requires_grad_()
    split(model, x.detach(), layers=["1"])(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_pretrained_heads_begin_without_regard_to_taps():
    """Their mean is the network, and their noise on each feature is that of its own scale."""
    model = seeded(vgg)
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=500, whiten=False, centre="heads")
    x, _ = DATA[0]
    ensemble = retrofit(model, DATA, repulsion=None, recipe=recipe, progress=False)
    assert len(ensemble.backbone.taps) == 3
    heads, head = ensemble.heads, model[12]
    with torch.no_grad():
        torch.testing.assert_close(ensemble(x), model(x).log_softmax(dim=1), rtol=0.0, atol=0.02)
        scale = Scaling.of(ensemble.backbone(x), 72, TAP_SCALE).scale
        weights = heads.weight * scale
        noise = 0.1 * (head.weight * scale[:24]).std()
    torch.testing.assert_close(weights.mean(dim=0)[:, :24], head.weight.detach() * scale[:24], rtol=0, atol=noise / 4)
    varied = scale.isfinite()
    tapped = heads.weight[:, :, varied][:, :, 24:] * scale[varied][24:]
    assert tapped.mean(dim=0).abs().max() < noise / 4
    torch.testing.assert_close(tapped.std(), noise, rtol=0.05, atol=0.0)


# What it costs.


def test_a_prediction_with_taps_is_still_one_pass():
    model = seeded(vgg)
    ensemble = retrofit(model, DATA, recipe=QUICK, progress=False)
    assert ensemble.backbone.taps
    ran = []
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: ran.append(module))
    ensemble.predict(DATA[0][0])
    assert sorted(map(id, ran)) == sorted(map(id, model.modules()))
    ran.clear()
    ensemble.predict(DATA * 3, progress=False)
    assert ran.count(model) == 3


def test_threads_get_their_own_taps():
    """Two callers whose passes overlap, each half-way through when the other starts."""
    model = seeded(vgg)
    ensemble = retrofit(model, DATA, recipe=QUICK, progress=False)
    batches = [normal(4, 3, 16, 16, seed=i) for i in range(2, 22)]
    with torch.no_grad():
        features = [ensemble.backbone(batch) for batch in batches]
    alone = [ensemble.predict(batch).log_probs for batch in batches]
    inside, most = set(), []

    def dawdle(*_):
        inside.add(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.004)
        inside.discard(threading.get_ident())

    for part in (model[5], model):  # between two taps, and after the last layer
        part.register_forward_hook(dawdle)

    def ask(batch):
        with torch.no_grad():
            return ensemble.backbone(batch), ensemble.predict(batch).log_probs

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(ask, batches))
    assert max(most) == 2
    for (read, predicted), wanted, log_probs in zip(together, features, alone, strict=True):
        assert torch.equal(read, wanted)
        assert torch.equal(predicted, log_probs)
    assert sum(len(module._forward_hooks) for module in model.modules()) == 2


def test_a_model_is_split_while_it_serves_others():
    """Another thread makes a whole pass, over images of another size, while the split is half-way through its own."""
    model, x = seeded(vgg), normal(8, 3, 16, 16)
    alone = split(model, x, layers="auto")
    wanted = alone(x).detach()
    caller, served = threading.get_ident(), []

    def serve(*_):
        if threading.get_ident() == caller and not served:
            served.append(True)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(model, normal(8, 3, 40, 40)).result()

    model[5].register_forward_hook(serve)
    found = split(model, x, layers="auto")
    assert served
    assert (found.ending, found.taps) == (alone.ending, alone.taps)
    assert torch.equal(found(x), wanted)
