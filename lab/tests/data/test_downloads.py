"""Downloads that are checked, taken up again after a break, and never trusted."""

from __future__ import annotations

import gzip
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from download_server import archive, left, sha256
from repulse.errors import DataError
from repulse_lab import data
from repulse_lab.data import download
from repulse_lab.data.fetch import Remote, fetch, missing
from repulse_lab.data.remotes import CATALOGUE, WEIGHTS


def test_a_file_is_fetched_once_and_checked(server, tmp_path):
    folder, url = server
    (folder / "weights.bin").write_bytes(b"good")
    remote = Remote("weights", f"{url}/weights.bin", {"w/weights.bin": sha256(b"good")})
    root = tmp_path / "data"
    fetch(remote, root, progress=False)
    assert (root / "w/weights.bin").read_bytes() == b"good"
    assert missing(remote, root) == []
    (folder / "weights.bin").unlink()
    fetch(remote, root, progress=False)  # nothing to do, nothing asked of the server
    assert left(root) == ["w/weights.bin"]


def test_a_wrong_digest_leaves_nothing(server, tmp_path):
    folder, url = server
    (folder / "weights.bin").write_bytes(b"tampered")
    with pytest.raises(DataError, match="SHA-256"):
        fetch(Remote("weights", f"{url}/weights.bin", {"weights.bin": sha256(b"good")}), tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


def test_what_cannot_be_had_says_where_it_was_looked_for(server, tmp_path):
    _, url = server
    with pytest.raises(DataError, match=rf"{url}/none.*404"):
        fetch(Remote("none", f"{url}/none", {"none": ""}), tmp_path / "d", progress=False)
    with pytest.raises(DataError, match=r"test_batch\.bin.*download=True"):
        data.load("cifar10", "test", tmp_path)


def test_what_is_not_there_is_not_given(tmp_path):
    texts = data.DataSet("texts", "train", ["a", "b"])
    with pytest.raises(DataError, match="texts to be one of images or numbers, but got texts"):
        _ = texts.images
    with pytest.raises(DataError, match="noise to be one with targets, but got none in 'evaluation'"):
        _ = data.load("noise", "evaluation").labelled


def test_a_gzipped_file_is_unpacked_and_checked(server, tmp_path):
    folder, url = server
    (folder / "images.gz").write_bytes(gzip.compress(b"good"))
    (folder / "plain.gz").write_bytes(b"good")
    remote = Remote("images", f"{url}/images.gz", {"raw/images": sha256(b"good")}, gzipped=True)
    fetch(remote, tmp_path / "data", progress=False)
    assert (tmp_path / "data/raw/images").read_bytes() == b"good"
    with pytest.raises(DataError, match="packed with gzip"):
        fetch(Remote("images", f"{url}/plain.gz", {"x": sha256(b"good")}, gzipped=True), tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


NOISE = np.random.default_rng(7).bytes(100_000)


def part_of(root: Path) -> Path:
    (part,) = (root / ".fetch").glob("*.part")
    return part


def test_a_dropped_connection_is_taken_up_where_it_broke(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.drops = (40_000, 25_000)
    fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)
    assert handler.asked == [None, "bytes=40000-", "bytes=65000-"]
    assert left(tmp_path / "d") == ["big"]


def test_what_came_before_giving_up_is_kept_for_the_next_try(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.drops = (10_000, *[1000] * (download.TRIES - 1))
    remote = Remote("big", f"{url}/big", {"big": sha256(NOISE)})
    with pytest.raises(DataError, match=r"14000 of 100000.*14000 bytes that came are kept"):
        fetch(remote, tmp_path / "d", progress=False)
    assert part_of(tmp_path / "d").stat().st_size == 14_000
    fetch(remote, tmp_path / "d", progress=False)
    assert handler.asked[-1] == "bytes=14000-"
    assert left(tmp_path / "d") == ["big"]


def test_a_server_without_ranges_is_asked_anew(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.ranges, handler.drops = False, (40_000,)
    fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)
    assert handler.asked == [None, "bytes=40000-"]
    assert (tmp_path / "d/big").read_bytes() == NOISE


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_a_part_that_is_whole_or_too_long(server, handler, tmp_path, extra):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.drops = (1000,) * download.TRIES
    remote = Remote("big", f"{url}/big", {"big": sha256(NOISE)})
    with pytest.raises(DataError):
        fetch(remote, tmp_path / "d", progress=False)
    part_of(tmp_path / "d").write_bytes(NOISE + extra)
    fetch(remote, tmp_path / "d", progress=False)
    assert handler.asked[download.TRIES :] == [f"bytes={len(NOISE + extra)}-", *([None] if extra else [])]
    assert left(tmp_path / "d") == ["big"]


def test_a_part_of_something_else_is_thrown_away(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.drops = (1000,) * download.TRIES
    remote = Remote("big", f"{url}/big", {"big": sha256(NOISE)})
    with pytest.raises(DataError):
        fetch(remote, tmp_path / "d", progress=False)
    part_of(tmp_path / "d").write_bytes(b"x" * 50_000)
    with pytest.raises(DataError, match=r"SHA-256.*nothing was kept"):
        fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []
    fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == ["big"]


def test_a_killed_download_goes_on(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE * 30)
    handler.drops, handler.stall = (2_500_000,), True
    root, digest = tmp_path / "d", sha256(NOISE * 30)
    script = (
        "import sys; from pathlib import Path; from repulse_lab.data.fetch import Remote, fetch;"
        "fetch(Remote('big', sys.argv[1], {'big': sys.argv[2]}), Path(sys.argv[3]), progress=False)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, f"{url}/big", digest, str(root)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(path.stat().st_size for path in root.glob(".fetch/*.part")):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    have = part_of(root).stat().st_size
    assert 0 < have < 3_000_000
    (root / ".fetch/unpacked").mkdir()  # as a kill while unpacking would leave it
    fetch(Remote("big", f"{url}/big", {"big": digest}), root, progress=False)
    assert handler.asked == [None, f"bytes={have}-"]
    assert left(root) == ["big"]


def test_two_at_once_download_once(server, handler, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    remote = Remote("big", f"{url}/big", {"big": sha256(NOISE)})
    threads = [threading.Thread(target=fetch, args=(remote, tmp_path / "d", False)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handler.asked == [None]
    assert left(tmp_path / "d") == ["big"]


def test_a_busy_server_is_asked_again_and_an_absent_one_is_not(server, handler, tmp_path, monkeypatch):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    handler.busy = 2
    remote = Remote("big", f"{url}/big", {"big": sha256(NOISE)})
    fetch(remote, tmp_path / "d", progress=False)
    assert len(handler.asked) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        nowhere = Remote("none", f"http://127.0.0.1:{taken.getsockname()[1]}/x", {"x": sha256(b"")})
        monkeypatch.setattr(download, "PAUSE", 60.0)
        start = time.monotonic()
        with pytest.raises(DataError, match=r"Expected to download none.*refused"):
            fetch(nowhere, tmp_path / "e", progress=False)
        assert time.monotonic() - start < 30


def test_a_folder_that_cannot_be_written_is_said(server, tmp_path):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    (tmp_path / "d").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="Expected to write big to"):
        fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)


def test_digests_of_the_whole_download_may_be_md5(server, tmp_path):
    folder, url = server
    packed = archive({"set/a": b"A", "set/b/c": b"C", "other": b"O"})
    (folder / "set.tar.gz").write_bytes(packed)
    digest = hashlib.md5(packed).hexdigest()
    fetch(Remote("set", f"{url}/set.tar.gz", digest=digest, folders={"x/set": "set"}), tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == ["x/set/a", "x/set/b/c"]
    wrong = Remote("set", f"{url}/set.tar.gz", digest="0" * 32, folders={"x/set": "set"})
    assert missing(wrong, tmp_path / "d") == []
    with pytest.raises(DataError, match=f"MD5 {'0' * 32}, but got {digest}"):
        fetch(wrong, tmp_path / "e", progress=False)
    assert left(tmp_path / "e") == []
    with pytest.raises(DataError, match="to hold none"):
        fetch(Remote("set", f"{url}/set.tar.gz", digest=digest, folders={"y": "none"}), tmp_path / "e", progress=False)


def test_a_full_disk_does_not_cost_the_download(server, handler, tmp_path, monkeypatch):
    folder, url = server
    packed = archive({"set/a": b"A"})
    (folder / "set.tar.gz").write_bytes(packed)
    remote = Remote("set", f"{url}/set.tar.gz", digest=sha256(packed), folders={"set": "set"})

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download, "extract_folder", full)
        with pytest.raises(DataError, match=r"Expected to write set to .*No space left"):
            fetch(remote, tmp_path / "d", progress=False)
    fetch(remote, tmp_path / "d", progress=False)
    assert handler.asked == [None, f"bytes={len(packed)}-"]
    assert left(tmp_path / "d") == ["set/a"]


def test_more_than_can_be_right_is_not_downloaded(server, handler, tmp_path, monkeypatch):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    monkeypatch.setattr(download, "most_bytes", lambda remote: 50_000)
    with pytest.raises(DataError, match=r"100,000 bytes where 50,000 would be many"):
        fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)
    monkeypatch.setattr(handler, "length", "")
    with pytest.raises(DataError, match=r"more than 50,000 bytes came"):
        fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


def test_a_length_that_is_none_is_named(server, handler, tmp_path, monkeypatch):
    folder, url = server
    (folder / "big").write_bytes(NOISE)
    monkeypatch.setattr(handler, "length", "abc")
    with pytest.raises(DataError, match="the server says it has 'abc' bytes"):
        fetch(Remote("big", f"{url}/big", {"big": sha256(NOISE)}), tmp_path / "d", progress=False)


def test_what_anybody_on_the_way_could_change_is_not_fetched(tmp_path):
    with pytest.raises(DataError, match="address of https or a digest"):
        fetch(Remote("x", "http://example.org/x", {"x": ""}), tmp_path, progress=False)
    with pytest.raises(DataError, match="address of https"):
        fetch(Remote("x", "file:///etc/passwd", {"x": "0" * 64}), tmp_path, progress=False)
    assert not any(tmp_path.iterdir())


def test_every_address_of_the_catalogue_is_safe():
    remotes = [remote for about in CATALOGUE.values() for remote in about["remotes"]]
    assert len(remotes) > 20
    for remote in (*remotes, *WEIGHTS):
        download._check_address(remote)
