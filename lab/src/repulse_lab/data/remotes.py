"""What publishers offer for download, with the digests of what they give.

Digests are SHA-256 where we have computed them, and MD5 where that is what the publisher, or the reader that everybody
uses, has put on record. Either way what comes over the wire is not taken on trust.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Remote:
    """Something a publisher offers.

    Attributes:
        name: what people call it.
        url: where it is.
        files: digest of each file it gives, by its path below the data folder; empty where `digest` answers for it.
        members: for an archive, the member behind each of those paths.
        gzipped: whether the one file it gives is packed with gzip.
        digest: of the download itself.
        folders: for an archive, the folder in it behind each folder it gives.
        megabytes: size of the download, roughly, where it is a matter.
    """

    name: str
    url: str
    files: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    gzipped: bool = False
    digest: str = ""
    folders: dict[str, str] = field(default_factory=dict)
    megabytes: int = 0


_CIFAR = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_RESNETS = {
    "resnet20-12fca82f.th": "12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8",
    "resnet32-d509ac18.th": "d509ac1820d7f25398913559d7e81a13229b1e7adc5648e3bfa5e22dc137f850",
}

_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
_CLINC = {
    "data_full.json": "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
    "all_wiki_sents.txt": "570704f8120d13d27dda90d116a0b2365e121139f72c2967b65f55465ebfad44",
}

_KMNIST = {
    "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
    "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
    "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
    "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
}
_CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_SVHN = {
    "train_32x32.mat": ("e26dedcc434d2e4c54c9b2d4a06d8373", 182),
    "test_32x32.mat": ("eb5a983be6a315427106f1b164d9cef3", 64),
}
_OMNIGLOT = {
    "images_background": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "6b91aef0f799c5bb55b94e3f2daec811",
}
_PLACES = {
    "places365_val.txt": "e9f2fd57bfd9d07630173f4e8708e4b1",
    "categories_places365.txt": "06c963b85866bd0649f97cb43dd16673",
}
_EMNIST = [
    f"emnist-{part}-{split}-{kind}-ubyte.gz"
    for part in ("letters", "balanced")
    for split in ("train", "test")
    for kind in ("images-idx3", "labels-idx1")
]

_CIFAR10 = Remote(
    "CIFAR-10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    {f"cifar-10-batches-bin/{name}": digest for name, digest in _CIFAR.items()},
    {f"cifar-10-batches-bin/{name}": f"cifar-10-batches-bin/{name}" for name in _CIFAR},
    megabytes=162,
)
_EMNIST_ARCHIVE = Remote(
    "EMNIST",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    {f"EMNIST/raw/{name}": "" for name in _EMNIST},
    {f"EMNIST/raw/{name}": f"gzip/{name}" for name in _EMNIST},
    digest="58c8d27c78d21e728a6bc7b3cc06412e",
    megabytes=562,
)


def _one_each(title: str, url: str, folder: str, digests: dict[str, str]) -> tuple[Remote, ...]:
    """Files that are offered one by one below an address."""
    return tuple(Remote(f"{title} {name}", url + name, {f"{folder}{name}": digest}) for name, digest in digests.items())


OFFERED: dict[str, tuple[Remote, ...]] = {
    "mnist": tuple(
        Remote(
            f"MNIST {name}",
            f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
            {f"MNIST/raw/{name}": digest},
            gzipped=True,
        )
        for name, digest in _MNIST.items()
    ),
    "fashion-mnist": _one_each(
        "FashionMNIST",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "FashionMNIST/raw/",
        _FASHION,
    ),
    "kmnist": _one_each("KMNIST", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/", "KMNIST/raw/", _KMNIST),
    "emnist": (_EMNIST_ARCHIVE,),
    "emnist-balanced": (_EMNIST_ARCHIVE,),
    "omniglot": tuple(
        Remote(
            f"Omniglot {name}",
            f"https://raw.githubusercontent.com/brendenlake/omniglot/master/python/{name}.zip",
            digest=digest,
            folders={f"omniglot-py/{name}": name},
        )
        for name, digest in _OMNIGLOT.items()
    ),
    "cifar10": (_CIFAR10,),
    "cifar10h": (
        _CIFAR10,
        Remote(
            "CIFAR-10H",
            "https://github.com/jcpeterson/cifar-10h/raw/master/data/cifar10h-counts.npy",
            {"files/cifar10h-counts.npy": "9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff"},
        ),
    ),
    "cifar100": (
        Remote(
            "CIFAR-100",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            {f"cifar-100-python/{name}": digest for name, digest in _CIFAR100.items()},
            {f"cifar-100-python/{name}": f"cifar-100-python/{name}" for name in _CIFAR100},
            digest="eb9058c3a382ffc7106e4002c42a8d85",
            megabytes=161,
        ),
    ),
    "cifar10-c": (
        Remote(
            "CIFAR-10-C",
            "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            digest="56bf5dcef84df0e2308c6dcbcbbd8499",
            folders={"CIFAR-10-C": "CIFAR-10-C"},
            megabytes=2918,
        ),
    ),
    "cifar100-c": (
        Remote(
            "CIFAR-100-C",
            "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",
            digest="11f0ed0f1191edbf9fa23466ae6021d3",
            folders={"CIFAR-100-C": "CIFAR-100-C"},
            megabytes=2918,
        ),
    ),
    "svhn": tuple(
        Remote(
            f"SVHN {name}", f"http://ufldl.stanford.edu/housenumbers/{name}", {f"svhn/{name}": digest}, megabytes=size
        )
        for name, (digest, size) in _SVHN.items()
    ),
    "dtd": (
        Remote(
            "Describable Textures",
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            digest="fff73e5086ae6bdbea199a49dfb8a4c1",
            folders={"dtd": "dtd"},
            megabytes=625,
        ),
    ),
    "tiny-imagenet": (
        Remote(
            "Tiny ImageNet",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            digest="90528d7ca1a48142e341f4ef8d21d0de",
            folders={"tiny-imagenet-200": "tiny-imagenet-200"},
            megabytes=248,
        ),
    ),
    "places365": (
        Remote(
            "Places365 validation images",
            "http://data.csail.mit.edu/places/places365/val_256.tar",
            digest="e27b17d8d44f4af9a78502beb927f808",
            folders={"places365/val_256": "val_256"},
            megabytes=525,
        ),
        Remote(
            "Places365 labels",
            "http://data.csail.mit.edu/places/places365/filelist_places365-standard.tar",
            {f"places365/{name}": digest for name, digest in _PLACES.items()},
            {f"places365/{name}": name for name in _PLACES},
            digest="35a0585fee1fa656440f3ab298f8479c",
        ),
    ),
    "clinc150": _one_each(
        "CLINC150", "https://raw.githubusercontent.com/clinc/oos-eval/master/data/", "files/clinc150/", _CLINC
    ),
}
"""By the name of the data set."""

WEIGHTS = tuple(
    Remote(
        name.split("-", maxsplit=1)[0] + " weights for CIFAR-10",
        f"https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/{name}",
        {f"weights/{name}": digest},
    )
    for name, digest in _RESNETS.items()
)
"""Published networks."""
