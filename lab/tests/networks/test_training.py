from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from repulse.backbone.fingerprint import weights_of
from repulse.errors import CheckpointError, DataError, RecipeError
from repulse_lab.data import load
from repulse_lab.data.images import normalise
from repulse_lab.networks import build
from repulse_lab.networks.augment import augment
from repulse_lab.networks.mlp import MLP
from repulse_lab.networks.resume import FILE
from repulse_lab.networks.spectral_norm import apply_spectral_norm
from repulse_lab.networks.train import SCHEDULES, DivergedError, Record, Schedule, train

MEAN, STD = (0.5, 0.4), (0.2, 0.3)
SHORT = Schedule(epochs=4, lr=0.05, milestones=(2,), batch_size=8, crop=2, flip=True)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bytes_of(count: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    images = torch.randint(256, (count, 2, 10, 10), dtype=torch.uint8, generator=random(seed))
    return images, torch.randint(3, (count,), generator=random(seed + 1))


def small(seed: int = 0) -> nn.Sequential:
    """A network with everything that has a state of its own: running means, dropout, spectral normalisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            *(nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)),
        )
    apply_spectral_norm(network, 0.7, torch.zeros(1, 2, 10, 10))
    return network


def run(network: nn.Module, schedule: Schedule = SHORT, **options) -> list[Record]:
    images, targets = bytes_of()
    return train(network, images, targets, schedule, mean=MEAN, std=STD, progress=False, **options)


def untimed(records: list[Record]) -> list[Record]:
    return [dataclasses.replace(record, seconds=0.0) for record in records]


# Schedules


def test_schedules_of_the_paper() -> None:
    assert SCHEDULES["dirty-mnist"] == Schedule(50, 0.1, (25, 40), 0.1, 0.9, 5e-4, 128, "sgd", "steps", 0, False)
    cifar = SCHEDULES["cifar"]
    assert (cifar.epochs, cifar.milestones, cifar.crop, cifar.flip) == (300, (150, 250), 4, True)
    assert [cifar.rate(epoch) for epoch in (0, 149.99, 150, 250, 299)] == pytest.approx([0.1, 0.1, 0.01, 1e-3, 1e-3])


def test_one_cycle_rises_and_falls() -> None:
    cycle = Schedule(epochs=8, lr=0.4, policy="onecycle")
    rates = [cycle.rate(epoch) for epoch in (0, 1, 2, 5, 8)]
    assert rates == pytest.approx([0.4 / 25, 0.4 * 13 / 25, 0.4, 0.2, 0.0], abs=1e-12)
    assert cycle.rate(1.999) == pytest.approx(cycle.rate(2.001), rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "Expected `epochs` to be a positive integer, but got 0."),
        ({"lr": math.nan}, "Expected `lr` to be a positive, finite number, but got nan."),
        ({"weight_decay": -1.0}, "Expected `weight_decay` to be a finite number that is zero or larger, but got -1.0."),
        (
            {"optimizer": "Adam"},
            "Expected `optimizer` to be one of 'sgd', 'adam', but got 'Adam'. Did you mean 'adam'?",
        ),
        ({"policy": "cosine"}, "Expected `policy` to be one of 'steps', 'onecycle', but got 'cosine'."),
        ({"milestones": (3, 2)}, "Expected `milestones` to be rising epochs between 0 and 10, but got (3, 2)."),
        ({"milestones": (10,)}, "Expected `milestones` to be rising epochs between 0 and 10, but got (10,)."),
        (
            {"milestones": (3,), "policy": "onecycle"},
            "Expected `milestones` to be left out for a one-cycle schedule, but got (3,).",
        ),
        ({"crop": -1}, "Expected `crop` to be a number of pixels, or 0, but got -1."),
    ],
)
def test_impossible_schedules_are_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        Schedule(**{"epochs": 10, "lr": 0.1, **changes})
    assert str(error.value) == sentence


# Augmentation


def test_crops_are_windows_of_the_padded_image() -> None:
    images = torch.randint(1, 256, (200, 2, 6, 5), dtype=torch.uint8, generator=random())
    changed = augment(images, 2, True, random(1))
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    seen = set()
    for image, new in zip(F.pad(images, (2, 2, 2, 2)), changed, strict=True):
        found = [
            (down, right, mirrored)
            for down in range(5)
            for right in range(5)
            for mirrored in (False, True)
            if torch.equal(new.flip(2) if mirrored else new, image[:, down : down + 6, right : right + 5])
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {(down, right) for down, right, _ in seen} == {(a, b) for a in range(5) for b in range(5)}
    assert {mirrored for *_, mirrored in seen} == {False, True}


def test_augmentation_can_be_left_out_in_part() -> None:
    images = torch.rand(300, 1, 4, 4, generator=random())
    assert augment(images, 0, False, random()) is images
    flipped = augment(images, 0, True, random())
    same = (flipped == images).flatten(1).all(dim=1)
    assert 100 < int(same.sum()) < 200
    assert torch.equal(flipped[~same], images[~same].flip(3))


# Training


def test_steps_are_those_of_sgd_with_momentum() -> None:
    x, y = torch.randn(12, 4, generator=random()), torch.arange(12) % 3
    layer = nn.Linear(4, 3)
    weight, bias = (value.detach().clone().requires_grad_() for value in layer.parameters())
    records = train(layer, x, y, Schedule(3, 0.1, (2,), batch_size=64, momentum=0.8, weight_decay=0.01), progress=False)
    speed, losses = [torch.zeros_like(weight), torch.zeros_like(bias)], []
    for rate in (0.1, 0.1, 0.01):  # one batch holds everything, so order does not matter
        loss = F.cross_entropy(x @ weight.T + bias, y)
        slopes = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            for i, value in enumerate((weight, bias)):
                speed[i] = 0.8 * speed[i] + slopes[i] + 0.01 * value
                value.sub_(rate * speed[i])
        losses.append(loss.item())
    torch.testing.assert_close(layer.weight, weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.bias, bias, rtol=1e-5, atol=1e-6)
    assert [record.loss for record in records] == pytest.approx(losses, rel=1e-5)
    assert [record.lr for record in records] == pytest.approx([0.1, 0.1, 0.01])


def test_every_image_is_seen_once_an_epoch() -> None:
    seen: list[Tensor] = []
    network = nn.Linear(1, 2)
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten()))
    images = torch.arange(10.0).unsqueeze(1)
    schedule = Schedule(2, 1e-3, batch_size=4)
    train(network, images, torch.zeros(10, dtype=torch.long), schedule, progress=False)
    assert [len(batch) for batch in seen] == [4, 4, 2, 4, 4, 2]
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == images.flatten().tolist()
    assert not torch.equal(first, second)


def test_bytes_are_normalised_and_floats_are_not() -> None:
    images, targets = bytes_of()
    plain = dataclasses.replace(SHORT, crop=0, flip=False)
    one, two = small(), small()
    run(one, plain)
    train(two, normalise(images, MEAN, STD), targets, plain, progress=False)
    assert weights_of(one) == weights_of(two)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_learns_and_ends_in_eval_mode(optimizer: str) -> None:
    centres = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]])
    y = torch.arange(300) % 3
    x = centres[y] + torch.randn(300, 2, generator=random())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # whatever ran before
        network = MLP(2, 3, width=32)
    rate = 0.1 if optimizer == "sgd" else 0.01
    records = train(network, x, y, Schedule(8, rate, optimizer=optimizer, policy="onecycle", batch_size=32))
    assert not network.training
    assert records[-1].accuracy > 0.95
    assert records[-1].loss < 0.2 < records[0].loss
    assert [record.epoch for record in records] == list(range(1, 9))


def test_global_random_state_stays_and_seeds_decide() -> None:
    state = torch.random.get_rng_state()
    one, two, other = small(), small(), small()
    records = run(one, seed=5)
    assert untimed(records) == untimed(run(two, seed=5))
    run(other, seed=6)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert weights_of(one) == weights_of(two) != weights_of(other)


@pytest.mark.parametrize("channels_last", [None, True, False])
def test_memory_layout_changes_no_more_than_rounding(channels_last: bool | None) -> None:
    network, other = small(), small()
    run(network, channels_last=channels_last)
    run(other, channels_last=False)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last) == (channels_last is not False)
    torch.testing.assert_close(network[-1].weight, other[-1].weight, rtol=1e-2, atol=1e-4)


# Interruptions


class InterruptedTrainingError(Exception):
    pass


def interrupt(network: nn.Module, call: int) -> RemovableHandle:
    """Let the network fail the n-th time that it is called."""
    calls = []

    def hook(*_: object) -> None:
        calls.append(1)
        if len(calls) == call:
            raise InterruptedTrainingError

    return network.register_forward_pre_hook(hook)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resumed_training_is_bitwise_the_undisturbed_one(tmp_path: Path, optimizer: str) -> None:
    schedule = dataclasses.replace(SHORT, optimizer=optimizer)
    whole = small()
    records = run(whole, schedule)
    for call in (2, 5, 8):  # three batches an epoch: in the first, in the second, and again in the second
        broken = small()
        interrupt(broken, call)
        with pytest.raises(InterruptedTrainingError):
            run(broken, schedule, checkpoint=tmp_path)
        assert not broken.training
    resumed = small()
    assert untimed(run(resumed, schedule, checkpoint=tmp_path)) == untimed(records)
    assert weights_of(resumed) == weights_of(whole)
    images = normalise(bytes_of()[0], MEAN, STD)
    assert torch.equal(resumed(images), whole(images))


def test_interrupted_network_itself_can_go_on(tmp_path: Path) -> None:
    whole, network, fresh = small(), small(), small()
    run(whole)
    for call in (2, 5, 5):
        hook = interrupt(network, call)
        with pytest.raises(InterruptedTrainingError):
            run(network, checkpoint=tmp_path)
        hook.remove()
    run(network, checkpoint=tmp_path)
    run(fresh, checkpoint=tmp_path)
    assert weights_of(network) == weights_of(whole) == weights_of(fresh)


def test_finished_training_is_not_run_again(tmp_path: Path) -> None:
    first, second = small(), small()
    records = run(first, checkpoint=tmp_path)
    interrupt(second, 1)
    assert run(second, checkpoint=tmp_path) == records
    assert weights_of(second) == weights_of(first)
    assert run(first, checkpoint=tmp_path) == records  # the trained network itself will do as well
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", FILE]
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert [Record(**record) for record in json.loads(file.metadata()["about"])["records"]] == records


def test_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    run(small(), checkpoint=tmp_path)
    images, targets = bytes_of()
    start = "Expected `checkpoint` to be a folder of this training, or an empty one, but got "
    wider = nn.Sequential(*list(small())[:-1], nn.Linear(256, 4))

    def refused(what: str, network: nn.Module, images=images, targets=targets, schedule=SHORT, **options) -> None:
        options = {"mean": MEAN, "std": STD, "checkpoint": tmp_path, "progress": False, **options}
        with pytest.raises(CheckpointError) as error:
            train(network, images, targets, schedule, **options)
        assert str(error.value) == f"{start}{tmp_path}, of one with other {what}."

    refused("schedule", small(), schedule=dataclasses.replace(SHORT, lr=0.01))
    refused("seed", small(), seed=1)
    refused("network", wider)
    refused("weights", small(1))
    refused("data", small(), images=255 - images)
    refused("data", small(), targets=2 - targets)
    refused("normalisation", small(), mean=(0.5, 0.5))
    refused("schedule and seed", small(), schedule=dataclasses.replace(SHORT, epochs=5), seed=1)


def test_damaged_checkpoints_and_busy_folders_are_refused(tmp_path: Path) -> None:
    run(small(), checkpoint=tmp_path)
    content = (tmp_path / FILE).read_bytes()
    for broken in (content[:-10], b"", content[:30] + b"!" + content[31:]):
        (tmp_path / FILE).write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"to be a training that was kept, but got a damaged file"):
            run(small(), checkpoint=tmp_path)
    (tmp_path / FILE).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(CheckpointError, match=r"to be as the training wrote it, but got one that was changed since\."):
        run(small(), checkpoint=tmp_path)
    (tmp_path / FILE).write_bytes(content.replace(b'\\"format\\": 1', b'\\"format\\": 9'))
    with pytest.raises(CheckpointError, match=r"Expected the format of .* to be 1, but got 9"):
        run(small(), checkpoint=tmp_path)
    with FileLock(tmp_path / ".lock"), pytest.raises(CheckpointError, match="where another process is training"):
        run(small(), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="Expected `checkpoint` to be a folder that can be written to"):
        run(small(), checkpoint=tmp_path / FILE)


KILLED = """
import os, random, signal, sys, time
import torch
from repulse.backbone.fingerprint import weights_of
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.train import Schedule, train

torch.set_num_threads(1)
images = torch.rand(24, 1, 16, 16, generator=torch.Generator().manual_seed(0))
targets = torch.arange(24) % 10

def run(folder):
    torch.manual_seed(0)
    network = LeNet(size=16)
    schedule = Schedule(epochs=60, lr=0.1, batch_size=8, crop=1)
    train(network, images, targets, schedule, checkpoint=folder, progress=False)
    print(weights_of(network), flush=True)

def written():
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0

path, dice, kills = os.path.join(sys.argv[1], "training.safetensors"), random.Random(0), 0
run(None)  # undisturbed; and what is imported late is there for all children
for last in [False] * 6 + [True]:
    before = written()
    child = os.fork()
    if not child:
        run(sys.argv[1])
        os._exit(0)
    ended = os.waitpid(child, 0 if last else os.WNOHANG)
    while not ended[0] and written() == before:
        time.sleep(0.001)
        ended = os.waitpid(child, os.WNOHANG)
    if not ended[0]:  # it is an epoch further: anywhere in the next two or so
        time.sleep(dice.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(ended[1])
print(kills, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_training_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    undisturbed, *killed, kills = done.stdout.split()
    assert int(kills) >= 3  # of six; on a machine that stalls, some may come too late
    assert killed
    assert set(killed) == {undisturbed}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", FILE]


def test_divergence_is_said_and_the_last_good_state_kept(tmp_path: Path) -> None:
    network, wild = small(), dataclasses.replace(SHORT, lr=1e-6, milestones=(1,), factor=1e40)
    with pytest.raises(DivergedError) as error:
        run(network, wild, checkpoint=tmp_path)
    start = "Expected the loss to be finite, but got nan in step "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith(" of epoch 2; a lower learning rate may help.")
    assert not network.training
    assert all(bool(value.isfinite().all()) for value in network.state_dict().values())
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert json.loads(file.metadata()["about"])["weights"] == weights_of(network)


def test_divergence_in_the_last_step_is_seen(tmp_path: Path) -> None:
    network, start = small(), weights_of(small())
    wild = Schedule(2, 3e38, weight_decay=100.0, batch_size=64)  # one step an epoch, after a loss that is finite
    with pytest.raises(
        DivergedError, match=r"Expected the weights to be finite, but got NaN .* after epoch 1; a lower"
    ):
        run(network, wild, checkpoint=tmp_path)
    assert weights_of(network) == start
    assert not (tmp_path / FILE).exists()


# What cannot be trained on


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": torch.rand(20, 2, 10, 10)}, r"Expected mean and std to be left out for floats"),
        ({"mean": None}, r"Expected images of bytes to be \(N, C, H, W\) with `mean` and `std` of each channel"),
        ({"mean": (0.5,), "std": (0.2,)}, r"Expected images of bytes .* mean \(0\.5,\) and std \(0\.2,\)\."),
        ({"std": (0.2, 0.0)}, r"Expected `std` to be above zero, but got \(0\.2, 0\.0\)\."),
        ({"images": torch.zeros(0, 2, 10, 10)}, r"Expected `images` to be a tensor with at least one image"),
        ({"images": torch.zeros(20, 2, 10, 10, dtype=torch.int64)}, r"Expected `images` to be bytes, or finite floats"),
        (
            {"images": torch.full((20, 2, 10, 10), math.nan), "mean": None, "std": None},
            r"Expected `images` to be bytes, or finite floats, but got NaN or infinite values\.",
        ),
        ({"images": torch.zeros(20, 5), "mean": None, "std": None}, r"for a schedule that crops or flips"),
        (
            {"targets": torch.zeros(19, dtype=torch.long)},
            r"Expected `targets` to be 20 classes from 0 on, one per image",
        ),
        ({"targets": torch.zeros(20)}, r"Expected `targets` to be 20 classes .* but got torch\.float32 of shape"),
        ({"targets": torch.full((20,), -1)}, r"Expected `targets` to be 20 classes from 0 on"),
        ({"targets": torch.full((20,), 3)}, r"Expected `network\(images\)` to be logits \(B, K\) with K above 3"),
    ],
)
def test_bad_data_is_refused(changes: dict, sentence: str) -> None:
    images, targets = bytes_of()
    given = {"images": images, "targets": targets, "mean": MEAN, "std": STD, **changes}
    with pytest.raises(DataError, match=sentence):
        train(small(), given.pop("images"), given.pop("targets"), SHORT, progress=False, **given)


def test_bad_seed_and_network_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"Expected `seed` to be an integer from 0 on, but got -1\."):
        run(small(), seed=-1)
    with pytest.raises(DataError, match=r"Expected `network` to be a module with parameters, but got Flatten\."):
        run(nn.Flatten())


@pytest.mark.data
def test_lenet_learns_digits(data_root: Path) -> None:
    images, targets = load("mnist", "train", data_root).labelled
    test, labels = load("mnist", "test", data_root).labelled
    network = build("lenet", channels=1, size=28)
    short = dataclasses.replace(SCHEDULES["cpu-lenet"], epochs=3)
    train(network, images[:6000], targets[:6000], short, mean=(0.1307,), std=(0.3081,), progress=False)
    with torch.no_grad():
        right = network(normalise(test[:2000], (0.1307,), (0.3081,))).argmax(dim=1) == labels[:2000]
    assert right.float().mean() > 0.9
