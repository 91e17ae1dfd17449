"""Fetching data sets by name, from the command line or on loading."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from data_files import idx
from download_server import left, sha256
from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data import fetch as command
from repulse_lab.data import registry
from repulse_lab.data.fetch import REMOTES, Remote


def test_everything_from_publishers_has_a_digest():
    assert len({remote.url for remote in REMOTES}) == len(REMOTES) > 20
    for remote in REMOTES:
        assert remote.url.startswith(("https://", "http://"))
        assert len(remote.digest) in {0, 32, 64}
        assert remote.files or remote.folders
        for digest in remote.files.values():
            assert len(digest) in ({0, 32, 64} if remote.digest else {32, 64})
        assert remote.digest or not remote.folders
        assert set(remote.members) <= set(remote.files)


def test_the_command_fetches_lists_and_aligns(server, tmp_path, monkeypatch, capsys):
    folder, url = server
    (folder / "good").write_bytes(b"good")

    def entry(name, path, **rest):
        return data.Entry(name, f"the set {name}", ("all",), lambda _: data.Contents([]), lambda _: [[path]], **rest)

    entries = [
        entry("one", "one", remotes=(Remote("one", f"{url}/good", {"one": sha256(b"good")}),)),
        entry("a-long-name", "two", remotes=(Remote("two", f"{url}/none", {"two": sha256(b"")}),)),
        entry("huge", "three", remotes=(Remote("three", f"{url}/good", {"three": sha256(b"good")}, megabytes=900),)),
        entry("rare", "four", by_hand="ask its author", homepage="https://example.org"),
    ]
    monkeypatch.setattr(registry, "_entries", {each.name: each for each in entries})
    monkeypatch.setattr(command, "WEIGHTS", ())
    root = tmp_path / "d"
    monkeypatch.setattr(sys, "argv", ["fetch", str(root)])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"missing  a-long-name  Expected to download two from {url}/none")
    assert lines[1:5] == [
        "large    huge         900 MB: fetched only by its name",
        "there    one          the set one",
        "by hand  rare         ask its author; https://example.org",
        "there    weights      published networks for CIFAR-10",
    ]
    assert lines[-1] == f"export REPULSE_DATA={root}"
    monkeypatch.setattr(sys, "argv", ["fetch", str(root), "huge"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("there    huge  the set huge\n")
    assert left(root) == ["one", "three"]
    monkeypatch.setattr(sys, "argv", ["fetch", str(root), "hug"])
    with pytest.raises(SystemExit):
        command.main()
    assert "Did you mean 'huge'?" in capsys.readouterr().err


def test_the_command_runs_as_a_module_and_the_library_does_not_load_it(tmp_path):
    script = (
        "import runpy, sys, repulse; assert not [name for name in sys.modules if name.startswith('repulse_lab.data')];"
        "runpy.run_module('repulse_lab.data.fetch', run_name='__main__', alter_sys=True)"
    )
    line = [sys.executable, "-W", "error::RuntimeWarning", "-c", script, str(tmp_path), "notmnist", "noise"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("by hand  notmnist  write 28 x 28 images")
    assert done.stderr == ""


def test_load_downloads_only_when_asked(server, tmp_path, monkeypatch):
    folder, url = server
    content = idx(np.arange(28 * 28, dtype=np.int64).astype(np.uint8).reshape(1, 28, 28))
    (folder / "images").write_bytes(content)
    entry = data.Entry(
        "letters",
        "some letters",
        ("all",),
        data.about("notmnist").read,
        lambda _: [["raw/images"]],
        shape=(1, 28, 28),
        remotes=(Remote("letters", f"{url}/images", {"raw/images": sha256(content)}),),
    )
    monkeypatch.setattr(registry, "_entries", {})
    data.register(entry)
    with pytest.raises(RecipeError, match="that of no other data set"):
        data.register(entry)
    with pytest.raises(DataError, match="download=True") as error:
        data.load("letters", "all", tmp_path / "d")
    assert "raw/images" in str(error.value)
    assert str(tmp_path / "d") in str(error.value)
    assert not (tmp_path / "d").exists()
    assert len(data.load("letters", "all", tmp_path / "d", download=True, progress=False)) == 1
    assert left(tmp_path / "d") == ["raw/images"]
