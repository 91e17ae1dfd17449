"""What would be wrong without a word: each gets an error, a warning, or the right answer."""

from __future__ import annotations

import importlib.util
import random
import threading
import warnings
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import repulse
from models import normal
from repulse import ActiveLearning, CheckpointError, DataError, DataWarning, Recipe, fit_heads, functional, retrofit
from repulse.baselines import KNN, Energy, Laplace, OutlierExposure
from repulse.baselines.last_layer import LastLayer

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

X, Y = normal(60, 4), torch.arange(60) % 3
QUICK = Recipe(epochs=1, heads=3, repulsion_samples=40)


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the checks of shapes, which draw random numbers of their own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


# A library that ends the program.


@pytest.mark.skipif(importlib.util.find_spec("laplace") is None, reason="needs laplace-torch")
def test_laplace_torch_may_give_up_but_not_end_the_program():
    """It calls `exit()`, which nobody takes for an error: the program ends with code 0."""
    layer = LastLayer(torch.ones(3, 4) * torch.arange(1.0, 4).unsqueeze(1), torch.zeros(3))
    with pytest.raises(DataError, match="Expected features and last layer to be such that the curvature is finite"):
        Laplace(layer).fit(1e25 * X, Y)


def test_a_last_layer_that_is_not_finite_is_refused():
    with pytest.raises(DataError, match="Expected the last layer to be finite"):
        LastLayer(torch.full((3, 4), torch.nan), torch.zeros(3))


# Features whose variance over- or underflows.


@pytest.mark.parametrize("change", ["one value", "1e18", "1e-30"])
def test_features_of_any_size_are_learnt(change):
    x = torch.cat([normal(100, 4) + 4, normal(100, 4, seed=1) - 4])
    y = torch.arange(200) // 100
    x = x * float(change) if change != "one value" else torch.where(torch.arange(200).view(-1, 1) == 7, 1e20, x)
    heads = fit_heads(x, y, None, Recipe(heads=3, epochs=40, lr=1e-2), progress=False)
    right = heads.predict(x).labels == y
    assert float(right.float().mean()) > 0.98


# Damaged files.


@pytest.mark.parametrize("kind", [KNN, Energy])
def test_no_flipped_bit_of_a_saved_method_gives_other_scores(tmp_path, kind):
    layer = LastLayer(normal(3, 4), normal(3))
    method = kind(layer).fit(X, Y)
    path = method.save(tmp_path / "method.safetensors")
    wanted, content, draw = method.score(X), path.read_bytes(), random.Random(0)
    for position in [*range(8), *(draw.randrange(len(content)) for _ in range(150))]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            found = kind.load(path).score(X)
        except CheckpointError:
            continue
        assert torch.equal(found, wanted), position  # a space of the header


def test_no_flipped_bit_of_saved_labels_gives_other_labels(tmp_path):
    learning = ActiveLearning(X, lambda *_: None)
    learning.tell(range(20), [i % 3 for i in range(20)])
    path = learning.save(tmp_path / "labels.json")
    content, draw = path.read_bytes(), random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        other = ActiveLearning(X, lambda *_: None)
        try:
            other.load(path)
        except CheckpointError:
            continue
        assert other.known == learning.known


def test_labels_of_the_first_format_are_still_read(tmp_path):
    (tmp_path / "labels.json").write_text('{"format": 1, "indices": [3, 1], "labels": [0, 2]}\n')
    learning = ActiveLearning(X, lambda *_: None)
    learning.load(tmp_path / "labels.json")
    assert learning.known == {3: 0, 1: 2}


# Loaders.


class Short:
    """A loader that gives fewer batches than it says."""

    def __init__(self, batches: int, says: int) -> None:
        self.batches, self.says = batches, says

    def __len__(self) -> int:
        return self.says

    def __iter__(self):
        return iter([(X[i : i + 10], Y[i : i + 10]) for i in range(0, 10 * self.batches, 10)])


def test_a_loader_that_ends_early_is_refused_and_not_kept_as_whole(tmp_path):
    with pytest.raises(DataError, match="`data` to be 6 batches, as its `len` says, but got 4"):
        retrofit(network(), Short(4, 6), repulsion=None, recipe=QUICK, cache=tmp_path, progress=False)
    assert '"complete"' not in (tmp_path / "train.journal").read_text()
    whole = retrofit(network(), Short(6, 6), repulsion=None, recipe=QUICK, cache=tmp_path, progress=False)
    plain = retrofit(network(), Short(6, 6), repulsion=None, recipe=QUICK, progress=False)
    assert torch.equal(whole.heads.vectors(), plain.heads.vectors())
    with pytest.raises(repulse.RepulsionError, match="`repulsion` to be 6 batches, as its `len` says, but got 2"):
        retrofit(
            network(), Short(6, 6), repulsion=Short(2, 6), recipe=QUICK.replace(repulsion_samples=99), progress=False
        )


@pytest.mark.filterwarnings("ignore::repulse.PromiseWarning")
def test_a_part_is_not_taken_for_the_whole():
    ensemble = retrofit(network(), Short(6, 6), repulsion=None, recipe=QUICK, progress=False)
    for name, call in {
        "x": ensemble.predict,
        "id": lambda data: repulse.evaluate(ensemble, data, progress=False),
        "ood": lambda data: repulse.evaluate(ensemble, (X, Y), ood={"far": data}, progress=False),
        "data": lambda data: ensemble.gate(data, progress=False),
    }.items():
        with pytest.raises(DataError, match=f"{name}.* to be 6 batches, as its `len` says, but got 5"):
            call(Short(5, 6))


def shuffling():
    data = TensorDataset(X, Y)
    yield DataLoader(data, batch_size=10, shuffle=True)
    yield DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 10, False))


@pytest.mark.parametrize("loader", list(shuffling()), ids=["shuffle", "batch sampler"])
def test_predictions_in_an_order_that_nobody_knows_are_warned_about(loader):
    ensemble = retrofit(network(), [(X, Y)], repulsion=None, recipe=QUICK, progress=False)
    for call in (ensemble.predict, ensemble.score):
        with pytest.warns(DataWarning, match="The loader shuffles"):
            call(loader)
    assert len(ensemble.predict(DataLoader(TensorDataset(X, Y), batch_size=10))) == 60


# Threads, and modes of the caller.


def test_retrofits_in_several_threads_leave_the_random_states_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    found: list[torch.Tensor] = []
    networks = [network() for _ in range(3)]  # made here: drawing weights in several threads would race itself

    def run(model: nn.Module) -> None:
        for _ in range(2):
            loader = DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)
            ensemble = retrofit(model, loader, repulsion=loader, recipe=QUICK, progress=False)
            found.append(ensemble.heads.vectors())

    threads = [threading.Thread(target=run, args=(model,)) for model in networks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 6
    for other in found:  # threads may add up in another order, but draw the same numbers
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


def test_autocast_around_a_fit_changes_nothing():
    def fits() -> list[torch.Tensor]:
        features = normal(60, 4, seed=2)
        return [
            fit_heads(X, Y, features, QUICK, progress=False).vectors(),
            fit_heads(X, Y, features, QUICK.replace(hidden=(8,)), progress=False).vectors(),
            retrofit(network(), [(X, Y)], repulsion=[X], recipe=QUICK, progress=False).heads.vectors(),
            OutlierExposure(features, outputs=3, steps=20).fit(X, Y).layer.weight,
        ]

    plain = fits()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = fits()
        assert torch.is_autocast_enabled("cpu")
    for one, other in zip(plain, around, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [1e18, 3e38])
@pytest.mark.parametrize("kernel", ["rbf", "imq", "l2", "laplace"])
@pytest.mark.parametrize("on", ["logits", "centred_logits"])
def test_repulsion_of_large_outputs_is_finite_and_as_of_small_ones(size, kernel, on):
    small = normal(5, 4, 3).clamp(-1, 1)
    gradients = []
    for scale in (1e3, size):
        outputs = (small * scale).requires_grad_()
        loss = functional.repulsion(outputs, kernel=kernel, on=on)
        loss.backward()
        assert loss.dtype == torch.float32
        gradients.append(outputs.grad.double() * scale)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(
        functional.kernel_matrix(size * small, kernel=kernel, on=on),
        functional.kernel_matrix(1e3 * small, kernel=kernel, on=on),
    )


def test_outputs_that_no_float_can_square_are_refused():
    with pytest.raises(DataError, match=r"`outputs` to be at most 1e\+150 in size, but got 1e\+200"):
        functional.repulsion(torch.full((3, 2), 1e200, dtype=torch.float64))


# Labels.


def test_a_label_of_another_kind_does_not_change_those_before_it():
    learning = ActiveLearning(X, lambda *_: None)
    learning.tell([0, 1], [2, 1])
    with pytest.raises(DataError, match=r"`labels` to be class indices, as those before, but got 1\.5"):
        learning.tell([50], [1.5])
    learning.tell([2], [0.0])
    assert learning.labels.dtype == torch.int64
    assert learning.labels.tolist() == [2, 1, 0]
    numbers = ActiveLearning(X, lambda *_: None)
    numbers.tell([0], [0.5])
    numbers.tell([1], [2])
    assert numbers.known == {0: 0.5, 1: 2.0}
    assert isinstance(numbers.known[1], float)


def test_nothing_of_a_lock_is_left(tmp_path: Path):
    ensemble = retrofit(network(), [(X, Y)], repulsion=None, recipe=QUICK, cache=tmp_path / "kept", progress=False)
    ensemble.save(tmp_path / "saved")
    assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]
