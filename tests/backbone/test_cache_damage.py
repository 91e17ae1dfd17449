"""Builds of features that were killed, and folders that were damaged: completed or made again, never half-trusted."""

from __future__ import annotations

import random
import signal
import warnings
from pathlib import Path

import pytest
import torch

from cached_features import ALL, batches_in, drop_lines, features_of, files, is_complete, same
from children import BATCHES, ROWS, SOURCE, WIDTH, batches, computed, network
from repulse import CacheWarning, DataError

# Builds that were killed.


def test_a_build_killed_at_any_of_20_moments_goes_on_to_the_same_files(tmp_path, children, right):
    undisturbed = tmp_path / "undisturbed"
    whole = children.run("build", folder=str(undisturbed))
    wanted = files(undisturbed)
    assert list(wanted) == [
        *(f"repulsion.{kind}" for kind in ("features", "journal", "json")),
        *(f"train.{kind}" for kind in ("features", "journal", "json", "targets")),
    ]
    draw = random.Random(0)
    stages = []
    for i in range(20):
        moment = (i + draw.random()) / 20 * whole["ticks"]
        folder = tmp_path / str(i)
        killed = children.run("build", folder=str(folder), tick=int(moment) + 1, later=1.5 * draw.random())
        assert killed["signal"] == signal.SIGKILL
        stages.append(batches_in(folder))
        features, passes = computed(cache=folder)
        assert same(features, right), f"killed at tick {moment:.1f}"
        assert files(folder) == wanted, f"killed at tick {moment:.1f}"
        assert passes == ALL - stages[-1], f"killed at tick {moment:.1f}"  # nothing that was there is computed again
    assert {0, 2 * BATCHES} < set(stages)
    assert len(set(stages)) > BATCHES // 2  # kills did come in the middle


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
    with pytest.warns(CacheWarning, match="cache/train are recomputed"):
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
