"""Get real data from its publishers, when asked: `python -m repulse.data.fetch FOLDER`.

Each file is checked against its SHA-256 before it gets its name, so a file that is there is whole and is the right one.
Out of an archive only the named members are read, into places that this file decides and the archive does not.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from repulse.errors import DataError

CHUNK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """Something a publisher offers.

    Attributes:
        name: what people call it.
        url: where it is.
        files: SHA-256 of each file it gives, by its path below the data folder.
        members: for a tar archive, the member behind each of those paths.
        gzipped: whether the one file it gives is packed with gzip.
    """

    name: str
    url: str
    files: dict[str, str]
    members: dict[str, str] = field(default_factory=dict)
    gzipped: bool = False


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

REMOTES = (
    Remote(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        {f"cifar-10-batches-bin/{name}": digest for name, digest in _CIFAR.items()},
        {f"cifar-10-batches-bin/{name}": f"cifar-10-batches-bin/{name}" for name in _CIFAR},
    ),
    *(
        Remote(
            name.split("-", maxsplit=1)[0] + " weights for CIFAR-10",
            f"https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/{name}",
            {f"weights/{name}": digest},
        )
        for name, digest in _RESNETS.items()
    ),
    *(
        Remote(
            f"MNIST {name}",
            f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
            {f"MNIST/raw/{name}": digest},
            gzipped=True,
        )
        for name, digest in _MNIST.items()
    ),
    *(
        Remote(
            f"FashionMNIST {name}",
            f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{name}",
            {f"FashionMNIST/raw/{name}": digest},
        )
        for name, digest in _FASHION.items()
    ),
    *(
        Remote(
            f"CLINC150 {name}",
            f"https://raw.githubusercontent.com/clinc/oos-eval/master/data/{name}",
            {f"files/clinc150/{name}": digest},
        )
        for name, digest in _CLINC.items()
    ),
)

BY_HAND = {
    "files/tiny_imagenet_val_32x32.npz": "Tiny ImageNet validation images at 32 x 32: `x` (uint8, NHWC), `wnid`",
    "files/dtd_10_classes_32x32.npz": "textures (DTD) at 32 x 32: `x` (uint8, NHWC), `texture`",
    "files/notmnist-images-idx3-ubyte.gz": "10,000 letters A to J of notMNIST at 28 x 28, in the idx format",
}
"""Files that are made from a publisher's larger ones, and what must be in them."""


def missing(remote: Remote, root: Path) -> list[str]:
    """Which of its files are not in the folder."""
    return [path for path in remote.files if not (root / path).is_file()]


def fetch(remote: Remote, root: Path, progress: bool = True) -> None:
    """Download what is missing; a kill or a wrong digest leaves nothing behind."""
    wanted = missing(remote, root)
    if not wanted:
        return
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as scratch:
        whole = Path(scratch) / "download"
        _download(remote, whole, progress)
        for path in wanted:
            part = whole
            if remote.members:
                part = Path(scratch) / "member"
                _extract(remote, whole, remote.members[path], part)
            elif remote.gzipped:
                part = Path(scratch) / "member"
                _unpack(remote, whole, part)
            digest = _digest(part)
            if digest != remote.files[path]:
                raise DataError(
                    f"Expected {path} to have SHA-256 {remote.files[path]}, but got {digest}; nothing was kept."
                )
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            part.replace(root / path)


def _download(remote: Remote, to: Path, progress: bool) -> None:
    try:
        with urllib.request.urlopen(remote.url, timeout=60) as answer, to.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0) or None
            with tqdm(total=size, desc=remote.name, unit="B", unit_scale=True, disable=not progress) as bar:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
    except OSError as reason:
        raise DataError(f"Expected to download {remote.name} from {remote.url}, but it failed: {reason}.") from reason


def _extract(remote: Remote, archive: Path, member: str, to: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            source = tar.extractfile(member)
            if source is None:
                raise KeyError(member)
            with source, to.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
    except (tarfile.TarError, KeyError, EOFError) as reason:
        raise DataError(f"Expected {remote.url} to hold {member}, but it does not ({reason}).") from reason


def _unpack(remote: Remote, packed: Path, to: Path) -> None:
    try:
        with gzip.open(packed) as source, to.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
    except (OSError, EOFError) as reason:
        raise DataError(f"Expected {remote.url} to be packed with gzip, but it is not ({reason}).") from reason


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch everything into the folder named on the command line, and say what is left to do by hand."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    failed = False
    for remote in REMOTES:
        try:
            fetch(remote, root)
            print(f"there    {remote.name}: {', '.join(remote.files)}")
        except DataError as error:
            failed = True
            print(f"missing  {remote.name}: {error}")
    for path, what in BY_HAND.items():
        print(f"there    {path}" if (root / path).is_file() else f"by hand  {path}: {what}")
    print(f"\nexport REPULSE_DATA={root.resolve()}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
