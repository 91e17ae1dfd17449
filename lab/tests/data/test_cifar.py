"""CIFAR-10 and CIFAR-100 in both layouts, with human labels and corruptions, and pickles that are never run."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from data_files import bytes_of, new_pickle, old_pickle, write
from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data.pickles import read_pickle


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
