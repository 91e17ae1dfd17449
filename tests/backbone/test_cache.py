"""Features that are kept: used when they are right, and never when they are not, whatever happened to the folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from children import BATCHES, ROWS, SOURCE, WIDTH, Children, batches, computed, counting, network
from repulse import CacheError, CacheWarning, DataError, Recipe, RepulseError, fit_heads, retrofit
from repulse.backbone import split
from repulse.backbone.batches import digest_of
from repulse.backbone.features import Features, compute_features
from repulse.repulsion import Noise, Source, UniformBox

ALL = 1 + 2 * BATCHES
"""Passes of a whole build: the first batch to see what there is, then each batch and the samples drawn from it."""

QUICK = Recipe(epochs=2, heads=4, lr=1e-2, repulsion_samples=ROWS * BATCHES)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder with complete features; not to be changed."""
    folder = tmp_path_factory.mktemp("kept") / "cache"
    computed(cache=folder)
    return folder


@pytest.fixture
def copy(kept, folder) -> Path:
    """A folder with complete features, to be changed."""
    shutil.copytree(kept, folder)
    return folder


@pytest.fixture(scope="module")
def right() -> Features:
    """What every run must come to: features computed without a cache."""
    return computed()[0]


def same(a: Features, b: Features) -> bool:
    pairs = [(a.train, b.train), (a.targets, b.targets)]
    if a.repulsion is not None or b.repulsion is not None:
        pairs.append((a.repulsion, b.repulsion))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


def journal(folder: Path, part: str = "train") -> list[dict[str, Any]]:
    """The lines of a journal, up to one that was cut short."""
    path = folder / f"{part}.journal"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def batches_in(folder: Path) -> int:
    """How many batches the journals of a folder know."""
    return sum("rows" in line for part in ("train", "repulsion") for line in journal(folder, part))


def is_complete(folder: Path, part: str = "train") -> bool:
    return bool(journal(folder, part)) and "complete" in journal(folder, part)[-1]


def features_of(model: nn.Module, data: Iterable[Any], repulsion: Any = None, **settings: Any) -> Features:
    first = next(iter(data))
    inputs = {k: v for k, v in first.items() if k != "labels"} if isinstance(first, dict) else first[0]
    settings = {"samples": ROWS * BATCHES, **settings}
    return compute_features(split(model, inputs), data, repulsion, progress=False, **settings)


def mapped_from(values: Tensor) -> str:
    """The file that the numbers of a tensor are mapped from, if any."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= values.data_ptr() < end:
            return path if path.startswith("/") else ""
    return ""


# What is kept is used.


def test_a_second_run_computes_nothing_but_the_first_batch(folder, right):
    first, passes = computed(cache=folder)
    assert passes == ALL
    before = files(folder)
    second, passes = computed(cache=folder)
    assert passes == 1
    assert same(first, right)
    assert same(second, right)
    assert files(folder) == before


@pytest.mark.parametrize(
    "repulsion",
    [SOURCE, [torch.ones(30, 4), torch.zeros(30, 4)], torch.ones(20, WIDTH), None],
    ids=["source", "loader", "features", "nowhere"],
)
def test_features_with_and_without_a_cache_are_equal(folder, repulsion):
    model = network()
    settings = {"samples": 45, "seed": 3}
    without = features_of(model, batches(), repulsion, **settings)
    for _ in range(2):
        assert same(features_of(model, batches(), repulsion, cache=folder, **settings), without)


def test_features_of_a_data_set_that_ends_in_a_smaller_batch(folder):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    data = list(zip(x.split(16), (torch.arange(50) % 3).split(16), strict=True))
    without = features_of(network(), data, SOURCE)
    assert without.train.shape == (50, WIDTH)
    for _ in range(2):
        assert same(features_of(network(), data, SOURCE, cache=folder), without)


def test_another_source_of_repulsion_leaves_the_training_features_alone(copy):
    before = files(copy)
    model, data = network(), batches()
    backbone, passes = split(model, data[0][0]), counting(model)
    with pytest.warns(CacheWarning, match=r"cache/repulsion are computed anew: the data, or how it is drawn"):
        features = compute_features(backbone, data, Noise(), samples=ROWS * BATCHES, cache=copy, progress=False)
    assert len(passes) == 1 + BATCHES
    assert same(features, features_of(model, data, Noise()))
    after = files(copy)
    assert {name for name in after if after[name] != before[name]} == {
        "repulsion.features",
        "repulsion.journal",
        "repulsion.json",
    }


def test_another_repulsion_loader_leaves_the_training_features_alone(folder):
    model, data = network(), batches()
    backbone, passes = split(model, data[0][0]), counting(model)
    compute_features(backbone, data, [torch.ones(10, 4)] * 3, cache=folder, progress=False)
    before = files(folder)
    passes.clear()
    other = [torch.zeros(10, 4)] * 3
    with pytest.warns(CacheWarning, match=r"cache/repulsion are computed anew"):
        features = compute_features(backbone, data, other, cache=folder, progress=False)
    assert passes.count(ROWS) == 1  # of the training data, the first batch
    assert same(features, features_of(model, data, other))
    assert all(files(folder)[name] == before[name] for name in before if name.startswith("train"))


def test_other_settings_of_one_source_are_another_source(copy):
    with pytest.warns(CacheWarning, match="cache/repulsion are computed anew"):
        features = features_of(network(), batches(), UniformBox(-3, 4), cache=copy)
    assert same(features, features_of(network(), batches(), UniformBox(-3, 4)))


class Applied(Source):
    """A source of the user's own."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        return self.what(batch) if callable(self.what) else batch + float(self.what[1000])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda batch: batch + 1, lambda batch: batch * 9),
        (np.zeros(2000), np.arange(2000) * (np.arange(2000) == 1000)),
        (torch.zeros(2000), torch.arange(2000) * (torch.arange(2000) == 1000)),
    ],
    ids=["functions", "arrays", "tensors"],
)
def test_what_a_source_holds_is_a_setting_of_it(folder, first, second):
    features_of(network(), batches(), Applied(first), cache=folder)
    features_of(network(), batches(), Applied(first), cache=folder)
    with pytest.warns(CacheWarning, match="cache/repulsion are computed anew"):
        features = features_of(network(), batches(), Applied(second), cache=folder)
    assert same(features, features_of(network(), batches(), Applied(second)))


def test_retrofit_with_and_without_a_cache_gives_the_same_heads(folder):
    model, data = network(), batches()
    passes = counting(model)
    ensembles, counts = [], []
    for cache in (None, folder, str(folder)):
        passes.clear()
        ensembles.append(retrofit(model, data, repulsion=SOURCE, recipe=QUICK, cache=cache, progress=False))
        counts.append(len(passes))
    assert counts[1] - counts[2] == 2 * BATCHES
    for ensemble in ensembles[1:]:
        assert ensemble.repulsion == ensembles[0].repulsion
        assert ensemble.history == ensembles[0].history
        assert all(
            torch.equal(p, q) for p, q in zip(ensemble.heads.parameters(), ensembles[0].heads.parameters(), strict=True)
        )


def test_what_is_done_to_the_features_is_not_done_to_the_cache(copy, right):
    features, _ = computed(cache=copy)
    features.train.zero_()
    features.targets.zero_()
    assert same(computed(cache=copy)[0], right)


# Builds that were killed.


def test_a_build_killed_at_any_of_50_moments_goes_on_to_the_same_files(tmp_path, children, right):
    undisturbed = tmp_path / "undisturbed"
    whole = children.run("build", folder=str(undisturbed))
    wanted = files(undisturbed)
    assert list(wanted) == [
        *(f"repulsion.{kind}" for kind in ("features", "journal", "json")),
        *(f"train.{kind}" for kind in ("features", "journal", "json", "targets")),
    ]
    draw = random.Random(0)
    stages = []
    for i in range(50):
        moment = (i + draw.random()) / 50 * whole["ticks"]
        folder = tmp_path / str(i)
        killed = children.run("build", folder=str(folder), tick=int(moment) + 1, later=1.5 * draw.random())
        assert killed["signal"] == signal.SIGKILL
        stages.append(batches_in(folder))
        features, passes = computed(cache=folder)
        assert same(features, right), f"killed at tick {moment:.1f}"
        assert files(folder) == wanted, f"killed at tick {moment:.1f}"
        assert passes == ALL - stages[-1], f"killed at tick {moment:.1f}"  # nothing that was there is computed again
    assert {0, 2 * BATCHES} < set(stages)
    assert len(set(stages)) > BATCHES


def test_a_build_killed_again_and_again_comes_to_an_end(folder, children, kept):
    stages = []
    while not is_complete(folder, "repulsion"):
        children.run("build", folder=str(folder), tick=30 + 5 * len(stages))
        stages.append(batches_in(folder))
        assert len(stages) < 40
    assert len({*stages}) > 3
    assert stages == sorted(stages)  # no kill undoes what was done before it
    assert computed(cache=folder)[1] == 1
    assert files(folder) == files(kept)


def test_a_build_that_met_an_error_goes_on_after_it(folder, kept):
    data = batches()
    bad = [*data[:5], (torch.full((ROWS, 4), torch.nan), data[5][1]), *data[6:]]
    with pytest.raises(DataError, match="batch 5 of `data`"):
        features_of(network(), bad, SOURCE, cache=folder)
    assert batches_in(folder) == 10
    assert computed(cache=folder)[1] == ALL - 10
    assert files(folder) == files(kept)


# Never half-trusted.


def drop_lines(path: Path, count: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) - count]))


@pytest.mark.parametrize("missing", [0, 1, 3, BATCHES])
def test_an_incomplete_cache_is_completed_not_used(copy, kept, right, missing):
    """Even if all its rows are in the files."""
    drop_lines(copy / "train.journal", 1 + missing)
    drop_lines(copy / "repulsion.journal", 1 + missing)
    features, passes = computed(cache=copy)
    assert passes == 1 + 2 * missing
    assert same(features, right)
    assert files(copy) == files(kept)


@pytest.mark.parametrize("part", ["train", "repulsion"])
def test_one_part_may_be_complete_and_the_other_not(copy, kept, right, part):
    drop_lines(copy / f"{part}.journal", 1)
    features, passes = computed(cache=copy)
    assert passes == 1
    assert same(features, right)
    assert files(copy) == files(kept)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_one_flipped_byte_anywhere_in_the_numbers_is_noticed(copy, kept, right):
    for name in ("train.features", "train.targets", "repulsion.features"):
        size = (kept / name).stat().st_size
        for position in (0, 3 * size // BATCHES, size // 2 + 1, size - 1):
            flip(copy / name, position)
            batch = position * BATCHES // size
            part = name.split(".")[0]
            with pytest.warns(CacheWarning, match=f"cache/{part} .*: what it holds of batch {batch} is damaged"):
                features, passes = computed(cache=copy)
            assert passes == 1 + BATCHES - batch  # what came before it is used
            assert same(features, right)
            assert files(copy) == files(kept)


@pytest.mark.parametrize("left", [0, 1, 5 * ROWS * WIDTH * 4 // 2, -1])
def test_rows_that_were_cut_off_are_noticed(copy, kept, right, left):
    path = copy / "train.features"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.warns(CacheWarning, match=r"what it holds of batch \d is damaged"):
        features, _ = computed(cache=copy)
    assert same(features, right)
    assert files(copy) == files(kept)


def test_rows_too_many_are_cut_off(copy, kept, right):
    drop_lines(copy / "train.journal", 1)
    with (copy / "train.features").open("ab") as file:
        file.write(b"\1" * 100)
    assert same(computed(cache=copy)[0], right)
    assert files(copy) == files(kept)


@pytest.mark.parametrize("whole", [0, 4, BATCHES - 1, BATCHES])
@pytest.mark.parametrize("left", [1, 9, -2, -1])
def test_a_torn_last_line_of_the_journal_is_no_line(copy, right, whole, left):
    path = copy / "train.journal"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:whole]) + lines[whole][:left])
    there = whole + (left == -1 and whole < BATCHES)  # only its end is missing, and that says nothing
    features, passes = computed(cache=copy)
    assert passes == 1 + BATCHES - there
    assert same(features, right)
    assert is_complete(copy)
    assert computed(cache=copy)[1] == 1


@pytest.mark.parametrize("part", ["train", "repulsion"])
@pytest.mark.parametrize(
    "garbage",
    [b"", b"\n\n", b"garbage\n", b"\xff\xfe\x80\n", b"\0" * 200, b"3\n", b'[]\n"complete"\n', b'{"rows": -1}\n'],
    ids=["nothing", "blank", "words", "no text", "zeros", "number", "string", "other keys"],
)
def test_a_garbage_journal_is_not_believed(copy, kept, right, garbage, part):
    (copy / f"{part}.journal").write_bytes(garbage)
    features, passes = computed(cache=copy)
    assert passes == 1 + BATCHES
    assert same(features, right)
    assert files(copy) == files(kept)


def test_a_journal_that_lost_lines_but_says_it_is_complete_is_not_believed(copy, kept, right):
    path = copy / "train.journal"
    lines = path.read_text().splitlines(keepends=True)
    for left in (lines[:-2] + lines[-1:], lines[-1:], lines[:2] + lines[3:]):
        path.write_text("".join(left))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # it may say so
            features, passes = computed(cache=copy)
        assert passes > 1
        assert same(features, right)
        assert files(copy) == files(kept)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"garbage", b"\xff\xfe\x80", b"[1, 2]", b"3", b'"model"', b"{}", b'{"model": "other"}', b'{"format": 1'],
    ids=["nothing", "words", "no text", "list", "number", "string", "no keys", "odd model", "cut short"],
)
def test_a_garbage_fingerprint_is_not_believed(copy, kept, right, garbage):
    (copy / "train.json").write_bytes(garbage)
    with pytest.warns(CacheWarning, match="cache/train are computed anew"):
        features, passes = computed(cache=copy)
    assert passes == 1 + BATCHES
    assert same(features, right)
    assert files(copy) == files(kept)


@pytest.mark.parametrize("name", ["train.json", "train.journal", "train.features", "train.targets"])
def test_a_missing_file_is_made_again(copy, kept, right, name):
    (copy / name).unlink()
    features, passes = computed(cache=copy)
    assert passes == 1 + BATCHES
    assert same(features, right)
    assert files(copy) == files(kept)


def test_files_that_killed_writers_left_are_swept_up(copy, kept):
    for name in (".train.json.abcd", ".repulsion.journal.efgh"):
        (copy / name).write_text("half of some")
    (copy / "notes.txt").write_text("of the user")
    computed(cache=copy)
    assert set(files(copy)) - set(files(kept)) == {"notes.txt"}


# Features of something else.


def changed_weights() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    return model, batches(), {}


def changed_data() -> tuple[nn.Module, Any, dict[str, Any]]:
    data = batches()
    data[0][0][0, 0] += 1
    return network(), data, {}


def changed_targets() -> tuple[nn.Module, Any, dict[str, Any]]:
    data = batches()
    data[0][1][0] += 1
    return network(), data, {}


def changed_type_of_targets() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), [(x, y.float()) for x, y in batches()], {}


def fewer_batches() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches()[:-1], {}


def another_seed() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches(), {"seed": 1}


def more_augmentations() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches(), {"augmentations": 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_weights, "the weights of the network have changed"),
        (changed_data, "the data, or how it is drawn, has changed"),
        (changed_targets, "the data, or how it is drawn, has changed"),
        (changed_type_of_targets, "has changed and the features have another type or shape"),
        (fewer_batches, "the data, or how it is drawn, has changed"),
        (another_seed, "the data, or how it is drawn, has changed"),
        (more_augmentations, "the data, or how it is drawn, has changed"),
    ],
)
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "incomplete"])
def test_features_of_something_else_are_computed_anew_and_it_says_why(copy, change, why, complete):
    if not complete:
        drop_lines(copy / "train.journal", 3)
        drop_lines(copy / "repulsion.journal", 3)
    model, data, settings = change()
    with pytest.warns(CacheWarning) as said:
        features = features_of(model, data, SOURCE, cache=copy, **settings)
    assert [str(warning.message) for warning in said] == [
        f"The features kept in {copy / 'train'} are computed anew: {_whole(why)}.",
        f"The features kept in {copy / 'repulsion'} are computed anew: {_whole(why.split(' and the features')[0])}.",
    ]
    assert same(features, features_of(model, data, SOURCE, **settings))
    assert same(features_of(model, data, SOURCE, cache=copy, **settings), features)  # silently


def _whole(why: str) -> str:
    return why if why.startswith("the ") else f"the data, or how it is drawn, {why}"


def test_features_of_other_layers_are_computed_anew_and_it_says_why(copy):
    model, data = network(), batches()
    tapped = split(model, data[0][0], layers=["0"])
    with pytest.warns(CacheWarning, match="train are computed anew: other layers of the network are read and the feat"):
        features = compute_features(tapped, data, None, cache=copy, progress=False)
    assert features.train.shape[1] == WIDTH + 12
    assert same(features, compute_features(tapped, data, None, progress=False))


def test_other_layers_of_the_same_width_are_other_layers(folder):
    model, data = network(), batches()
    before, after = (split(model, data[0][0], layers=[name]) for name in ("0", "1"))
    compute_features(before, data, None, cache=folder, progress=False)
    with pytest.warns(CacheWarning, match=r"computed anew: other layers of the network are read\.$"):
        features = compute_features(after, data, None, cache=folder, progress=False)
    assert same(features, compute_features(after, data, None, progress=False))


def test_the_same_weights_in_another_network_are_not_believed(copy):
    """Names and shapes are the same too; it is refused as another network, or computed anew."""
    model = network()
    model[1] = nn.Tanh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        try:
            features = features_of(model, batches(), SOURCE, cache=copy)
        except CacheError:
            return
    assert same(features, features_of(model, batches(), SOURCE))


def test_features_of_another_network_are_refused_and_left_alone(copy):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir() if path.name != "lock"}
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(CacheError) as refused:
        features_of(other, batches(), SOURCE, cache=copy)
    assert str(refused.value) == (
        "Expected `cache` to be features of this Sequential, but got a folder with features of another one, "
        "Sequential; choose another folder."
    )
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir() if path.name != "lock"}
    assert after == before
    assert computed(cache=copy)[1] == 1


def test_an_incomplete_build_goes_on_only_to_the_first_batch_that_changed(copy):
    drop_lines(copy / "train.journal", 2)
    drop_lines(copy / "repulsion.journal", 2)
    data = batches()
    data[3][0][0, 0] += 1
    model = network()
    backbone, passes = split(model, data[0][0]), counting(model)
    with pytest.warns(CacheWarning) as said:
        features = compute_features(backbone, data, SOURCE, samples=ROWS * BATCHES, cache=copy, progress=False)
    assert [str(warning.message).split(": ")[1] for warning in said] == ["its batch 3 is of other data."] * 2
    assert len(passes) == 1 + 2 * (BATCHES - 3)
    assert same(features, features_of(model, data, SOURCE))
    assert same(features_of(model, data, SOURCE, cache=copy), features)


def test_data_of_unknown_length_that_became_shorter_leaves_no_rows_behind(folder):
    class Stream:
        def __init__(self, data: list[Any]) -> None:
            self.data = data

        def __iter__(self) -> Iterator[Any]:
            return iter(self.data)

    features_of(network(), Stream(batches()), cache=folder)
    drop_lines(folder / "train.journal", 1)
    short = Stream(batches()[:5])
    assert same(features_of(network(), short, cache=folder), features_of(network(), short))
    assert same(features_of(network(), short, cache=folder), features_of(network(), short))


# Several processes.


def test_two_processes_that_build_at_once_share_the_work(folder, children, kept, right):
    both = [children.start("build", folder=str(folder)) for _ in range(2)]
    ends = [children.end(child) for child in both]
    assert sorted(end["passes"] for end in ends) == [1, ALL]
    assert {end["digest"] for end in ends} == {digest_of(right.train, right.targets, right.repulsion)}
    assert sorted("waiting for another process" in end["stderr"] for end in ends) == [False, True]
    assert files(folder) == files(kept)


def test_a_process_that_waits_takes_over_from_one_that_is_killed(folder, children, kept, tmp_path):
    late = 3 * children.run("build", folder=str(tmp_path / "other"))["ticks"] // 4
    first = children.start("build", folder=str(folder), stall=late)
    while not batches_in(folder):
        time.sleep(0.01)
    second = children.start("build", folder=str(folder))
    assert children.end(first, tick=late, later=100)["signal"] == signal.SIGKILL
    ended = children.end(second)
    assert "waiting for another process" in ended["stderr"]
    assert 1 < ended["passes"] < ALL
    assert files(folder) == files(kept)


def test_a_killed_process_blocks_nobody(folder, children, kept, capfd):
    children.run("build", folder=str(folder), tick=60)
    assert (folder / "lock").exists()
    computed(cache=folder)
    assert "waiting" not in capfd.readouterr().err
    assert files(folder) == files(kept)


def test_features_in_use_stay_readable_while_a_damaged_folder_is_mended(folder, children):
    ended = children.run("use_while_mended", folder=str(folder))
    assert ended["signal"] == 0, signal.Signals(ended["signal"]).name
    assert len(ended["kept"]) > BATCHES
    assert all(ended["kept"])
    assert ended["same"]


# Random augmentations.


def test_augmentations_are_passes_that_differ(folder, children):
    found = children.run("augment", folder=str(folder), passes=3)
    passes = torch.tensor(found["features"]).view(3, 24, WIDTH)
    assert not any(torch.allclose(passes[i], passes[j]) for i, j in [(0, 1), (0, 2), (1, 2)])
    assert found["targets"] == [i % 3 for i in range(24)] * 3
    assert (folder / "train.features").stat().st_size == 72 * WIDTH * 4


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_augmentations_are_decided_by_the_seed(folder, children, shuffle):
    settings = {"passes": 2, "shuffle": shuffle}
    first, again, cached, kept = (
        children.run("augment", folder=where, seed=4, **settings) for where in (None, None, str(folder), str(folder))
    )
    assert first["digest"] == again["digest"] == cached["digest"] == kept["digest"]
    assert kept["passes"] == 1
    assert children.run("augment", folder=None, seed=7, **settings)["digest"] != first["digest"]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_augmentations_that_were_cut_short_are_gone_on_with(tmp_path, children, shuffle):
    folder, other = tmp_path / "cut short", tmp_path / "whole"
    settings = {"passes": 3, "shuffle": shuffle}
    broken = children.run("augment", folder=str(folder), left=1 + 4, **settings)  # one is looked at, four are taken
    assert broken["broke"]
    assert batches_in(folder) == 8
    found, whole = (children.run("augment", folder=str(where), **settings) for where in (folder, other))
    assert found["passes"] == whole["passes"] - 8 == 1 + 2 * 9 - 8
    assert found["warned"] == []
    assert found["digest"] == whole["digest"]
    assert files(folder) == files(other)


def test_the_random_states_of_the_caller_are_as_before(folder, children):
    for cache in (None, str(folder)):
        for left in (0, 1, 4, 1000):  # also when the data breaks
            found = children.run("augment", folder=cache, passes=2, shuffle=True, left=left)
            assert ("broke" in found) == (left < 1000)
            assert found["states kept"]


def test_another_augmentation_of_the_same_targets_is_other_data(folder, children):
    children.run("augment", folder=str(folder), passes=2)
    found = children.run("augment", folder=str(folder), passes=2, size=0.2)
    assert found["digest"] == children.run("augment", folder=None, passes=2, size=0.2)["digest"]
    assert "the data, or how it is drawn, has changed" in found["warned"][0]


# More than fits in memory.


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_features_beyond_the_memory_limit_are_mapped_from_a_file_nobody_sees(temporary, right):
    features, _ = computed(memory_limit=1000)
    assert mapped_from(features.train).startswith(str(temporary))
    assert mapped_from(features.repulsion).startswith(str(temporary))
    assert not mapped_from(right.train)
    assert list(temporary.iterdir()) == []
    assert same(features, right)


@pytest.mark.parametrize("cached", [False, True], ids=["temporary", "cached"])
def test_mapped_features_are_fitted_like_any_others(temporary, folder, right, cached):
    features, _ = computed(memory_limit=1000, cache=folder if cached else None)
    assert mapped_from(features.train).startswith(str(folder if cached else temporary))
    heads, wanted = (fit_heads(f.train, f.targets, f.repulsion, QUICK, progress=False) for f in (features, right))
    assert all(torch.equal(p, q) for p, q in zip(heads.parameters(), wanted.parameters(), strict=True))
    assert heads.history == wanted.history


def test_an_error_beyond_the_memory_limit_leaves_nothing_behind(temporary):
    data = batches()
    data[5] = (torch.full((ROWS, 4), torch.nan), data[5][1])
    with pytest.raises(DataError, match="batch 5"):
        features_of(network(), data, SOURCE, memory_limit=1000)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("room", [50, 1300])
def test_a_full_temporary_folder_is_an_error_and_stays_empty(tmp_path, children, room):
    ended = children.run("spill_in_little_room", folder=str(tmp_path), rows=ROWS, room=room)
    assert ended["error"] == "CacheError"
    assert "File too large" in ended["words"]
    assert list(tmp_path.iterdir()) == []


# Batches of every form.


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head((self.body(x) * scale).relu())


X, SCALE, Y = (
    torch.randn(40, 4, generator=torch.Generator().manual_seed(2)),
    torch.rand(40, 1) + 1,
    torch.arange(40) % 3,
)


@pytest.mark.parametrize(
    "form",
    [
        lambda i: {"x": X[i], "scale": SCALE[i], "labels": Y[i]},
        lambda i: ((X[i], SCALE[i]), Y[i]),
        lambda i: [[X[i], SCALE[i]], Y[i]],
        lambda i: ({"x": X[i], "scale": SCALE[i]}, Y[i]),
    ],
    ids=["mapping", "tuple", "list", "mapping in a tuple"],
)
def test_batches_of_every_form_are_kept(folder, form):
    torch.manual_seed(0)
    model = Named()
    data = [form(slice(start, start + 10)) for start in range(0, 40, 10)]
    backbone = split(model, {"x": X, "scale": SCALE})
    passes = counting(model)
    with torch.no_grad():
        wanted = (model.body(X) * SCALE).relu()
    for count in (5, 1):
        passes.clear()
        features = compute_features(backbone, data, None, cache=folder, progress=False)
        assert len(passes) == count
        torch.testing.assert_close(features.train, wanted)
        assert torch.equal(features.targets, Y)
    second = data[0][0] if not isinstance(data[0], dict) else data[0]
    (second["scale"] if isinstance(second, dict) else second[1])[0] += 1  # the second tensor of the inputs counts too
    with pytest.warns(CacheWarning, match="has changed"):
        compute_features(backbone, data, None, cache=folder, progress=False)
    SCALE[0] -= 1


@pytest.mark.parametrize("shape", [(40,), (40, 1)], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.bool], ids=str)
def test_targets_of_every_type_are_kept(folder, kind, shape):
    targets = (Y * 0.7).to(kind).view(shape)
    data = list(zip(X.split(10), targets.split(10), strict=True))
    for _ in range(2):
        features = features_of(network(), data, cache=folder)
        assert features.targets.dtype == kind
        assert torch.equal(features.targets, targets)


def test_targets_that_change_their_type_on_the_way_are_not_rounded(folder):
    """Ints and then floats: refused, or kept as they are."""
    data = [(X[:20], Y[:20]), (X[20:], Y[20:] + 0.5)]
    try:
        features = features_of(network(), data, cache=folder)
    except RepulseError:
        return
    assert torch.equal(features.targets, torch.cat([Y[:20].float(), Y[20:] + 0.5]))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_features_of_every_type_are_kept(folder, kind):
    model = network().to(kind)
    data = [(x.to(kind), y) for x, y in batches()]
    without = features_of(model, data, SOURCE)
    assert without.train.dtype == kind
    for limit in (10**9, 100):
        assert same(features_of(model, data, SOURCE, cache=folder, memory_limit=limit), without)
        assert same(features_of(model, data, SOURCE, memory_limit=limit), without)


# Folders that cannot be used.


def check_sentence(words: str, folder: Path, why: str) -> None:
    assert words == (
        f"Expected `cache` to be a folder that can be written to, with room for the features, but got {folder}, "
        f"where {why}."
    )


def test_a_folder_under_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(CacheError) as refused:
        computed(cache=file / "below")
    check_sentence(str(refused.value), file / "below", "Not a directory")
    with pytest.raises(CacheError) as refused:
        computed(cache=file)
    check_sentence(str(refused.value), file, "File exists")
    assert file.read_text() == "mine"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder in which others may read, as those of `tmp_path` are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755 if os.geteuid() == 0 else 0o500)
        yield folder
        folder.chmod(0o700)


def test_a_folder_one_may_not_write_to_is_refused(public, children):
    for folder in (public, public / "below"):
        ended = children.run("build_as_nobody", folder=str(folder))
        assert ended["error"] == "CacheError"
        check_sentence(ended["words"], folder, "Permission denied")
    assert list(public.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "name", "share"),
    [
        (ROWS, "train.json", 0.5),
        (ROWS, "train.features", 0.3),
        (ROWS, "train.features", 0.99),
        (2, "train.journal", 0.95),
        (512, "train.features", 0.3),
    ],
    ids=["fingerprint", "rows", "last rows", "journal", "rows beyond any buffer"],
)
def test_a_full_disk_is_an_error_after_which_the_folder_is_still_good(folder, children, tmp_path, rows, name, share):
    wanted = tmp_path / "other"
    computed(rows, cache=wanted)
    room = int(share * (wanted / name).stat().st_size)  # which is too little for that file
    ended = children.run("build_in_little_room", folder=str(folder), rows=rows, room=room)
    assert ended["error"] == "CacheError", ended["words"]
    check_sentence(ended["words"], folder, "File too large")
    there = batches_in(folder)
    features, passes = computed(rows, cache=folder)
    assert passes == ALL - there
    assert same(features, computed(rows)[0])
    assert files(folder) == files(wanted)
