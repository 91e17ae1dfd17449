"""Data sets by name: what is checked, what is said of what is missing or damaged, and slicing."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from data_files import bytes_of, idx, write
from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data.images import normalise


def test_normalise():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert normalise(images, (0.5,), (0.25,)).flatten().tolist() == [-2.0, 2.0]


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


def test_data_sets_are_cut(tmp_path):
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


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "val_256").mkdir()
    with pytest.raises(DataError, match="one with images in it"):
        data.load("places365", "val", tmp_path)
