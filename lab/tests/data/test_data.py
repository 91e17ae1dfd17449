"""Reading data, with small files in the publishers' formats."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data import toys
from repulse_lab.data.images import normalise
from repulse_lab.data.mnist import blend, fashion_mnist, mnist, notmnist
from repulse_lab.data.pickles import read_pickle
from repulse_lab.data.text import clinc150


def test_cifar10_binary_layout(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (4, 3073), dtype=np.uint8)
    rows[:, 0] = [3, 1, 4, 1]
    rows.tofile(folder / "test_batch.bin")
    images, labels = data.load("cifar10", "test", tmp_path).labelled
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
    repulsion, evaluation = (data.load("tiny-imagenet", part, tmp_path).images for part in ("repulsion", "evaluation"))
    assert sorted(repulsion[:, 0, 0, 0].tolist()) == list(range(100))
    assert sorted(evaluation[:, 0, 0, 0].tolist()) == list(range(100, 200))
    assert data.load("dtd", "ten-classes", tmp_path).images.shape == (7, 3, 32, 32)


def test_normalise():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert normalise(images, (0.5,), (0.25,)).flatten().tolist() == [-2.0, 2.0]


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


def test_names_splits_and_the_folder_are_checked(tmp_path, monkeypatch):
    assert "cifar10" in data.names()
    with pytest.raises(RecipeError, match="Did you mean 'cifar10'"):
        data.load("cifar-10", root=tmp_path)
    with pytest.raises(RecipeError, match="'train', 'test'"):
        data.load("mnist", "validation", tmp_path)
    monkeypatch.delenv("REPULSE_DATA", raising=False)
    with pytest.raises(DataError, match="pass `root`, or set the environment variable REPULSE_DATA"):
        data.load("mnist")
    monkeypatch.setenv("REPULSE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels-idx1-ubyte"):
        data.load("mnist")


@pytest.mark.parametrize("name", data.names())
def test_every_entry_is_complete_and_says_what_it_misses(name, tmp_path):
    entry = data.about(name)
    if not all(entry.layouts(entry.splits[0])):
        assert len(data.load(name, entry.splits[0]))  # made here: no folder, no files
        return
    assert entry.licence
    assert entry.homepage.startswith("http")
    assert entry.citation
    assert entry.remotes or entry.by_hand
    for split in entry.splits:
        with pytest.raises(DataError) as error:
            data.load(name, split, tmp_path)
        message = str(error.value)
        assert entry.layouts(split)[0][0] in message
        assert str(tmp_path) in message
        assert entry.homepage in message
        assert ("download=True" in message) == bool(entry.remotes)
        assert ("by hand" in message) == bool(entry.by_hand)
    given = [path.removesuffix(".gz") for remote in entry.remotes for path in (*remote.files, *remote.folders)]

    def is_given(path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in given)

    if entry.remotes:  # a download is enough for every split
        for split in entry.splits:
            assert any(all(is_given(path) for path in layout) for layout in entry.layouts(split))


def write(root: Path, name: str, content: bytes | str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_data_sets_are_cut_and_normalised(tmp_path):
    images, labels = bytes_of(5, 28, 28), np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    write(tmp_path, "MNIST/raw/train-images-idx3-ubyte.gz", gzip.compress(idx(images)))
    write(tmp_path, "MNIST/raw/train-labels-idx1-ubyte", idx(labels))
    digits = data.load("mnist", root=tmp_path)
    assert [path.name for path in digits.files] == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"]
    assert digits.inputs.dtype == torch.uint8
    assert digits.targets.dtype == torch.int64
    assert digits.classes == tuple("0123456789")
    assert repr(digits) == "DataSet(mnist train: 5 inputs (1, 28, 28), 10 classes)"
    assert digits[1:3].targets.tolist() == [1, 4]
    assert digits[digits.targets == 1].targets.tolist() == [1, 1]
    assert digits[torch.tensor([4, 0])].targets.tolist() == [5, 3]
    assert digits[[4, 0]].targets.tolist() == [5, 3]
    assert torch.equal(digits[-1].inputs, torch.from_numpy(images[4:, None]))
    assert len(list(digits)) == 5
    with pytest.raises(IndexError):
        digits[5]
    expected = (torch.from_numpy(images[:, None]).float() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(digits.normalised(), expected)
    with pytest.raises(DataError, match="images, to be normalised"):
        data.load("sine").normalised()
    with pytest.raises(DataError, match="as many as the 2 inputs"):
        data.DataSet("x", "all", ["a", "b"], torch.tensor([1]))
    with pytest.raises(DataError, match="finite"):
        data.DataSet("x", "all", torch.tensor([[float("nan")]]))
    texts = data.DataSet("x", "all", ["a", "b", "c"], torch.tensor([0, 1, 2]))
    assert texts[torch.tensor([2, 0])].inputs == ["c", "a"]


def test_wrong_files_are_refused_with_a_sentence(tmp_path):
    write(tmp_path, "MNIST/raw/train-images-idx3-ubyte", idx(bytes_of(2, 27, 28)))
    write(tmp_path, "MNIST/raw/train-labels-idx1-ubyte", idx(np.array([1, 2], dtype=np.uint8)))
    with pytest.raises(DataError, match=r"of shape \(1, 28, 28\), but got \(1, 27, 28\)"):
        data.load("mnist", root=tmp_path)
    write(tmp_path, "MNIST/raw/train-images-idx3-ubyte", idx(bytes_of(2, 28, 28)))
    write(tmp_path, "MNIST/raw/train-labels-idx1-ubyte", idx(np.array([1, 10], dtype=np.uint8)))
    with pytest.raises(DataError, match="from 0 to 9, but got 1 to 10"):
        data.load("mnist", root=tmp_path)
    write(tmp_path, "MNIST/raw/train-labels-idx1-ubyte", idx(np.array([1], dtype=np.uint8)))
    with pytest.raises(DataError, match="as many as the 2 inputs"):
        data.load("mnist", root=tmp_path)
    for name, path, split in (
        ("kmnist", "files/kmnist-test-imgs.npz", "test"),
        ("svhn", "svhn/test_32x32.mat", "test"),
        ("clinc150", "files/clinc150/data_full.json", "train"),
        ("cifar10-c", "CIFAR-10-C/fog.npy", "fog-1"),
        ("fashion-mnist", "FashionMNIST/raw/t10k-images-idx3-ubyte.gz", "test"),
    ):
        write(tmp_path, path, b"not what it should be")
        for other in (
            "files/kmnist-test-labels.npz",
            "CIFAR-10-C/labels.npy",
            "FashionMNIST/raw/t10k-labels-idx1-ubyte",
        ):
            write(tmp_path, other, b"nor this")
        with pytest.raises(DataError, match=f"the files of {name} to be whole and in their format"):
            data.load(name, split, tmp_path)


def test_kmnist_from_idx_files_before_arrays(tmp_path):
    images, labels = bytes_of(3, 28, 28), np.array([9, 0, 5], dtype=np.uint8)
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files/kmnist-train-imgs.npz", images)
    np.savez(tmp_path / "files/kmnist-train-labels.npz", labels)
    first = data.load("kmnist", root=tmp_path)
    assert first.targets.tolist() == [9, 0, 5]
    assert torch.equal(first.inputs[:, 0], torch.from_numpy(images))
    write(tmp_path, "KMNIST/raw/train-images-idx3-ubyte.gz", gzip.compress(idx(images[:2])))
    write(tmp_path, "KMNIST/raw/train-labels-idx1-ubyte.gz", gzip.compress(idx(labels[:2])))
    assert len(data.load("kmnist", root=tmp_path)) == 2


def test_emnist_is_turned_upright_and_letters_count_from_zero(tmp_path):
    images = bytes_of(2, 28, 28)
    for part, labels in (("letters", [1, 26]), ("balanced", [0, 46])):
        start = f"EMNIST/raw/emnist-{part}-test"
        write(tmp_path, f"{start}-images-idx3-ubyte.gz", gzip.compress(idx(images)))
        write(tmp_path, f"{start}-labels-idx1-ubyte", idx(np.array(labels, dtype=np.uint8)))
    letters = data.load("emnist", "test", tmp_path)
    assert letters.inputs[1, 0, 3, 20] == images[1, 20, 3]
    assert [letters.classes[i] for i in letters.targets] == ["a", "z"]
    balanced = data.load("emnist-balanced", "test", tmp_path)
    assert len(balanced.classes) == 47
    assert [balanced.classes[i] for i in balanced.targets] == ["0", "t"]


def test_notmnist_with_and_without_labels(tmp_path):
    write(tmp_path, "files/notmnist-images-idx3-ubyte.gz", gzip.compress(idx(bytes_of(2, 28, 28))))
    assert data.load("notmnist", "all", tmp_path).targets is None
    write(tmp_path, "files/notmnist-labels-idx1-ubyte.gz", gzip.compress(idx(np.array([0, 9], dtype=np.uint8))))
    assert data.load("notmnist", "all", tmp_path).targets.tolist() == [0, 9]


def picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_omniglot_folders_are_inverted_and_area_resized(tmp_path):
    drawing = np.full((112, 112), True)
    drawing[:4, 4:8] = False  # one pixel of 28 x 28, in black
    drawing[4:6, 0:4] = False  # half of one
    for alphabet, character in (("Tengwar", "character02"), ("Tengwar", "character01"), ("Angelic", "character01")):
        for number in (2, 1):
            picture(tmp_path / f"omniglot-py/images_evaluation/{alphabet}/{character}/{number}.png", drawing)
    omniglot = data.load("omniglot", "evaluation", tmp_path)
    assert omniglot.classes == ("Angelic/character01", "Tengwar/character01", "Tengwar/character02")
    assert omniglot.targets.tolist() == [0, 0, 1, 1, 2, 2]
    image = omniglot.inputs[3, 0]
    assert image[0, 1] == 255
    assert int(image[1, 0]) in {127, 128}
    assert int(image.sum()) == 255 + int(image[1, 0])
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files/omniglot_evaluation_28x28.npz", x=bytes_of(9, 28, 28))
    assert len(data.load("omniglot", "evaluation", tmp_path)) == 6  # the publisher's
    (tmp_path / "omniglot-py").rename(tmp_path / "elsewhere")
    assert data.load("omniglot", "evaluation", tmp_path).inputs.shape == (9, 1, 28, 28)


def old_pickle(value) -> bytes:
    """As Python 2 with the numpy of its day wrote it: the format of the publisher's files."""

    def emit(value) -> bytes:
        if isinstance(value, dict):
            return b"}(" + b"".join(emit(k) + emit(v) for k, v in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(emit, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(emit, value)) + b"t"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, str):
            return b"U" + bytes([len(value)]) + value.encode()
        kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        content = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
        array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return array + b"(K\x01" + emit(value.shape) + kind + b"\x89" + content + b"tb"

    return b"\x80\x02" + emit(value) + b"."


def new_pickle(value) -> bytes:
    return pickle.dumps(value, protocol=2)


@pytest.mark.parametrize("dump", [old_pickle, new_pickle])
def test_cifar_in_both_layouts(tmp_path, dump):
    rows = bytes_of(10, 3072)
    labels = [int(i) for i in np.random.default_rng(1).integers(0, 10, 10)]
    for i in range(5):
        batch = {"batch_label": "batch", "data": rows[2 * i : 2 * i + 2], "labels": labels[2 * i : 2 * i + 2]}
        write(tmp_path, f"cifar-10-batches-py/data_batch_{i + 1}", dump(batch))
        both = np.concatenate([np.array(batch["labels"], dtype=np.uint8)[:, None], batch["data"]], axis=1)
        write(tmp_path / "bin", f"cifar-10-batches-bin/data_batch_{i + 1}.bin", both.tobytes())
    first, second = (data.load("cifar10", "train", root) for root in (tmp_path, tmp_path / "bin"))
    assert torch.equal(first.inputs, second.inputs)
    assert first.targets.tolist() == second.targets.tolist() == labels
    assert first.inputs[3, 2, 1, 7] == rows[3, 2048 + 32 + 7]
    write(tmp_path / "bin", "cifar-10-batches-bin/test_batch.bin", b"x" * 3000)
    with pytest.raises(DataError, match="rows of 3073 bytes, but got 3000 bytes"):
        data.load("cifar10", "test", tmp_path / "bin")


@pytest.mark.parametrize("dump", [old_pickle, new_pickle])
def test_cifar100_takes_the_fine_labels_and_their_names(tmp_path, dump):
    rows, fine, coarse = bytes_of(2, 3072), [99, 7], [1, 2]
    names = [f"thing_{i}" for i in range(100)]
    write(tmp_path, "cifar-100-python/test", dump({"data": rows, "fine_labels": fine, "coarse_labels": coarse}))
    write(tmp_path, "cifar-100-python/meta", dump({"fine_label_names": names, "coarse_label_names": ["x"]}))
    write(tmp_path / "bin", "cifar-100-binary/fine_label_names.txt", "\n".join(names) + "\n")
    binary = np.concatenate([np.array([coarse, fine], dtype=np.uint8).T, rows], axis=1)
    write(tmp_path / "bin", "cifar-100-binary/test.bin", binary.tobytes())
    for root in (tmp_path, tmp_path / "bin"):
        test = data.load("cifar100", "test", root)
        assert test.targets.tolist() == fine
        assert test.classes == tuple(names)
        assert torch.equal(test.inputs.flatten(1), torch.from_numpy(rows))


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.mkdir, eval, getattr, np.load, pickle.loads])
def test_a_malicious_pickle_is_not_run(tmp_path, protocol, function, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = Evil(function, "made") if function is os.mkdir else Evil(function, "1")
    write(tmp_path, "cifar-10-batches-py/test_batch", pickle.dumps({"data": evil}, protocol=protocol))
    with pytest.raises(DataError, match=r"arrays, lists and texts only, but got a call of \w+.*test_batch was run"):
        data.load("cifar10", "test", tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}(U\x04data",
        pickle.dumps([1, 2]),
        new_pickle({"data": np.zeros((1, 3072))}),
        new_pickle({"data": np.array([{}], dtype=object)}),
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Ru.",  # no state
        b"\x80\x02}(U\x04datac_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00base64\x86Ru.",
        b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",  # setting attributes of what it names
    ],
)
def test_a_pickle_of_anything_else_is_refused(tmp_path, content):
    write(tmp_path, "batch", content)
    with pytest.raises(DataError, match="Expected"):
        read_pickle(tmp_path / "batch")


def test_cifar10h_gives_the_share_of_people(tmp_path):
    rows = bytes_of(2, 3073)
    rows[:, 0] = [3, 8]
    write(tmp_path, "cifar-10-batches-bin/test_batch.bin", rows.tobytes())
    counts = np.zeros((2, 10), dtype=np.int64)
    counts[0, [3, 5]], counts[1, 8] = [30, 10], 50
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files/cifar10h-counts.npy", counts)
    people = data.load("cifar10h", "test", tmp_path)
    assert people.soft[0].tolist() == [0, 0, 0, 0.75, 0, 0.25, 0, 0, 0, 0]
    assert people.targets.tolist() == [3, 8]
    assert people[1:].soft.argmax(dim=1).tolist() == [8]
    np.save(tmp_path / "files/cifar10h-counts.npy", counts[:1])
    with pytest.raises(DataError, match="ten for each of 2 images"):
        data.load("cifar10h", "test", tmp_path)


def test_corrupted_copies_are_cut_by_severity(tmp_path):
    images, labels = bytes_of(10, 32, 32, 3), np.tile([3, 7], 5).astype(np.uint8)
    for folder in ("CIFAR-10-C", "CIFAR-100-C"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "glass_blur.npy", images)
        np.save(tmp_path / folder / "labels.npy", labels)
    for name in ("cifar10-c", "cifar100-c"):
        mild, fourth = (data.load(name, f"glass_blur-{i}", tmp_path) for i in (1, 4))
        assert torch.equal(mild.inputs, torch.from_numpy(images[:2].transpose(0, 3, 1, 2)))
        assert torch.equal(fourth.inputs, torch.from_numpy(images[6:8].transpose(0, 3, 1, 2)))
        assert fourth.targets.tolist() == [3, 7]
    assert len(data.about("cifar10-c").splits) == 95
    with pytest.raises(RecipeError):
        data.load("cifar10-c", "glass_blur-6", tmp_path)


@pytest.mark.parametrize("folder", ["svhn", "."])
def test_svhn_calls_ten_zero(tmp_path, folder):
    images = bytes_of(32, 32, 3, 3)
    (tmp_path / folder).mkdir(exist_ok=True)
    savemat(tmp_path / folder / "test_32x32.mat", {"X": images, "y": np.array([[10], [1], [9]], dtype=np.uint8)})
    numbers = data.load("svhn", "test", tmp_path)
    assert numbers.targets.tolist() == [0, 1, 9]
    assert numbers.inputs[2, 1, 5, 6] == images[5, 6, 1, 2]


def plain(colour: int, height: int = 40, width: int = 48) -> np.ndarray:
    return np.full((height, width, 3), colour, dtype=np.uint8)


def test_textures_by_partition_all_and_ten_classes(tmp_path):
    names = [f"class_{i:02d}" for i in range(12)]
    for i, name in enumerate(names):
        picture(tmp_path / f"dtd/images/{name}/{name}_0001.png", plain(10 * i))
        picture(tmp_path / f"dtd/images/{name}/{name}_0002.png", plain(10 * i + 5))
        write(tmp_path, f"dtd/images/{name}/.directory", "not an image")
    write(tmp_path, "dtd/labels/test1.txt", "".join(f"{name}/{name}_0002.png\n" for name in names))
    test = data.load("dtd", "test", tmp_path)
    assert test.inputs[:, 0, 0, 0].tolist() == [10 * i + 5 for i in range(12)]
    assert test.classes == tuple(names)
    assert test.targets.tolist() == list(range(12))
    assert len(data.load("dtd", "all", tmp_path)) == 24
    assert data.load("dtd", "ten-classes", tmp_path).targets.tolist() == [i // 2 for i in range(20)]
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files/dtd_10_classes_32x32.npz", x=bytes_of(2, 32, 32, 3), texture=np.array(["b", "a"]))
    assert len(data.load("dtd", "ten-classes", tmp_path)) == 20  # the publisher's
    (tmp_path / "dtd").rename(tmp_path / "elsewhere")
    assert data.load("dtd", "ten-classes", tmp_path).targets.tolist() == [1, 0]


def test_photographs_are_cropped_to_the_middle_and_antialiased(tmp_path):
    stripes = np.zeros((128, 256, 3), dtype=np.uint8)
    stripes[:, 64:192:2] = 200  # finer than a pixel of the result
    stripes[:, :64] = 255  # cut off
    picture(tmp_path / "places365/val_256/Places365_val_00000001.png", stripes)
    picture(tmp_path / "places365/val_256/Places365_val_00000002.png", plain(50))
    places = data.load("places365", "val", tmp_path)
    assert places.inputs.shape == (2, 3, 32, 32)
    assert places.targets is None
    assert (places.inputs[0, :, :, 4:-4].float() - 100).abs().max() <= 2
    assert bool((places.inputs[1] == 50).all())
    write(tmp_path, "places365/places365_val.txt", "Places365_val_00000002.png 7\nPlaces365_val_00000001.png 364\n")
    named = data.load("places365", "val", tmp_path)
    assert named.targets.tolist() == [7, 364]
    assert named.classes == ()
    write(tmp_path, "places365/categories_places365.txt", "/a/airfield 0\n/z/zen_garden 1\n")
    assert data.load("places365", "val", tmp_path).classes == ("/a/airfield", "/z/zen_garden")
    assert bool((named.inputs[0] == 50).all())
    write(tmp_path, "places365/val_256/Places365_val_00000002.png", b"\x89PNG but no more")
    with pytest.raises(DataError, match=r"val_00000002\.png to be a whole image"):
        data.load("places365", "val", tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "val_256").mkdir()
    with pytest.raises(DataError, match="one with images in it"):
        data.load("places365", "val", tmp_path)


def test_tiny_imagenet_folders(tmp_path):
    names = [f"n{i:08d}" for i in range(200)]
    root = tmp_path / "tiny-imagenet-200"
    lines = []
    for i, name in enumerate(reversed(names)):
        picture(root / f"val/images/val_{i}.png", plain(199 - i, 64, 64))
        lines.append(f"val_{i}.png\t{name}\t0\t0\t62\t62\n")
    write(tmp_path, "tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
    for name in ("n2", "n1"):
        picture(root / f"train/{name}/images/{name}_0.png", plain(9, 64, 64))
    train = data.load("tiny-imagenet", "train", tmp_path)
    assert train.classes == ("n1", "n2")
    assert train.targets.tolist() == [0, 1]
    everything = data.load("tiny-imagenet", "val", tmp_path)
    assert everything.targets.tolist() == list(range(199, -1, -1))
    repulsion, evaluation = (data.load("tiny-imagenet", part, tmp_path) for part in ("repulsion", "evaluation"))
    assert repulsion.classes == tuple(names[:100])
    assert evaluation.classes == tuple(names[100:])
    assert sorted(evaluation.inputs[:, 0, 0, 0].tolist()) == list(range(100, 200))
    picture(root / "val/images/val_0.png", plain(0, 64, 64))
    write(tmp_path, "tiny-imagenet-200/val/val_annotations.txt", lines[0])
    with pytest.raises(DataError, match="of 200 classes, to be halved, but got 1 classes"):
        data.load("tiny-imagenet", "repulsion", tmp_path)


def test_clinc150_by_split(tmp_path):
    parts = {
        "train": [["play it", "music"], ["rain?", "weather"]],
        "val": [["sun?", "weather"]],
        "test": [["snow?", "weather"]],
        "oos_train": [["a", "oos"]],
        "oos_val": [["b", "oos"]],
        "oos_test": [["c", "oos"]],
    }
    write(tmp_path, "files/clinc150/data_full.json", json.dumps(parts))
    write(tmp_path, "files/clinc150/all_wiki_sents.txt", "One.\n\nTwo.\n")
    val = data.load("clinc150", "val", tmp_path)
    assert (val.inputs, val.targets.tolist(), val.classes) == (["sun?"], [1], ("music", "weather"))
    outside = [data.load("clinc150", split, tmp_path) for split in ("oos-train", "oos-val", "oos")]
    assert [each.inputs for each in outside] == [["a"], ["b"], ["c"]]
    assert outside[0].targets is None
    assert data.load("clinc150", "wikipedia", tmp_path)[1:].inputs == ["Two."]


@pytest.mark.parametrize("folder", ["files/uci/yacht", "UCI_Datasets/yacht/data"])
def test_uci_tables_are_cut_by_their_index_files(tmp_path, folder):
    table = np.random.default_rng(0).normal(size=(4, 7))
    write(tmp_path, f"{folder}/data.txt", "\n".join(" ".join(f"{x:.6f}" for x in row) for row in table) + "\n\n")
    write(tmp_path, f"{folder}/index_features.txt", "0\n1\n2\n3\n4\n6\n")
    write(tmp_path, f"{folder}/index_target.txt", "5\n")
    write(tmp_path, f"{folder}/index_train_0.txt", "2\n0\n3\n")
    write(tmp_path, f"{folder}/index_test_0.txt", "1\n")
    train, test = (data.load("uci-yacht", f"{part}-0", tmp_path) for part in ("train", "test"))
    np.testing.assert_allclose(train.inputs, table[[2, 0, 3]][:, [0, 1, 2, 3, 4, 6]], atol=1e-6)
    np.testing.assert_allclose(test.targets, table[[1], 5], atol=1e-6)
    write(tmp_path, f"{folder}/index_test_0.txt", "4\n")
    with pytest.raises(DataError, match="from 0 to 3"):
        data.load("uci-yacht", "test-0", tmp_path)


def test_noise_is_uniform_and_its_halves_differ(monkeypatch):
    monkeypatch.delenv("REPULSE_DATA", raising=False)
    state = torch.random.get_rng_state()
    repulsion, evaluation = (data.load("noise", part) for part in ("repulsion", "evaluation"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(repulsion.inputs, data.load("noise", "repulsion").inputs)
    assert repulsion.inputs.shape == (10_000, 3, 32, 32)
    assert repulsion.files == ()
    share = torch.bincount(repulsion.inputs.flatten(), minlength=256) / repulsion.inputs.numel()
    assert (share * 256 - 1).abs().max() < 0.05
    assert (repulsion.inputs == evaluation.inputs).float().mean() < 0.005
    assert toys.noise("evaluation", 7, (1, 28, 28)).inputs.shape == (7, 1, 28, 28)
    with pytest.raises(RecipeError, match="positive integer"):
        toys.noise(count=0)


def test_toys_are_what_they_say():
    train, test, repulsion = (data.load("two-moons", split) for split in ("train", "test", "repulsion"))
    assert len(train) == 1500
    assert not torch.equal(train.inputs, test.inputs)
    centre = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[train.targets]
    assert ((train.inputs - centre).norm(dim=1) - 1).square().mean().sqrt() == pytest.approx(0.1, rel=0.1)
    low, high = torch.tensor([-3.0, -3.0]), torch.tensor([4.0, 3.5])
    assert bool(((repulsion.inputs >= low) & (repulsion.inputs <= high)).all())
    blobs = toys.gaussians(count=5000)
    for i in range(5):
        blob = blobs.inputs[blobs.targets == i]
        assert blob.mean(dim=0).norm() == pytest.approx(5, abs=0.15)
        assert blob.std(dim=0).tolist() == pytest.approx([1, 1], abs=0.1)
    sine = toys.sine(count=4000)
    x = sine.inputs.squeeze(1)
    assert bool((((x >= 1.5) & (x <= 2.5)) | ((x >= 4.5) & (x <= 6))).all())
    assert int((x < 3).sum()) == 2000
    assert (sine.targets - x * x.sin()).std() == pytest.approx(0.25, rel=0.05)
    assert toys.sine("test", 1000).inputs.amax() <= 7 < toys.sine("repulsion", 1000).inputs.amax()


REAL = [
    ("mnist", "train", 60_000, (1, 28, 28), 10),
    ("mnist", "test", 10_000, (1, 28, 28), 10),
    ("fashion-mnist", "train", 60_000, (1, 28, 28), 10),
    ("kmnist", "test", 10_000, (1, 28, 28), 10),
    ("notmnist", "all", 10_000, (1, 28, 28), 10),
    ("omniglot", "evaluation", 13_180, (1, 28, 28), None),
    ("cifar10", "train", 50_000, (3, 32, 32), 10),
    ("cifar10h", "test", 10_000, (3, 32, 32), 10),
    ("dtd", "ten-classes", 1200, (3, 32, 32), 10),
    ("tiny-imagenet", "repulsion", 5000, (3, 32, 32), 100),
    ("tiny-imagenet", "evaluation", 5000, (3, 32, 32), 100),
    ("clinc150", "train", 15_000, None, 150),
    ("clinc150", "val", 3000, None, 150),
    ("clinc150", "test", 4500, None, 150),
    ("clinc150", "oos", 1000, None, None),
    ("clinc150", "wikipedia", 14_750, None, None),
]


@pytest.mark.data
@pytest.mark.parametrize(("name", "split", "count", "shape", "classes"), REAL)
def test_real_sets_have_their_counts_shapes_and_labels(data_root, name, split, count, shape, classes):
    real = data.load(name, split, data_root)
    assert len(real) == count
    assert all(path.exists() for path in real.files)
    if shape:
        assert tuple(real.inputs.shape[1:]) == shape
        assert 0.05 < real.inputs[:500].float().mean() / 255 < 0.7
    if classes is None:
        assert real.targets is None
    else:
        assert real.targets.unique().tolist() == list(range(classes))
        assert len(real.classes) == classes


@pytest.mark.data
def test_real_sets_agree_with_the_plain_readers(data_root):
    assert torch.equal(data.load("fashion-mnist", "test", data_root).targets, fashion_mnist(data_root, "test")[1])
    people = data.load("cifar10h", "test", data_root)
    assert (people.soft.argmax(dim=1) == people.targets).float().mean() > 0.98
    torch.testing.assert_close(people.soft.sum(dim=1), torch.ones(10_000))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "features"),
    [("concrete", 1030, 8), ("energy", 768, 8), ("yacht", 308, 6), ("power-plant", 9568, 4)],
)
def test_real_tables_split_all_their_rows(data_root, name, rows, features):
    for number in range(5):
        train, test = (data.load(f"uci-{name}", f"{part}-{number}", data_root) for part in ("train", "test"))
        assert len(train) + len(test) == rows
        assert train.inputs.shape[1] == features
        assert train.targets.dtype == torch.float32
