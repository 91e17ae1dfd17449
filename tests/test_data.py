"""Reading and fetching data, with small files in the publishers' formats and a server of our own."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from functools import partial

import numpy as np
import pytest
import torch

from repulse.data.fetch import REMOTES, Remote, fetch, missing
from repulse.data.images import cifar10, normalise, textures, tiny_imagenet
from repulse.data.mnist import blend, fashion_mnist, mnist, notmnist
from repulse.data.text import clinc150
from repulse.errors import DataError


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A web server for the folder `served`."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
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
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or ".fetch" in path.name)


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
    with pytest.raises(DataError, match=r"test_batch\.bin.*make data"):
        cifar10(tmp_path, "test")


def test_a_truncated_archive_is_refused(server, tmp_path):
    folder, url = server
    whole = archive({"a.bin": np.random.default_rng(0).bytes(10_000)})
    (folder / "set.tar.gz").write_bytes(whole[:5000])
    remote = Remote("set", f"{url}/set.tar.gz", {"a.bin": ""}, {"a.bin": "a.bin"})
    with pytest.raises(DataError, match="to hold"):
        fetch(remote, tmp_path / "d", progress=False)
    assert left(tmp_path / "d") == []


def test_publishers_are_asked_over_https_and_every_file_has_a_digest():
    for remote in REMOTES:
        assert remote.url.startswith("https://")
        assert all(len(digest) == 64 for digest in remote.files.values())


def test_cifar10_binary_layout(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (4, 3073), dtype=np.uint8)
    rows[:, 0] = [3, 1, 4, 1]
    rows.tofile(folder / "test_batch.bin")
    images, labels = cifar10(tmp_path, "test")
    assert labels.tolist() == [3, 1, 4, 1]
    assert images.shape == (4, 3, 32, 32)
    assert images[2, 1, 0, 5] == rows[2, 1 + 1024 + 5]  # red plane, then green


def test_tiny_imagenet_halves_share_no_class(tmp_path):
    (tmp_path / "files").mkdir()
    names = np.array([f"n{i:03d}" for i in range(200)])[::-1]
    images = np.zeros((200, 32, 32, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(200)[::-1]
    np.savez(tmp_path / "files/tiny_imagenet_val_32x32.npz", x=images, wnid=names)
    np.savez(tmp_path / "files/dtd_10_classes_32x32.npz", x=images[:7], texture=names[:7])
    repulsion, evaluation = (tiny_imagenet(tmp_path, part) for part in ("repulsion", "evaluation"))
    assert sorted(repulsion[:, 0, 0, 0].tolist()) == list(range(100))
    assert sorted(evaluation[:, 0, 0, 0].tolist()) == list(range(100, 200))
    assert textures(tmp_path).shape == (7, 3, 32, 32)


def test_normalise():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert normalise(images, (0.5,), (0.25,)).flatten().tolist() == [-2.0, 2.0]


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


def test_mnist_and_its_kin_are_read_in_the_idx_format(tmp_path):
    images = np.arange(2 * 28 * 28, dtype=np.int64).astype(np.uint8).reshape(2, 28, 28)
    labels = np.array([3, 9], dtype=np.uint8)
    for name, packed in (("MNIST", False), ("FashionMNIST", True)):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(values)
            path = raw / f"t10k-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    for read in (mnist, fashion_mnist):
        x, y = read(tmp_path, "test")
        assert x.shape == (2, 1, 28, 28)
        assert torch.equal(x[:, 0], torch.from_numpy(images))
        assert y.tolist() == [3, 9]
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(idx(images)[:-1])
    with pytest.raises(DataError, match="idx format"):
        mnist(tmp_path, "test")
    with pytest.raises(DataError, match="make data"):
        notmnist(tmp_path)


def test_blends_are_of_two_classes_and_take_one_of_their_labels():
    labels = torch.arange(10).repeat(5)
    images = (labels * 20).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    mixed, drawn = blend(images, labels, 200, torch.Generator().manual_seed(0))
    assert mixed.shape == (200, 1, 4, 4)
    assert mixed.dtype == torch.uint8
    assert len(drawn.unique()) == 10
    again, _ = blend(images, labels, 200, torch.Generator().manual_seed(0))
    assert torch.equal(mixed, again)


def test_clinc150_is_read_and_labels_name_intents(tmp_path):
    folder = tmp_path / "files" / "clinc150"
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match="make data"):
        clinc150(tmp_path)
    parts = {
        "train": [["play it", "music"], ["rain?", "weather"], ["song", "music"]],
        "test": [["snow?", "weather"]],
        "oos_test": [["who am I", "oos"]],
    }
    (folder / "data_full.json").write_text(json.dumps(parts))
    (folder / "all_wiki_sents.txt").write_text("One sentence.\n\nAnother one.\n")
    data = clinc150(tmp_path)
    assert data.intents == ["music", "weather"]
    assert data.train_labels.tolist() == [0, 1, 0]
    assert data.test_labels.tolist() == [1]
    assert data.out_of_scope == ["who am I"]
    assert data.wikipedia == ["One sentence.", "Another one."]
