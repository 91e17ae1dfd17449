"""Images to train on, to judge on and to repel on, for the problems of the paper: DirtyMNIST, CIFAR-10, CIFAR-100.

Foreign sets are those of the paper that are in the data folder. A set that serves both to repel and to judge does so
with different images: the publisher's own splits where they are there, else two halves drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from repulse.errors import check_choice
from repulse.repulsion import DeadLeaves, PatchShuffle, Source, SyntheticImages, TrainingData
from repulse_lab.data import load
from repulse_lab.data.registry import about, find
from repulse_lab.networks.resnet_cifar import MEAN, STD
from repulse_lab.study.bench import Images
from repulse_lab.study.dirty_mnist import ambiguous_mnist, dirty_mnist

DIGIT_MEAN, DIGIT_STD = (0.1307,), (0.3081,)
MOST = 10_000
"""Images of a foreign set to repel on, at most."""

Part = tuple[str, str]
"""A data set and a split of it."""


@dataclass(frozen=True)
class Foreign:
    """Where the two uses of a foreign set come from.

    Attributes:
        repel: to repel on.
        judge: to judge on.
        whole: what to halve if one of them is not there.
        apart: whether the two are of different classes, so that repelling on one tells little of the other.
    """

    repel: Part | None
    judge: Part
    whole: Part | None = None
    apart: bool = False


FOREIGN = {
    "KMNIST": Foreign(("kmnist", "train"), ("kmnist", "test"), ("kmnist", "test")),
    "FashionMNIST": Foreign(("fashion-mnist", "train"), ("fashion-mnist", "test")),
    "Omniglot": Foreign(("omniglot", "background"), ("omniglot", "evaluation"), ("omniglot", "evaluation")),
    "EMNIST": Foreign(("emnist", "train"), ("emnist", "test")),
    "letters": Foreign(None, ("notmnist", "all"), ("notmnist", "all")),
    "CIFAR-100": Foreign(("cifar100", "train"), ("cifar100", "test")),
    "Tiny ImageNet": Foreign(("tiny-imagenet", "repulsion"), ("tiny-imagenet", "evaluation"), apart=True),
    "Places365": Foreign(None, ("places365", "val")),
    "textures": Foreign(("dtd", "train"), ("dtd", "test"), ("dtd", "ten-classes")),
    "SVHN": Foreign(("svhn", "train"), ("svhn", "test")),
    "noise": Foreign(("noise", "repulsion"), ("noise", "evaluation")),
}
SETS = {
    "dirty-mnist": ("KMNIST", "FashionMNIST", "Omniglot", "EMNIST", "letters"),
    "cifar10": ("CIFAR-100", "Tiny ImageNet", "Places365", "textures", "SVHN", "noise"),
    "cifar100": ("Tiny ImageNet", "Places365", "textures", "SVHN", "noise"),
}
"""Foreign sets of each collection, in the paper's order; letters, which are notMNIST, stand in for EMNIST."""

PATCHES = {"dirty-mnist": (16, 8, 4), "cifar10": (32, 16), "cifar100": (32, 16)}
TRAINING = {"dirty-mnist": ("mnist", "train"), "cifar10": ("cifar10", "train"), "cifar100": ("cifar100", "train")}


def there(root: Path, part: Part | None) -> bool:
    """Whether the files of a split are in the data folder."""
    return part is not None and find(root, about(part[0]).layouts(part[1])) is not None


def sets_of(name: str, root: Path) -> list[str]:
    """The foreign sets of a collection that can be judged on."""
    check_choice("collection", name, SETS)
    return [key for key in SETS[name] if there(root, FOREIGN[key].judge) or there(root, FOREIGN[key].whole)]


def repulsion_of(name: str, root: Path) -> list[str]:
    """The sets of a collection that can be repelled on."""
    found = [key for key in sets_of(name, root) if there(root, FOREIGN[key].repel) or there(root, FOREIGN[key].whole)]
    return [*found, *sources(name)]


def sources(name: str) -> dict[str, Source]:
    """Ways to make repulsion samples of the training images."""
    made: dict[str, Source] = {"training data": TrainingData(), "synthetic images": SyntheticImages()}
    made |= {f"{tiles} patches": PatchShuffle(tiles) for tiles in PATCHES[name]}
    return made | ({"dead leaves": DeadLeaves()} if name == "dirty-mnist" else {})


def training_set(name: str, root: Path, progress: bool = False) -> tuple[Tensor, Tensor]:
    """Images to train a network on, and their classes."""
    check_choice("collection", name, SETS)
    if name == "dirty-mnist":
        pairs = dirty_mnist(root, "train", progress=progress)
        return pairs.images, pairs.targets
    return load(name, "train", root, progress=progress).labelled


@lru_cache(maxsize=1)
def images_of(name: str, root: Path) -> Images:
    """All images of a collection; of a mixture of clean and ambiguous digits, the clean ones come first."""
    train, targets = training_set(name, root)
    judged: dict[str, Tensor] = {}
    repelled: dict[str, Tensor | Source] = {}
    for key in sets_of(name, root):
        to_repel, judged[key] = _both(FOREIGN[key], root)
        if to_repel is not None:
            repelled[key] = to_repel[:MOST]
    repelled |= sources(name)
    if name == "dirty-mnist":
        clean, clean_targets = load("mnist", "test", root).labelled
        dirt = ambiguous_mnist(root, "test", progress=False)
        test, test_targets = torch.cat([clean, dirt.images]), torch.cat([clean_targets, dirt.labels[:, 0]])
        return Images(train, targets, test, test_targets, judged, repelled, DIGIT_MEAN, DIGIT_STD)
    people = name == "cifar10" and there(root, ("cifar10h", "test"))
    test = load("cifar10h" if people else name, "test", root)
    return Images(train, targets, *test.labelled, judged, repelled, MEAN, STD, human=test.soft if people else None)


def files_of(name: str, root: Path) -> list[list[str | int]]:
    """Which splits a collection is made of in this folder, and how many bytes their files have: what keys go by."""
    parts = [TRAINING[name], (TRAINING[name][0], "test"), *([("cifar10h", "test")] if name == "cifar10" else [])]
    for key in sets_of(name, root):
        foreign = FOREIGN[key]
        parts += [foreign.repel, foreign.judge] if _has_both(foreign, root) else [foreign.whole]
    return [[*part, _bytes(root, part)] for part in parts if part is not None and there(root, part)]


def _bytes(root: Path, part: Part) -> int:
    found = find(root, about(part[0]).layouts(part[1])) or ()
    return sum(path.stat().st_size for path in found if path.is_file())


def _has_both(foreign: Foreign, root: Path) -> bool:
    """Whether a set has images to judge on, and others to repel on unless it is not for that."""
    return there(root, foreign.judge) and (there(root, foreign.repel) or foreign.whole is None)


def _both(foreign: Foreign, root: Path) -> tuple[Tensor | None, Tensor]:
    """Images to repel on, and others to judge on."""
    if _has_both(foreign, root):
        to_repel = load(*foreign.repel, root).images if foreign.repel and there(root, foreign.repel) else None
        to_judge = load(*foreign.judge, root).images
    else:
        assert foreign.whole is not None
        images = load(*foreign.whole, root).images
        to_repel, to_judge = (images[half] for half in halves(len(images)))
    if to_repel is None:
        return None, to_judge
    known = {image.numpy().tobytes() for image in to_repel}  # some sets hold a picture twice
    return to_repel, to_judge[[image.numpy().tobytes() not in known for image in to_judge]]


def halves(count: int) -> Sequence[Tensor]:
    """Two halves of so many samples, drawn at random, the same ones always."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: count // 2], order[count // 2 :]
