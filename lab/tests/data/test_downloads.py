"""Fetching data, from a server of our own."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data import download, registry
from repulse_lab.data import fetch as command
from repulse_lab.data.fetch import REMOTES, Remote, fetch, missing


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, with ranges if told to, and drops connections when told to."""

    ranges = True
    drops: tuple[int, ...] = ()
    stall = False
    busy = 0
    asked: list[str | None]

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        if not path.is_file() or len(self.asked) <= self.busy:
            self.send_error(503 if self.busy else 404)
            return
        content = path.read_bytes()
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        number = len(self.asked) - 1
        self.wfile.write(content[start:][: self.drops[number] if number < len(self.drops) else None])
        self.wfile.flush()
        if self.stall and number == 0:
            time.sleep(20)


@pytest.fixture
def handler():
    return type("Fresh", (Handler,), {"asked": []})


@pytest.fixture
def server(tmp_path, handler, monkeypatch):
    """A web server for the folder `served`."""
    monkeypatch.setattr(download, "PAUSE", 0.0)
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as running:
        running.daemon_threads = True
        running.block_on_close = False
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def left(root) -> list[str]:
    """All files but the lock."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if (path.is_file() or ".fetch" in path.name) and path.name != ".fetch.lock"
    )


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


def test_an_archive_cannot_write_outside_its_folder(server, tmp_path):
    folder, url = server
    (folder / "set.tar.gz").write_bytes(archive({"a.bin": b"A", "../../evil": b"E", "/tmp/evil-absolute": b"E"}))
    remote = Remote("set", f"{url}/set.tar.gz", {"x/a.bin": sha256(b"A")}, {"x/a.bin": "a.bin"})
    fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == ["x/a.bin"]
    assert not (tmp_path.parent / "evil").exists()


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


def test_a_truncated_archive_is_refused(server, tmp_path):
    folder, url = server
    whole = archive({"a.bin": np.random.default_rng(0).bytes(10_000)})
    (folder / "set.tar.gz").write_bytes(whole[:5000])
    remote = Remote("set", f"{url}/set.tar.gz", {"a.bin": ""}, {"a.bin": "a.bin"})
    with pytest.raises(DataError, match="to hold"):
        fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


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


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes() + values.tobytes()


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


def zipped(members: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            file.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def linked(name: str, kind: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    return buffer.getvalue()


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
