"""Tar and zip archives: members where they belong, and nothing elsewhere."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest

from download_server import archive, left, linked, sha256, zipped
from repulse.errors import DataError
from repulse_lab.data.fetch import Remote, fetch


def test_an_archive_cannot_write_outside_its_folder(server, tmp_path):
    folder, url = server
    (folder / "set.tar.gz").write_bytes(archive({"a.bin": b"A", "../../evil": b"E", "/tmp/evil-absolute": b"E"}))
    remote = Remote("set", f"{url}/set.tar.gz", {"x/a.bin": sha256(b"A")}, {"x/a.bin": "a.bin"})
    fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == ["x/a.bin"]
    assert not (tmp_path.parent / "evil").exists()


def test_a_truncated_archive_is_refused(server, tmp_path):
    folder, url = server
    whole = archive({"a.bin": np.random.default_rng(0).bytes(10_000)})
    (folder / "set.tar.gz").write_bytes(whole[:5000])
    remote = Remote("set", f"{url}/set.tar.gz", {"a.bin": ""}, {"a.bin": "a.bin"})
    with pytest.raises(DataError, match="to hold"):
        fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


def test_a_zip_gives_its_members_and_folders(server, tmp_path):
    folder, url = server
    packed = zipped({"gzip/a": b"A", "pictures/one/1.png": b"1", "pictures/two/2.png": b"2", "pictures/empty/": b""})
    (folder / "set.zip").write_bytes(packed)
    remote = Remote(
        "set", f"{url}/set.zip", {"raw/a": ""}, {"raw/a": "gzip/a"}, digest=sha256(packed), folders={"p": "pictures"}
    )
    fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == ["p/one/1.png", "p/two/2.png", "raw/a"]


@pytest.mark.parametrize(
    "packed",
    [
        archive({"set/a": b"A", "../outside": b"E"}),
        archive({"set/a": b"A", "set/../../outside": b"E"}),
        archive({"set/a": b"A", "/outside": b"E"}),
        zipped({"set/a": b"A", "../outside": b"E"}),
        zipped({"set/a": b"A", "/outside": b"E"}),
        zipped({"set/a": b"A", "..\\outside": b"E"}),
        zipped({"set/a": b"A", "C:/outside": b"E"}),
        zipped({"set/a": b"A"}, link="set/link"),
        linked("set/link", tarfile.SYMTYPE),
        linked("set/link", tarfile.LNKTYPE),
        linked("set/device", tarfile.CHRTYPE),
    ],
)
def test_a_malicious_archive_is_refused_and_leaves_nothing(server, tmp_path, packed):
    folder, url = server
    (folder / "set").write_bytes(packed)
    remote = Remote("set", f"{url}/set", digest=sha256(packed), folders={"here": "set"})
    with pytest.raises(
        DataError, match=r"Expected the archive to be of (files in their folder|plain files), but got a"
    ):
        fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []
    assert not list(tmp_path.rglob("outside"))


def test_a_link_is_no_member(server, tmp_path):
    folder, url = server
    (folder / "set").write_bytes(linked("a", tarfile.SYMTYPE))
    with pytest.raises(DataError, match="to hold a"):
        fetch(Remote("set", f"{url}/set", {"a": "0" * 64}, {"a": "a"}), tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []
