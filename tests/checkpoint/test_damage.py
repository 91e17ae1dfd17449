"""A folder that was damaged, or that cannot be used, gives an error and nothing else.

The checks of shapes and types that other tests run with are off here, but for one test: errors are what users see.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import repulse
from children import network
from repulse import CheckpointError
from saved_ensembles import about, files, heads_file, refused, write

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

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
        "summary": {"data": "validation"},
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
