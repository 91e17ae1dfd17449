"""An ensemble that was saved comes back as it was, or not at all.

The checks of shapes and types that other tests run with are off here, but for one test: errors are what users see.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import os
import pickle
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import repulse
from children import Children, batches, network
from repulse import CheckpointError, Ensemble, Recipe, retrofit
from repulse.repulsion import UniformBox

QUICK = Recipe(epochs=2, heads=3, lr=1e-2)
pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture(autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


def fitted(model: nn.Module, **settings: Any) -> Ensemble:
    settings = {"recipe": QUICK, "repulsion": UniformBox(-3, 3), **settings}
    return retrofit(model, settings.pop("data", None) or batches(), progress=False, **settings)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    """Two folders, each with another ensemble around the same network; not to be changed."""
    root = tmp_path_factory.mktemp("two")
    first = fitted(network(), class_names=["cat", "dog", "élan"])
    second = fitted(network(), recipe=QUICK.replace(seed=1, heads=4, epochs=3))
    return first.save(root / "first"), second.save(root / "second")


@pytest.fixture
def folder(two, tmp_path) -> Path:
    """A folder with a saved ensemble, to be changed."""
    shutil.copytree(two[0], tmp_path / "saved")
    return tmp_path / "saved"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def heads_file(folder: Path) -> Path:
    (path,) = folder.glob("heads-*.safetensors")
    return path


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ensemble.json").read_text())


def write(folder: Path, content: dict[str, Any], *, sealed: bool) -> None:
    """Write the JSON of a folder, with the digest that belongs to it if `sealed`."""

    def text(content: dict[str, Any]) -> str:
        return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    if sealed:
        content = {key: value for key, value in content.items() if key != "digest"}
        content = {**content, "digest": hashlib.sha256(text(content).encode()).hexdigest()}
    (folder / "ensemble.json").write_text(text(content), encoding="utf-8")


def tensors_of(prediction: Any) -> list[Tensor]:
    return [value for value in vars(prediction).values() if isinstance(value, Tensor)]


def check_same(a: Ensemble, b: Ensemble, x: Tensor) -> None:
    assert (a.recipe, a.history, a.class_names, a.layers, a.repulsion) == (
        b.recipe,
        b.history,
        b.class_names,
        b.layers,
        b.repulsion,
    )
    assert (a.heads.task, a.backbone.ending, a.backbone.taps) == (b.heads.task, b.backbone.ending, b.backbone.taps)
    assert repr(a) == repr(b)
    first, second = tensors_of(a.predict(x)), tensors_of(b.predict(x))
    assert first
    assert all(p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert torch.equal(a(x), b(x))
    assert torch.equal(a.score(x), b.score(x))


def refused(folder: Path, model: Any = None, what: str = "it") -> str:
    """The sentence with which a folder is refused."""
    try:
        repulse.load(folder, network() if model is None else model)
    except CheckpointError as reason:
        words = str(reason)
    else:
        pytest.fail(f"{what} was not refused")
    assert words.startswith("Expected ")
    assert words.endswith(".")
    assert "\n" not in words
    return words


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


def test_a_save_killed_at_any_of_50_moments_leaves_the_old_or_the_new(two, tmp_path, children):
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
    for i in range(50):
        old, new = ((0, 1), (1, 0))[i % 2]
        moment = (i + 2 * draw.random()) / 52 * undisturbed[i % 2]["ticks"]
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
    assert 5 < sum(outcomes) < 45
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
    assert "other parameters" in refused(two[0], network().double())
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


# Damaged folders.


def test_heads_that_were_cut_short_are_refused(folder):
    path = heads_file(folder)
    content = path.read_bytes()
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        words = refused(folder)
        assert str(path) in words
        assert f"{length} bytes of something else" in words
    path.write_bytes(content + b"\0")
    refused(folder)
    path.write_bytes(content)
    repulse.load(folder, network())


def test_one_flipped_bit_of_the_heads_is_refused(folder):
    path = heads_file(folder)
    content = path.read_bytes()
    draw = random.Random(0)
    for position in [0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(30))]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert "the heads that were saved" in refused(folder)


def edits(content: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Copies of some JSON, each with one thing changed."""
    if isinstance(content, dict):
        for key, value in content.items():
            rest = {other: value for other, value in content.items() if other != key}
            yield f"{where}.{key} left out", rest
            yield f"{where}.{key} renamed", {**rest, f"{key}x": value}
            yield from ((what, {**content, key: edit}) for what, edit in edits(value, f"{where}.{key}"))
        yield f"{where} with more", {**content, "more": 1}
    elif isinstance(content, list):
        yield f"{where} longer", [*content, content[-1] if content else "x"]
        for i, value in enumerate(content):
            yield f"{where}[{i}] left out", content[:i] + content[i + 1 :]
            yield from ((what, [*content[:i], edit, *content[i + 1 :]]) for what, edit in edits(value, f"{where}[{i}]"))
    else:
        changed = {str: f"{content}x", bool: content is False, type(None): 0}.get(type(content))
        yield f"{where} changed", changed if changed is not None else content + 1
        yield f"{where} made a list", [content]


def test_a_change_of_any_field_is_refused(folder):
    model = network()
    whole = about(folder)
    seen = []
    for what, edit in edits(whole):
        write(folder, edit, sealed=False)
        refused(folder, model, what)
        seen.append(what)
    assert len(seen) > 200
    write(folder, whole, sealed=False)
    repulse.load(folder, model)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(folder, number):
    path = folder / "ensemble.json"
    text = path.read_text()
    start = text.index('"nll": ') + len('"nll": ')
    path.write_text(text[:start] + number + text[text.index(",", start) :])
    assert "changed since" in refused(folder)


def test_half_a_character_is_refused(folder):
    path = folder / "ensemble.json"
    path.write_text(path.read_text().replace("cat", "\\ud800"))
    refused(folder)


def test_json_cut_short_is_refused(folder):
    path = folder / "ensemble.json"
    content = path.read_bytes()
    for length in (0, 1, 2, 100, *range(200, len(content) - 2, 401), len(content) - 3, len(content) - 2):
        path.write_bytes(content[:length])
        assert f"`{path}`" in refused(folder)
    path.write_bytes(content[:-1])  # but for the end of its last line, which says nothing
    repulse.load(folder, network())


@pytest.mark.parametrize(
    "content",
    [b"garbage", b"\xff\xfe\x80\x81", b"\0" * 500, b"[]", b"3", b"null", b'"format"', b"{}", b"[" * 100_000],
    ids=["words", "no text", "zeros", "list", "number", "null", "string", "no keys", "deep"],
)
def test_what_is_no_json_of_ours_is_refused(folder, content):
    (folder / "ensemble.json").write_bytes(content)
    assert str(folder / "ensemble.json") in refused(folder)


def test_sealing_as_the_tests_do_it_is_sealing(folder):
    """Without this, the tests below would be refused for a wrong digest."""
    content = about(folder)
    write(folder, {**content, "repulsion": "on the moon"}, sealed=True)
    assert repulse.load(folder, network()).repulsion == "on the moon"
    write(folder, {**content, "repulsion": "on the moon"}, sealed=False)
    refused(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_format_is_refused(folder, version):
    write(folder, {**about(folder), "format": version}, sealed=True)
    assert refused(folder) == (
        f"Expected the format of {folder / 'ensemble.json'} to be 1, but got {version!r}; a newer repulse may read it."
    )


def test_a_missing_file_is_named(folder, tmp_path):
    name = heads_file(folder).name
    heads_file(folder).unlink()
    assert refused(folder) == f"Expected `folder` to be one with {name} in it, but got No such file or directory."
    (folder / "ensemble.json").unlink()
    for missing in (folder, tmp_path / "nowhere"):
        assert refused(missing) == (
            f"Expected `folder` to be one that `save` wrote, with ensemble.json in it, but got {missing}, where No "
            "such file or directory."
        )
    (tmp_path / "file").write_text("mine")
    assert "where Not a directory" in refused(tmp_path / "file")


class Mine:
    """Whoever unpickles this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("way", ["pickle", "torch"])
def test_a_pickle_in_place_of_the_heads_is_not_unpickled(folder, tmp_path, way):
    path, trace = heads_file(folder), tmp_path / "trace"
    if way == "pickle":
        path.write_bytes(pickle.dumps(Mine(trace)))
        pickle.loads(path.read_bytes()).close()
    else:
        torch.save({"weights.0": Mine(trace)}, path)
        torch.load(io.BytesIO(path.read_bytes()), weights_only=False)["weights.0"].close()
    assert trace.exists()  # it is a trap
    trace.unlink()
    assert "the heads that were saved" in refused(folder)
    content = about(folder)
    content["heads"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    write(folder, content, sealed=True)
    assert "a safetensors file" in refused(folder)
    assert not trace.exists()


def test_heads_outside_the_folder_are_refused(folder, tmp_path):
    path = heads_file(folder)
    elsewhere = Path(shutil.move(path, tmp_path))
    (folder / "inside").mkdir()
    shutil.copy(elsewhere, folder / "inside")
    content = about(folder)
    for name in (f"../{path.name}", str(elsewhere), f"inside/{path.name}", f"inside/../../{path.name}", "", ".", ".."):
        content["heads"]["file"] = name
        write(folder, content, sealed=True)
        words = refused(folder)
        assert name in ("..",) or words == (
            f"Expected the file of the heads to be in the folder itself, but got {name!r}."
        )
    shutil.copy(elsewhere, path)  # where it is taken
    content["heads"]["file"] = path.name
    write(folder, content, sealed=True)
    repulse.load(folder, network())


def test_sealed_nonsense_is_refused(folder):
    """What no accident makes, a hand may."""
    content = about(folder)
    for key, value in {
        "task": {"kind": "clustering"},
        "recipe": {"heads": 0},
        "ending": {"layers": ["nowhere"]},
        "taps": [{"name": "0"}],
        "history": [{}],
        "heads": {**content["heads"], "count": 7},
    }.items():
        write(folder, {**content, key: value}, sealed=True)
        with pytest.raises(CheckpointError):
            repulse.load(folder, network())


# Folders that cannot be used.


def test_a_save_under_a_file_is_refused_and_leaves_nothing(two, tmp_path):
    ensemble = repulse.load(two[0], network())
    file = tmp_path / "file"
    file.write_text("mine")
    for folder, why in ((file, "it is a file"), (file / "below", "Not a directory")):
        with pytest.raises(CheckpointError) as reason:
            ensemble.save(folder)
        assert str(reason.value) == (
            f"Expected `folder` to be a folder that can be written to, but got {folder}, where {why}."
        )
    assert files(tmp_path) == {"file": b"mine"}


def test_a_save_where_one_may_not_write_is_refused_and_leaves_nothing(two, children):
    with tempfile.TemporaryDirectory() as name:
        public = Path(name)
        source = shutil.copytree(two[0], public / "source")
        target = shutil.copytree(two[1], public / "target")
        before = files(target)
        mode = 0o755 if os.geteuid() == 0 else 0o500
        for folder in (target, public):
            folder.chmod(mode)
        for folder in (target, public / "new"):
            ended = children.run("save_as_nobody", folder=str(folder), source=str(source))
            assert ended.get("error") == "CheckpointError", ended
            assert ended["words"] == (
                f"Expected `folder` to be a folder that can be written to, but got {folder}, where Permission denied."
            )
        assert files(target) == before
        assert sorted(path.name for path in public.iterdir()) == ["source", "target"]
        for folder in (target, public):
            folder.chmod(0o700)
