"""The problems: CIFAR-10, CIFAR-100, 100 classes of Tiny ImageNet, DirtyMNIST: each put together here, nowhere else.

A problem says which images to fit on, to test on, to judge out-of-distribution detection on and to repel on, how they
are normalised, and which networks have published weights. Whatever measures something takes it from `PROBLEMS`.

A set that serves both to repel and to judge does so with different images, always: the publisher's own splits where
both are there, else two halves drawn at random. So a set has one meaning, whether or not somebody repels on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse.errors import check_choice
from repulse.repulsion import DeadLeaves, PatchShuffle, Source, SyntheticImages, TrainingData
from repulse_lab.data import load
from repulse_lab.data.images import normalise
from repulse_lab.data.registry import about, find
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published
from repulse_lab.study.dirty_mnist import ambiguous_mnist, dirty_mnist

MAX_REPULSION = 10_000
"""Maximum number of images of a set to repel on."""

Part = tuple[str, str]
"""A data set and a split of it."""
Labelled = tuple[Tensor, Tensor]
"""Images and their classes."""


def is_there(root: Path, part: Part | None) -> bool:
    """Check whether the files of a split are in the data folder."""
    return part is not None and find(root, about(part[0]).layouts(part[1])) is not None


def halves(count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of two random halves of `count` samples, always the same ones."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: count // 2], order[count // 2 :]


@dataclass(frozen=True)
class OutOfDistributionSet:
    """Where the images to repel on and those to judge on come from.

    Attributes:
        repel: split to repel on.
        judge: split to judge on.
        whole: split to halve if one of them is not there.
        apart: whether the two are of different classes, so that repelling on one says little about the other.
    """

    repel: Part | None
    judge: Part
    whole: Part | None = None
    apart: bool = False

    def can_judge(self, root: Path) -> bool:
        return is_there(root, self.judge) or is_there(root, self.whole)

    def can_repel(self, root: Path) -> bool:
        return is_there(root, self.repel) or is_there(root, self.whole)

    def is_halved(self, root: Path) -> bool:
        """Check whether one split serves both uses, for want of the publisher's two."""
        return self.whole is not None and not (is_there(root, self.judge) and is_there(root, self.repel))

    def parts(self, root: Path) -> list[Part]:
        """Return the splits that are used: those that are there, or the one that is halved."""
        parts = [self.whole] if self.is_halved(root) else [self.repel, self.judge]
        return [part for part in parts if part is not None and is_there(root, part)]

    def load(self, root: Path) -> tuple[Tensor | None, Tensor]:
        """Return images to repel on, if there are any, and others to judge on."""
        *before, last = (load(*part, root).images for part in self.parts(root))
        if self.is_halved(root):
            to_repel, to_judge = (last[half] for half in halves(len(last)))
        elif before:
            to_repel, to_judge = before[0], last
        else:
            return None, last
        known = {image.numpy().tobytes() for image in to_repel}  # some sets hold a picture twice
        return to_repel[:MAX_REPULSION], to_judge[[image.numpy().tobytes() not in known for image in to_judge]]


SETS = {
    "KMNIST": OutOfDistributionSet(("kmnist", "train"), ("kmnist", "test"), ("kmnist", "test")),
    "FashionMNIST": OutOfDistributionSet(("fashion-mnist", "train"), ("fashion-mnist", "test")),
    "Omniglot": OutOfDistributionSet(
        ("omniglot", "background"), ("omniglot", "evaluation"), ("omniglot", "evaluation")
    ),
    "EMNIST": OutOfDistributionSet(("emnist", "train"), ("emnist", "test")),
    "letters": OutOfDistributionSet(None, ("notmnist", "all"), ("notmnist", "all")),
    "CIFAR-100": OutOfDistributionSet(("cifar100", "train"), ("cifar100", "test")),
    "Tiny ImageNet": OutOfDistributionSet(("tiny-imagenet", "repulsion"), ("tiny-imagenet", "evaluation"), apart=True),
    "Places365": OutOfDistributionSet(None, ("places365", "val")),
    "textures": OutOfDistributionSet(("dtd", "train"), ("dtd", "test"), ("dtd", "ten-classes")),
    "SVHN": OutOfDistributionSet(("svhn", "train"), ("svhn", "test")),
    "SVHN crops": OutOfDistributionSet(None, ("svhn-crops", "all"), ("svhn-crops", "all")),
    "noise": OutOfDistributionSet(("noise", "repulsion"), ("noise", "evaluation")),
    "CIFAR-10": OutOfDistributionSet(("cifar10", "train"), ("cifar10", "test")),
    "other classes": OutOfDistributionSet(None, ("tiny-imagenet", "evaluation")),
    "upscaled MNIST": OutOfDistributionSet(None, ("mnist-32", "test")),
    "upscaled FashionMNIST": OutOfDistributionSet(None, ("fashion-mnist-32", "test")),
}
"""Every out-of-distribution set: those of the paper, what stands in for some (letters, which are notMNIST, for EMNIST,
and crops of house numbers for SVHN), and a few more."""


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Pairs of a test sample and a label, for samples of which some have several labels.

    Attributes:
        clean: number of samples, the first ones, that are not ambiguous.
        samples: index of the sample of each pair; an ambiguous one has ten, as in the published set.
        targets: label of each pair.
    """

    clean: int
    samples: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """All images of a problem, as bytes.

    Attributes:
        train: to fit on.
        targets: their classes.
        test: to test on.
        test_targets: their classes.
        outside: out-of-distribution sets to judge on.
        repulsion: where to repel: other images, or a source that makes them from the training images.
        mean: of the normalisation that the network expects.
        std: likewise.
        human: for each test image, how many people chose each class.
        pairs: if some test images are ambiguous, all their labels.
        averaged: out-of-distribution sets whose mean is reported; all of them if empty.
    """

    train: Tensor
    targets: Tensor
    test: Tensor
    test_targets: Tensor
    outside: Mapping[str, Tensor]
    repulsion: Mapping[str, Tensor | Source]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    human: Tensor | None = None
    pairs: LabelledPairs | None = None
    averaged: Sequence[str] = ()

    def prepared(self, batch: Tensor) -> Tensor:
        """Return bytes as the network takes them, in the memory layout in which convolutions are fastest."""
        return normalise(batch, self.mean, self.std).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class PublishedNetwork:
    """Weights that others have published.

    Attributes:
        file: name in the folder `weights` of the data folder.
        load: from the path of the file to the network.
    """

    file: str
    load: Callable[[Path], nn.Module]

    def path(self, root: Path) -> Path:
        return root / "weights" / self.file


@dataclass(frozen=True, eq=False)
class Problem:
    """What methods are compared on: photographs with one label each, unless a subclass says otherwise.

    Attributes:
        name: in job keys and on the command line.
        title: in tables.
        data: name of the data set to fit and test on.
        shape: channels, size and classes.
        mean: of the normalisation that networks expect.
        std: likewise.
        sets: names of the out-of-distribution sets in `SETS`, in the paper's order.
        sources: ways to make repulsion samples of the training images.
        people: test split with the votes of people.
        published: networks with published weights, by name.
        averaged: sets whose mean is reported; all of them if empty.
    """

    name: str
    title: str
    data: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sets: Sequence[str]
    sources: Mapping[str, Source]
    people: Part | None = None
    published: Mapping[str, PublishedNetwork] = field(default_factory=dict)
    averaged: Sequence[str] = ()

    def missing(self, root: Path, networks: Sequence[str] = ()) -> str:
        """Return what the problem cannot do without and the data folder does not have, or nothing.

        Args:
            root: data folder.
            networks: names of the published networks that are wanted.
        """
        if not is_there(root, (self.data, "train")):
            return f"{self.data} is not in the data folder"
        files = [self.published[name] for name in networks]
        absent = [file.file for file in files if not file.path(root).is_file()]
        return f"the published weights {absent[0]} are not in the data folder" if absent else ""

    def judged(self, root: Path) -> list[str]:
        """Return the names of the out-of-distribution sets that can be judged on."""
        return [name for name in self.sets if SETS[name].can_judge(root)]

    def repelled(self, root: Path) -> list[str]:
        """Return the names of what can be repelled on: sets, and sources that need no other data."""
        return [*(name for name in self.judged(root) if SETS[name].can_repel(root)), *self.sources]

    def files(self, root: Path) -> list[list[str | int]]:
        """Return the splits that are used in this folder, with their bytes: part of the keys of jobs."""
        parts = [(self.data, "train"), (self.data, "test"), *([self.people] if self.people else [])]
        parts += [part for name in self.judged(root) for part in SETS[name].parts(root)]
        return [[*part, _bytes(root, part)] for part in parts if is_there(root, part)]

    def training_set(self, root: Path, progress: bool = False) -> Labelled:
        """Return images to train a network on, and their classes."""
        return load(self.data, "train", root, progress=progress).labelled

    def images(self, root: Path) -> Images:
        """Return all images."""
        has_votes = is_there(root, self.people)
        test = load(*(self.people if has_votes and self.people else (self.data, "test")), root)
        return self._images(root, self.training_set(root), test.labelled, human=test.soft if has_votes else None)

    def _images(self, root: Path, train: Labelled, test: Labelled, **more: Any) -> Images:
        loaded = {name: SETS[name].load(root) for name in self.judged(root)}
        outside = {name: judge for name, (_, judge) in loaded.items()}
        repulsion = {name: repel for name, (repel, _) in loaded.items() if repel is not None} | dict(self.sources)
        return Images(*train, *test, outside, repulsion, self.mean, self.std, averaged=self.averaged, **more)


class DirtyMnist(Problem):
    """Clean digits and ambiguous ones, which have ten labels each; the clean ones come first."""

    def training_set(self, root: Path, progress: bool = False) -> Labelled:
        pairs = dirty_mnist(root, "train", progress=progress)
        return pairs.images, pairs.targets

    def images(self, root: Path) -> Images:
        clean, targets = load("mnist", "test", root).labelled
        ambiguous = ambiguous_mnist(root, "test", progress=False)
        labels = ambiguous.labels
        samples = len(clean) + torch.arange(len(labels)).repeat_interleave(labels.shape[1])
        every = torch.cat([torch.arange(len(clean)), samples]), torch.cat([targets, labels.flatten()])
        test = torch.cat([clean, ambiguous.images]), torch.cat([targets, labels[:, 0]])
        return self._images(root, self.training_set(root), test, pairs=LabelledPairs(len(clean), *every))


def _bytes(root: Path, part: Part) -> int:
    found = find(root, about(part[0]).layouts(part[1])) or ()
    return sum(path.stat().st_size for path in found if path.is_file())


def _sources(*tiles: int) -> dict[str, Source]:
    made: dict[str, Source] = {"training data": TrainingData(), "synthetic images": SyntheticImages()}
    return made | {f"{count} patches": PatchShuffle(count) for count in tiles}


PHOTOGRAPHS = ("Tiny ImageNet", "Places365", "textures", "SVHN", "noise")
MORE = ("SVHN crops", "upscaled MNIST", "upscaled FashionMNIST")
"""Sets that no mean is over, so that means stay those over the paper's sets."""
RESNETS = {
    f"resnet{depth}": PublishedNetwork(file, partial(load_published, depth=depth))
    for depth, file in ((20, "resnet20-12fca82f.th"), (32, "resnet32-d509ac18.th"))
}
CIFAR10 = Problem(
    "cifar10",
    "CIFAR-10",
    "cifar10",
    (3, 32, 10),
    MEAN,
    STD,
    ("CIFAR-100", *PHOTOGRAPHS, *MORE),
    _sources(32, 16),
    ("cifar10h", "test"),
    RESNETS,
    averaged=("CIFAR-100", *PHOTOGRAPHS),
)
CIFAR100 = Problem(
    "cifar100",
    "CIFAR-100",
    "cifar100",
    (3, 32, 100),
    MEAN,
    STD,
    (*PHOTOGRAPHS, *MORE),
    _sources(32, 16),
    averaged=PHOTOGRAPHS,
)
TINY100 = Problem(
    "tiny-imagenet-100",
    "Tiny ImageNet, 100 classes",
    "tiny-imagenet-100",
    (3, 32, 100),
    MEAN,
    STD,
    ("CIFAR-10", "other classes", "textures", "SVHN crops", "noise"),
    _sources(32, 16),
)
DIRTY_MNIST = DirtyMnist(
    "dirty-mnist",
    "DirtyMNIST",
    "mnist",
    (1, 28, 10),
    (0.1307,),
    (0.3081,),
    ("KMNIST", "FashionMNIST", "Omniglot", "EMNIST", "letters"),
    _sources(16, 8, 4) | {"dead leaves": DeadLeaves()},
    averaged=("KMNIST", "FashionMNIST", "Omniglot"),
)
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in (DIRTY_MNIST, CIFAR10, CIFAR100, TINY100)}


def problem_of(name: str) -> Problem:
    """Return the problem of a name."""
    check_choice("problem", name, PROBLEMS)
    return PROBLEMS[name]


@lru_cache(maxsize=1)
def images_of(problem: Problem, root: Path) -> Images:
    """Return all images of a problem, loaded once for jobs that follow each other."""
    return problem.images(root)
