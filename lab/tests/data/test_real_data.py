"""The real data sets, where they are."""

from __future__ import annotations

import pytest
import torch

from repulse_lab import data

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
def test_human_labels_agree_with_the_published_ones(data_root):
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
