"""Digits, letters and characters of 28 x 28 pixels, read from files in the publishers' formats."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from data_files import bytes_of, idx, picture, write
from repulse.errors import DataError
from repulse_lab import data
from repulse_lab.data.mnist import blend


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
    for name in ("mnist", "fashion-mnist"):
        x, y = data.load(name, "test", tmp_path).labelled
        assert x.shape == (2, 1, 28, 28)
        assert torch.equal(x[:, 0], torch.from_numpy(images))
        assert y.tolist() == [3, 9]
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(idx(images)[:-1])
    with pytest.raises(DataError, match="idx format"):
        data.load("mnist", "test", tmp_path)


def test_blends_are_of_two_classes_and_take_one_of_their_labels():
    labels = torch.arange(10).repeat(5)
    images = (labels * 20).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    mixed, drawn = blend(images, labels, 200, torch.Generator().manual_seed(0))
    assert mixed.shape == (200, 1, 4, 4)
    assert mixed.dtype == torch.uint8
    assert len(drawn.unique()) == 10
    again, _ = blend(images, labels, 200, torch.Generator().manual_seed(0))
    assert torch.equal(mixed, again)


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


def test_digits_are_upscaled_in_three_equal_colours(tmp_path):
    images = np.zeros((2, 28, 28), dtype=np.uint8)
    images[0, :, 14:] = 200  # an edge in the middle
    images[1] = 90
    for name, values in (("images-idx3", images), ("labels-idx1", np.array([4, 7], dtype=np.uint8))):
        write(tmp_path, f"MNIST/raw/t10k-{name}-ubyte", idx(values))
    large = data.load("mnist-32", "test", tmp_path)
    assert large.inputs.shape == (2, 3, 32, 32)
    assert large.targets.tolist() == [4, 7]
    assert (large.inputs[1] == 90).all()
    assert (large.inputs[:, 0] == large.inputs[:, 2]).all()
    assert large.inputs[0, 0, 5, [0, 14, 17, 31]].tolist() == [0, 0, 200, 200]
