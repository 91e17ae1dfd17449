"""Features that are kept by several processes, of random augmentations, beyond memory, and where there is no room."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cached_features import ALL, QUICK, batches_in, features_of, files, mapped_from, same
from children import BATCHES, ROWS, SOURCE, WIDTH, batches, computed, network
from repulse import CacheError, DataError, fit_heads
from repulse.backbone.fingerprint import digest_of

# Several processes.


def test_two_processes_that_build_at_once_share_the_work(folder, children, kept, right):
    both = [children.start("build", folder=str(folder)) for _ in range(2)]
    ends = [children.end(child) for child in both]
    assert sorted(end["passes"] for end in ends) == [1, ALL]
    assert {end["digest"] for end in ends} == {digest_of(right.train, right.targets, right.repulsion)}
    assert sorted("waiting for process" in end["stderr"] for end in ends) == [False, True]
    assert files(folder) == files(kept)


def test_a_process_that_waits_takes_over_from_one_that_is_killed(folder, children, kept, tmp_path):
    late = 3 * children.run("build", folder=str(tmp_path / "other"))["ticks"] // 4
    first = children.start("build", folder=str(folder), stall=late)
    while not batches_in(folder):
        time.sleep(0.01)
    second = children.start("build", folder=str(folder))
    assert children.end(first, tick=late, later=100)["signal"] == signal.SIGKILL
    ended = children.end(second)
    assert "waiting for process" in ended["stderr"]
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


def test_a_complete_cache_may_be_used_where_one_may_not_write(public, kept, right, children):
    folder = shutil.copytree(kept, public / "features")
    before = files(folder)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    ended = children.run("build_as_nobody", folder=str(folder))
    folder.chmod(0o700)
    assert (ended["passes"], ended["digest"]) == (1, digest_of(right.train, right.targets, right.repulsion))
    assert files(folder) == before


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
