"""Folders that somebody made by hand, with a right digest: an error, soon and in little room."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

import repulse
from children import network
from repulse import CheckpointError
from saved_ensembles import about, heads_file, refused, write

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, "x", [], {}, [None], {"x": 1}, 10**7, 10**30, "../x", [[]])


def places(content: Any, path: tuple[Any, ...] = ()):
    """All places in some JSON, but for epochs after the first."""
    first = enumerate(content[:1]) if isinstance(content, list) else ()
    for key, value in content.items() if isinstance(content, dict) else first:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def test_any_entry_may_be_anything_and_nothing_but_our_error_comes(folder):
    """It loads, or is refused in one sentence, without memory for heads that are not there."""
    whole, model = about(folder), network()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said: list[str] = []
    everywhere = [path for path in places(whole) if path[0] != "digest"]
    for i, path in enumerate(everywhere):
        for value in VALUES[i % 5 :: 5]:
            write(folder, changed(whole, path, value), sealed=True)
            try:
                ensemble = repulse.load(folder, model)
                ensemble.predict(torch.zeros(2, 4))
            except repulse.RepulseError as reason:  # also of taps that are not those of this network
                said.append(str(reason))
    assert len(said) > 100
    assert all(words.startswith("Expected ") and "\n" not in words for words in said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c", "d"], []])
def test_a_wrong_number_of_class_names_is_refused(folder, names):
    write(folder, {**about(folder), "class_names": names}, sealed=True)
    assert f"to be 3, but got {len(names)}" in refused(folder)


def forge_heads(folder: Path, change) -> None:
    """Change the heads of a folder, with digests that fit."""
    path, content = heads_file(folder), about(folder)
    tensors = change(load_file(path))
    path.write_bytes(save(tensors))
    content["heads"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    write(folder, content, sealed=True)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_heads_of_half_precision_are_refused_and_not_written(folder, tmp_path, kind):
    ensemble = repulse.load(folder, network())
    ensemble.heads.to(kind)
    with pytest.raises(CheckpointError, match="`heads` to be float32 or float64"):
        ensemble.save(tmp_path / "half")
    assert not (tmp_path / "half").exists()
    forge_heads(folder, lambda found: {k: v.to(kind) if v.is_floating_point() else v for k, v in found.items()})
    assert "numbers of float32 or float64" in refused(folder)


def test_heads_that_say_they_are_more_than_there_are_take_no_room(folder):
    content = about(folder)
    for entry in ("count", "features"):
        heads = {**content["heads"], entry: 10**7}
        write(folder, {**content, "heads": heads}, sealed=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(folder)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("which", ["json", "heads"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_read(folder, which, kind):
    """A pipe would hang, and a device never end."""
    path = folder / "ensemble.json" if which == "json" else heads_file(folder)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert ("no regular file" if kind != "folder" else "folder") in refused(folder)
    if kind == "folder":
        path.rmdir()


def test_a_file_larger_than_its_heads_is_not_read(folder):
    path = heads_file(folder)
    with path.open("r+b") as file:
        file.truncate(2**40)  # sparse: it takes no room
    assert "would be many" in refused(folder)


def test_another_precision_of_the_network_is_named(folder):
    assert "parameters of torch.float16; they were torch.float32" in refused(folder, network().half())


def test_a_link_in_place_of_the_lock_is_not_followed(folder, tmp_path):
    """Whoever may write to the folder could otherwise have files emptied."""
    ensemble, mine = repulse.load(folder, network()), tmp_path / "mine"
    mine.write_text("precious")
    for name in (".lock", ".lock.holder"):
        (folder / name).symlink_to(mine)
        try:
            ensemble.save(folder)
        except CheckpointError as reason:
            assert "a folder that can be written to" in str(reason)  # noqa: PT017
        (folder / name).unlink(missing_ok=True)
        assert mine.read_text() == "precious"
    ensemble.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["ensemble.json", heads_file(folder).name])


def test_nothing_is_put_where_others_may_write(folder, monkeypatch, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    repulse.load(folder, network()).save(tmp_path / "again")
    assert not any(temporary.iterdir())
    shutil.rmtree(tmp_path / "again")
