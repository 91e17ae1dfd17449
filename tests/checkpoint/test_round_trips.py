"""An ensemble that was saved comes back as it was, or not at all.

The checks of shapes and types that other tests run with are off here, but for one test: errors are what users see.
"""

from __future__ import annotations

import copy
import math
import random
import shutil
import signal
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import nn

import repulse
from children import network
from repulse import CheckpointError
from saved_ensembles import QUICK, about, check_same, files, fitted, heads_file, refused

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

# Round trips.


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 5),
    )


def with_outputs(outputs: int, *after: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs), *after)


X = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))
IMAGES = torch.rand(48, 3, 12, 12, generator=torch.Generator().manual_seed(3))
CLASSES = [(X[:32], torch.arange(32) % 3), (X[32:], torch.arange(32) % 3)]
ZERO_ONE = [(X, (X[:, :1] > 0).float())]
NUMBERS = [(X, X[:, 0] + 0.1)]
PICTURES = [(IMAGES, torch.arange(48) % 5)]
REGRESSION = QUICK.replace(task="regression")

KINDS = {
    "classification": (with_outputs(3), CLASSES, {"class_names": ["a", "b", "ü"]}),
    "log-softmax": (with_outputs(3, nn.LogSoftmax(dim=1)), CLASSES, {}),
    "single logit": (with_outputs(1), ZERO_ONE, {"class_names": ("no", "yes")}),
    "regression": (with_outputs(1), NUMBERS, {"recipe": REGRESSION}),
    "regression with noise": (with_outputs(1), NUMBERS, {"recipe": REGRESSION.replace(noise=0.3)}),
    "mean and variance": (with_outputs(2), NUMBERS, {"recipe": REGRESSION}),
    "hidden layers": (with_outputs(3), CLASSES, {"recipe": QUICK.replace(hidden=(7, 5))}),
    "parameters repel": (with_outputs(3), CLASSES, {"recipe": repulse.RLL_E.replace(epochs=2), "repulsion": None}),
    "nowhere": (with_outputs(3), CLASSES, {"repulsion": None}),
    "taps": (convolutional(), PICTURES, {"repulsion": "auto", "recipe": QUICK.replace(layers="auto")}),
    "named taps": (convolutional(), PICTURES, {"repulsion": "auto", "recipe": QUICK.replace(layers=("2", "5"))}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_comes_back(tmp_path, kind):
    model, data, settings = KINDS[kind]
    x = data[0][0]
    ensemble = fitted(model, data=data, **settings)
    ensemble.save(tmp_path / "saved")
    loaded = repulse.load(tmp_path / "saved", copy.deepcopy(model))
    check_same(loaded, ensemble, x)
    assert not any(p.requires_grad for p in loaded.heads.parameters())
    assert kind != "taps" or loaded.backbone.taps
    loaded.save(tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "saved")


def test_saving_twice_gives_the_same_bytes_and_two_files(folder, two):
    before = files(folder)
    assert repulse.load(two[0], network()).save(folder) == folder
    assert files(folder) == before
    assert sorted(before) == ["ensemble.json", heads_file(folder).name]


def test_the_folder_may_be_a_string_with_parents_that_are_not_there(two, tmp_path):
    ensemble = repulse.load(str(two[0]), network())
    ensemble.save(str(tmp_path / "a" / "b" / "c"))
    assert files(tmp_path / "a" / "b" / "c") == files(two[0])


def test_modes_do_not_matter_and_the_model_is_untouched(tmp_path):
    model = convolutional()
    x = IMAGES
    ensemble = fitted(model, data=PICTURES, repulsion="auto")
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    ensemble.save(tmp_path / "saved")
    loaded = repulse.load(tmp_path / "saved", model)
    check_same(loaded, ensemble, x)
    assert loaded.model is model
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    check_same(repulse.load(tmp_path / "saved", copy.deepcopy(model).eval()), ensemble, x)
    ensemble.eval().save(tmp_path / "eval")
    assert files(tmp_path / "eval") == files(tmp_path / "saved")


def test_loading_keeps_to_the_types_in_annotations(two):
    jaxtyping.config.update("jaxtyping_disable", False)
    assert repulse.load(two[0], network()).recipe.hidden == ()


def test_loading_leaves_the_random_state_of_the_caller_alone(two):
    model = network()
    before = torch.get_rng_state()
    repulse.load(two[0], model)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_ensemble_in_double_precision_comes_back_in_it(two, tmp_path):
    ensemble = repulse.load(two[0], network())
    ensemble.heads.double()
    ensemble.save(tmp_path / "saved")
    check_same(repulse.load(tmp_path / "saved", network()), ensemble, X)


def test_heads_of_a_network_that_was_trained_further_are_refused(two, tmp_path):
    """The fingerprint is of the network the heads were fitted on, not of what it has become."""
    model = network()
    ensemble = repulse.load(two[0], model)
    with torch.no_grad():
        next(model.parameters()).mul_(-2)
    ensemble.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="other weights"):
        repulse.load(tmp_path / "saved", model)


def test_heads_come_back_in_their_own_type_whatever_the_default_is(two):
    wanted = repulse.load(two[0], network())
    model = network()
    torch.set_default_dtype(torch.float64)
    try:
        loaded = repulse.load(two[0], model)
    finally:
        torch.set_default_dtype(torch.float32)
    check_same(loaded, wanted, X)


def test_no_names_of_classes_are_no_names(two):
    assert repulse.load(two[0], network()).class_names == ("cat", "dog", "élan")
    assert repulse.load(two[1], network()).class_names is None


def test_a_later_save_replaces_an_earlier_one(folder, two):
    repulse.load(two[1], network()).save(folder)
    assert files(folder) == files(two[1])


def test_a_save_leaves_what_others_keep_in_the_folder(folder, two):
    (folder / "notes.txt").write_text("of the user")
    (folder / "model.safetensors").write_text("of the user too")
    repulse.load(two[1], network()).save(folder)
    assert set(files(folder)) - set(files(two[1])) == {"notes.txt", "model.safetensors"}


# Saves that were killed.


def test_a_save_killed_at_any_of_20_moments_leaves_the_old_or_the_new(two, tmp_path, children):
    ensembles = [repulse.load(folder, network()) for folder in two]
    heads = [heads_file(folder).name for folder in two]
    draw = random.Random(0)
    outcomes, leftovers = [], set()
    undisturbed = []
    for old, new in ((0, 1), (1, 0)):
        folder = tmp_path / f"undisturbed {new}"
        shutil.copytree(two[old], folder)
        undisturbed.append(children.run("save", folder=str(folder), source=str(two[new])))
        assert files(folder) == files(two[new])
    for i in range(20):
        old, new = ((0, 1), (1, 0))[i % 2]
        moment = (i + 2 * draw.random()) / 22 * undisturbed[i % 2]["ticks"]
        folder = tmp_path / str(i)
        shutil.copytree(two[old], folder)
        killed = children.run(
            "save", folder=str(folder), source=str(two[new]), tick=int(moment) + 1, later=1.5 * draw.random()
        )
        assert killed["signal"] == signal.SIGKILL
        leftovers.add(tuple(sorted("half" if name.startswith(".") else name for name in files(folder))))
        loaded = repulse.load(folder, network())
        outcome = new if heads_file_of(folder) == heads[new] else old
        outcomes.append(outcome == new)
        check_same(loaded, ensembles[outcome], X)
        repulse.load(two[new], network()).save(folder)
        assert files(folder) == files(two[new]), f"killed at tick {moment:.1f}"
    assert 2 < sum(outcomes) < 18
    assert len(leftovers) > 4  # kills did come between the steps


def heads_file_of(folder: Path) -> str:
    return about(folder)["heads"]["file"]


def test_a_first_save_that_was_killed_is_no_ensemble_or_a_whole_one(two, tmp_path, children):
    ticks = children.run("save", folder=str(tmp_path / "whole"), source=str(two[0]))["ticks"]
    wanted = repulse.load(two[0], network())
    whole = 0
    for tick in range(1, ticks + 2):
        folder = tmp_path / str(tick)
        children.run("save", folder=str(folder), source=str(two[0]), tick=tick)
        if (folder / "ensemble.json").exists():
            check_same(repulse.load(folder, network()), wanted, X)
            whole += 1
        else:
            assert "No such file" in refused(folder)
        wanted.save(folder)
        assert files(folder) == files(two[0])
    assert 0 < whole < ticks


def test_a_full_disk_leaves_the_ensemble_that_was_there(folder, two, children):
    before = files(folder)
    sizes = sorted({path.stat().st_size for path in two[1].iterdir()})
    for room in (0, sizes[0] // 2, sizes[0] + 1, sizes[1] - 1):
        ended = children.run("save_in_little_room", folder=str(folder), source=str(two[1]), room=room)
        assert ended["error"] == "CheckpointError", ended
        assert ended["words"] == (
            f"Expected `folder` to be a folder that can be written to, but got {folder}, where File too large."
        )
        kept = files(folder)
        assert all(kept[name] == before[name] for name in before)
        assert not any(name.startswith(".") for name in kept)
        check_same(repulse.load(folder, network()), repulse.load(two[0], network()), X)
    repulse.load(two[1], network()).save(folder)
    assert files(folder) == files(two[1])


# Other networks.


def test_another_architecture_is_refused(two):
    assert refused(two[0], with_outputs(3)) == (
        "Expected `model` to be the Sequential the heads were fitted on, but got a Sequential with other parameters."
    )
    assert "parameters of torch.float64" in refused(two[0], network().double())
    assert "other parameters" in refused(two[0], nn.ModuleDict({"inside": network()}))
    assert "other parameters" in refused(two[0], nn.Identity())


@pytest.mark.parametrize("name", ["0.weight", "2.bias", "4.weight"])
def test_one_other_weight_is_refused(two, name):
    model = network()
    with torch.no_grad():
        value = model.get_parameter(name).view(-1)
        value[-1] = torch.nextafter(value[-1], torch.tensor(math.inf))
    assert refused(two[0], model) == (
        "Expected `model` to be the Sequential the heads were fitted on, but got the same architecture with other "
        "weights."
    )


def test_other_statistics_of_batch_norm_are_other_weights(tmp_path):
    model = convolutional()
    fitted(model, data=PICTURES, repulsion="auto").save(tmp_path / "saved")
    model[1].running_mean[0] += 1e-3
    assert "other weights" in refused(tmp_path / "saved", model)


def test_the_same_weights_in_another_network_are_refused(two):
    """Names and shapes are the same too."""
    model = network()
    model[1] = nn.Tanh()
    refused(two[0], model)


@pytest.mark.parametrize("model", ["resnet", 3, nn.Linear], ids=["name", "number", "class"])
def test_what_is_no_network_is_refused(two, model):
    assert refused(two[0], model).startswith("Expected `model` to be the network the heads were fitted on, but got")
