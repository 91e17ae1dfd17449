"""Features at the network's own speed: what is done for it must not be seen in any result."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import repulse
from models import columns_of
from repulse import CacheError, CacheWarning, DataError, Recipe, fit_heads, retrofit
from repulse._finite import all_finite
from repulse.backbone import Backbone, Tap, compute_features, reading, split, taps
from repulse.backbone.fingerprint import fast_digest_of
from repulse.backbone.reading import fixed_random_state, in_background, pinned, read_ahead
from repulse.prediction import ClassPrediction

QUICK = Recipe(epochs=1, heads=3, repulsion_samples=64)


def images(batches: int, size: int = 6, side: int = 8) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(batches * size, 3, side, side, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(size), (torch.arange(len(x)) % 3).split(size), strict=True))


class Flatten(nn.Module):
    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1) if self.view else x.flatten(1)


def convolutions(view: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU()]
        return nn.Sequential(*layers, Flatten(view), nn.Linear(72, 3))


def features_of(model: nn.Module, data, **settings):
    backbone = split(model, data[0][0], layers="auto")
    return backbone, compute_features(backbone, data, None, progress=False, **settings)


# Marks of batches.


@pytest.mark.parametrize("shape", [(5, 3), (16, 3, 32, 32), (9, 7, 31, 13)])
@pytest.mark.parametrize("kind", [torch.float32, torch.uint8, torch.float64, torch.bfloat16])
def test_whatever_changes_in_a_batch_changes_its_mark(shape, kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 200, shape, generator=generator).to(kind)
    marks = {fast_digest_of(x)}
    changed = [x.flip(0), x.reshape(-1, 1), x.to(torch.float16), x[:-1]]
    if kind.is_floating_point:
        changed += [-x, 2 * x, x + 1]
    for place in torch.randint(0, x.numel(), (20,), generator=generator).tolist():
        other = x.clone()
        other.view(-1)[place] += 1
        changed.append(other)
    if x.ndim == 4:
        changed += [x.flip(3), x.roll(1, dims=1)]
    marks |= {fast_digest_of(other) for other in changed}
    assert len(marks) == len({(str(o.dtype), o.shape, o.float().numpy().tobytes()) for o in (x, *changed)})


def test_blank_images_that_change_places_are_noticed():
    x = torch.stack([torch.full((1, 128, 128), float(i)) for i in range(8)])  # whole rows of equal numbers
    order = [1, 0, 2, 3, 4, 5, 6, 7]
    assert fast_digest_of(x) != fast_digest_of(x[order])


def test_marks_look_at_numbers_not_at_memory():
    x = torch.randn(4, 3, 40, 40)
    assert (
        fast_digest_of(x)
        == fast_digest_of(x.contiguous(memory_format=torch.channels_last))
        == fast_digest_of(x.mT.contiguous().mT)
    )
    assert fast_digest_of({"a": x}) != fast_digest_of({"b": x})


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0, 2.0], True),
        ([1.0, np.nan], False),
        ([np.inf, 1.0], False),
        ([np.inf, -np.inf], False),
        ([3e38, 3e38, 3e38], True),
        ([], True),
    ],
)
def test_finite_numbers_are_told_from_others_even_if_their_sum_overflows(values, finite):
    assert all_finite(torch.tensor(values)) is finite


# Reading ahead.


def test_batches_read_in_the_background_are_the_same_in_the_same_order():
    assert list(in_background(range(50), lambda i: 2 * i)) == list(range(0, 100, 2))


class Augmented(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor([i, torch.rand(()).item(), random.random(), np.random.rand()])  # noqa: NPY002


def test_a_loader_that_is_random_gives_the_same_batches_in_the_background():
    loader = DataLoader(Augmented(), batch_size=5, shuffle=True)
    state = torch.get_rng_state()
    with fixed_random_state(loader, 3):
        plain = list(loader)
    with fixed_random_state(loader, 3):
        behind = list(in_background(loader, lambda batch: batch))
    assert all(torch.equal(a, b) for a, b in zip(plain, behind, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("error", [KeyError("gone"), KeyboardInterrupt()])
def test_what_reading_raises_is_raised_at_its_batch(error):
    def broken():
        yield from (1, 2)
        raise error

    seen = []
    with pytest.raises(type(error)) as caught:
        seen.extend(in_background(broken(), lambda i: i))
    assert caught.value is error
    batches = in_background(broken(), lambda i: i)
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(type(error)):
        next(batches)


def test_a_reader_that_is_not_wanted_any_more_ends():
    drawn = count()
    batches = in_background(drawn, lambda i: i)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    batches.close()
    assert not any(thread.name == "repulse reads" for thread in threading.enumerate())
    assert next(drawn) <= 6


def test_only_a_gpu_is_read_ahead_for(monkeypatch):
    data, copied = images(2), []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: copied.append(self) or self)
    assert all(a is b for a, b in zip(read_ahead(data, torch.device("cpu")), data, strict=True))
    loader = DataLoader(TensorDataset(torch.zeros(2)), num_workers=1)
    assert len(list(read_ahead(loader, torch.device("cuda")))) == 2
    assert not copied
    found = list(read_ahead([{"x": data[0][0], "name": "a"}, [data[1][0], data[1][1]]], torch.device("cuda")))
    assert len(copied) == 3
    assert found[0]["name"] == "a"
    assert torch.equal(found[1][1], data[1][1])
    assert pinned("text") == "text"


# Channels first or last.


def wide(view: bool = False, channels: int = 16, **settings) -> nn.Module:
    """A network with a convolution over many channels, which is faster with channels last."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 16, 3, stride=2, **settings)]
        return nn.Sequential(*layers, nn.ReLU(), Flatten(view), nn.Linear(144, 3))


def formats(model: nn.Module) -> list[bool]:
    """A list to which each pass adds whether its images had channels last."""
    seen: list[bool] = []
    last = torch.channels_last
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=last)))
    return seen


def test_the_memory_format_is_read_off_the_network_and_used_by_every_pass():
    model, data = wide(), images(40, 10)
    seen, strides = formats(model), [p.stride() for p in model.parameters()]
    ensemble = retrofit(model, data, repulsion=None, recipe=QUICK, progress=False)
    assert ensemble.backbone.channels_last
    assert seen[-40:] == [True] * 40
    assert [p.stride() for p in model.parameters()] == strides
    seen.clear()
    found = ensemble.predict(data[0][0])
    assert seen == [True]
    ensemble.backbone.channels_last = False
    torch.testing.assert_close(found.probs, ensemble.predict(data[0][0]).probs)


def test_the_memory_format_is_saved_with_the_ensemble(tmp_path):
    """Otherwise a loaded ensemble gives other bits than the one that was saved."""
    data = images(2)
    ensemble = retrofit(wide(), data, repulsion=None, recipe=QUICK, progress=False)
    again = repulse.load(ensemble.save(tmp_path), wide())
    assert again.backbone.channels_last
    assert torch.equal(again.predict(data[0][0]).log_probs, ensemble.predict(data[0][0]).log_probs)


def test_the_memory_format_does_not_depend_on_time(monkeypatch):
    """Nor does anything else, wherever a network has convolutions and a pass many batches."""
    ticks = count()
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) ** 2 % 7)
    data, found = images(40), []
    for _ in range(3):
        backbone = split(wide(), data[0][0])
        found.append(compute_features(backbone, data, None, progress=False).train)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize(
    "model",
    [convolutions(), wide(channels=15), wide(groups=16), wide(view=True)],
    ids=["few channels", "almost many", "a channel each", "a view that wants channels first"],
)
def test_other_networks_get_images_as_they_come(model):
    data = images(40, 10)
    seen = formats(model)
    backbone, found = features_of(model, data)
    assert not backbone.channels_last
    assert len(found.train) == 400
    assert not any(seen[-40:])


def test_a_view_that_fails_later_is_no_error():
    x = images(1)[0][0]
    backbone = split(convolutions(view=True), x)
    plain = backbone.run(x)
    backbone.channels_last = True
    assert torch.equal(backbone.run(x), plain)
    with pytest.raises(RuntimeError, match="shapes"):
        backbone.run(x[:, :, :4])


@pytest.mark.parametrize("few", [2**20, 700])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_taps_read_the_same_from_any_memory_format(monkeypatch, few, memory):
    monkeypatch.setattr(taps, "FEW_BYTES", few)
    x = torch.randn(10, 5, 6, 7, generator=torch.Generator().manual_seed(0))
    read = columns_of(Tap("a", "channels_first", 10), x.contiguous(memory_format=memory), None)
    wanted = torch.cat([x.mean((2, 3)), x.flatten(2).std(2, correction=0)], dim=1)
    torch.testing.assert_close(read, wanted, rtol=1e-5, atol=1e-6)
    read = columns_of(Tap("a", "channels_last", 14), x, None)
    wanted = torch.cat([x.mean((1, 2)), x.flatten(1, 2).std(1, correction=0)], dim=1)
    torch.testing.assert_close(read, wanted, rtol=1e-5, atol=1e-6)


class Remembers(nn.Module):
    """Keeps a table that it makes in its first pass, as positional encodings are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.fc = nn.Linear(4, 6), nn.Linear(6, 3)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, 6) * 1.0
        return self.fc((self.inside(x) * self.table).tanh())


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")  # nine rows of noise
def test_a_network_that_remembers_a_pass_can_still_be_trained():
    model, x = Remembers(), torch.randn(9, 4)
    ensemble = retrofit(model, [(x, torch.arange(9) % 3)], repulsion=None, recipe=QUICK, progress=False)
    ensemble.predict(x)
    model(x).sum().backward()
    assert model.inside.weight.grad is not None


# Half precision on disk.


def test_features_kept_in_half_come_back_as_floats(tmp_path):
    data = images(3)
    _, right = features_of(convolutions(), data)
    for _ in range(2):
        _, half = features_of(convolutions(), data, cache=tmp_path, cache_dtype=torch.float16)
        assert half.train.dtype == torch.float32
        torch.testing.assert_close(half.train, right.train, rtol=1e-3, atol=1e-4)
        assert torch.equal(half.targets, right.targets)
    assert (tmp_path / "train.features").stat().st_size == 2 * right.train.numel()
    with pytest.warns(CacheWarning, match="another type"):
        _, whole = features_of(convolutions(), data, cache=tmp_path)
    assert torch.equal(whole.train, right.train)


def test_too_many_halves_stay_in_their_file_and_are_fitted(tmp_path):
    data = images(20)
    ready = torch.randn(30, 72 + 24)
    backbone = split(convolutions(), data[0][0], layers=["0", "2"])
    found = compute_features(
        backbone, data, ready, cache=tmp_path, cache_dtype=torch.float16, memory_limit=1000, progress=False
    )
    assert (found.train.dtype, found.repulsion.dtype) == (torch.float16, torch.float32)
    heads = fit_heads(found.train, found.targets, found.repulsion, QUICK, progress=False)
    assert heads.weight.dtype == torch.float32


def test_features_too_large_for_half_are_refused_and_not_made_infinite(tmp_path):
    model, data = convolutions(), images(2)
    data[1] = (data[1][0] * 1e6, data[1][1])
    with pytest.raises(DataError, match=r"features of batch 1 of `data` to be at most 65504 .*float16`, but got up to"):
        features_of(model, data, cache=tmp_path, cache_dtype=torch.float16)
    _, found = features_of(model, data, cache=tmp_path / "b", cache_dtype=torch.bfloat16)
    assert found.train.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache_dtype": torch.int8}, r"`cache_dtype` to be torch.float16, torch.bfloat16 or None, but got torch.int8"),
        ({"cache_dtype": torch.float16, "cache": None}, "`cache` to be a folder, if there is a `cache_dtype`"),
    ],
)
def test_types_that_are_not_kept_are_refused(tmp_path, settings, words):
    with pytest.raises(CacheError, match=words):
        retrofit(convolutions(), images(2), recipe=QUICK, progress=False, **{"cache": tmp_path, **settings})


# Predictions, one batch after another.


@pytest.fixture(scope="module")
def ensemble() -> repulse.Ensemble:
    return retrofit(convolutions(), images(4), repulsion=None, recipe=QUICK, progress=False)


def test_a_stream_gives_what_predict_gives(ensemble):
    data = images(5)
    parts = list(ensemble.stream(data, progress=False))
    assert [len(part) for part in parts] == [6] * 5
    whole = ensemble.predict(data, progress=False)
    assert torch.equal(ClassPrediction.cat(parts).log_probs, whole.log_probs)
    assert torch.equal(ensemble.score(data), whole.epistemic)
    assert torch.equal(ensemble.score(data[0][0]), whole.epistemic[:6])


@pytest.mark.parametrize("use", ["stream", "score"])
def test_no_prediction_of_a_stream_outlives_the_next(ensemble, monkeypatch, use):
    alive: list[weakref.ref] = []
    kept = type(ensemble.heads).predict

    def predict(heads, features):
        found = kept(heads, features)
        alive.append(weakref.ref(found))
        return found

    most = 0

    def endless():
        nonlocal most
        for _ in range(40):
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            yield torch.randn(4, 3, 8, 8)

    monkeypatch.setattr(type(ensemble.heads), "predict", predict)
    gc.freeze()  # what is there already need not be looked through forty times
    if use == "score":
        assert ensemble.score(endless()).shape == (160,)
    else:
        assert sum(len(part) for part in ensemble.stream(endless())) == 160
    gc.unfreeze()
    assert len(alive) == 40
    assert most <= 1


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (torch.zeros(2, 3, 8, 8), "`loader` to be batches, but got a single batch, which `predict` takes"),
        ((torch.zeros(2, 3, 8, 8), torch.zeros(2)), "a single batch"),
        (7, "`loader` to be batches, but got int"),
    ],
)
def test_a_stream_of_something_else_is_refused_at_once(ensemble, loader, words):
    with pytest.raises(DataError, match=words):
        ensemble.stream(loader)


def test_a_stream_of_nothing_is_refused(ensemble):
    with pytest.raises(DataError, match="at least one batch"):
        list(ensemble.stream([]))


def test_inputs_that_are_not_finite_are_still_named(ensemble):
    x = torch.zeros(5, 3, 8, 8)
    x[2, 0, 0, 0] = torch.nan
    x[4, 0, 0, 0] = torch.inf
    with pytest.raises(DataError, match="NaN or infinite values in 2 inputs, first 2"):
        ensemble.predict(x)


def test_the_modules_read_alone_are_those_of_the_package():
    assert isinstance(split(convolutions(), images(1)[0][0]), Backbone)
    assert reading.length_of(iter(())) is None
