"""DirtyMNIST: MNIST and as many ambiguous digits, whose labels cannot be known for sure.

The published files of AmbiguousMNIST are read where they are in the data folder; otherwise the set is built after the
published recipe, once, and kept.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int, UInt8
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor

from repulse._files import sweep, write_whole
from repulse.backbone.fingerprint import as_bytes
from repulse.backbone.store import explaining_disk_errors, locked
from repulse.errors import CacheWarning, DataError, RecipeError, check_choice, expected
from repulse_lab.data.registry import load
from repulse_lab.study.ambiguous import CLASSES, Effort, Maker

FORMAT = 1
FOLDER = "AmbiguousMNIST"
LABELS = 10
HELD_BACK = 10_000
"""MNIST training digits that the makers do not see, so that both halves are made of digits that are new to them."""


@dataclass(frozen=True, eq=False)
class Ambiguous:
    """Ambiguous digits.

    Attributes:
        images: `uint8`, every one once.
        labels: ten draws for each image.
        probs: the distribution they were drawn from; of the published files, which do not tell it, how often each
            label came in the ten draws.
    """

    images: UInt8[Tensor, "N 1 28 28"]
    labels: Int[Tensor, "N 10"]
    probs: Float[Tensor, "N 10"]

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class DirtyMnist:
    """Pairs of an image and a label: clean digits once, then ambiguous digits ten times in a row, each label once.

    Attributes:
        images: `uint8`.
        targets: the label to learn.
        ambiguous: which pairs are of ambiguous digits.
    """

    images: UInt8[Tensor, "N 1 28 28"]
    targets: Int[Tensor, " N"]
    ambiguous: Bool[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.images)


def dirty_mnist(root: str | Path, split: str = "train", *, progress: bool = True) -> DirtyMnist:
    """Load MNIST with AmbiguousMNIST: 60,000 clean and as many ambiguous training pairs; 10,000 and 60,000 for tests.

    The 6,000 ambiguous test images that the last 60,000 show ten times each are `ambiguous_mnist(root, "test").images`.

    Args:
        root: folder of the data.
        split: "train" or "test".
        progress: whether to show bars while building.
    """
    images, labels = load("mnist", split, root).labelled
    return combined(images, labels, ambiguous_mnist(root, split, progress=progress))


def combined(images: UInt8[Tensor, "N 1 28 28"], labels: Int[Tensor, " N"], dirt: Ambiguous) -> DirtyMnist:
    """Combine clean and ambiguous digits in one set of pairs."""
    clean = len(images)
    return DirtyMnist(
        images=torch.cat([images, dirt.images.repeat_interleave(LABELS, dim=0)]),
        targets=torch.cat([labels, dirt.labels.flatten()]),
        ambiguous=torch.arange(clean + LABELS * len(dirt)) >= clean,
    )


def ambiguous_mnist(root: str | Path, split: str = "train", *, progress: bool = True) -> Ambiguous:
    """Load AmbiguousMNIST: 6,000 digits between classes to train on, 6,000 to test on, each with ten labels.

    Reads `AmbiguousMNIST/amnist_samples.pt` and `amnist_labels.pt` in `root` where they are. Otherwise builds the set
    from MNIST, which takes minutes, and keeps it. Built sets differ from the published one in this:

    * 25 epochs of the autoencoder with a one-cycle rate, not 74 with steps, and LeNets of 3 epochs;
    * 120,000 candidates for each half, not four million for both, and no image is chosen twice: bins of high entropy
      have less than their share (one image in twenty is above one nat), so that the labels are a little less noisy;
    * the halves share no source digits. Autoencoder and LeNets learn from the first 50,000 training digits of MNIST;
      the training half mixes the other 10,000 training digits, the test half the 10,000 test digits. So nothing of the
      test digits is in the training half or in what made it, and both halves are made in the same way of digits that
      are new to their makers. (The published halves are two draws of mixtures of the same digits.)
    * the LeNets judge the very images that are returned, as bytes.

    Args:
        root: folder of the data.
        split: "train" or "test".
        progress: whether to show bars while building.

    Raises:
        DataError: the published files are not as published, or MNIST is not there.
        CacheError: the folder cannot be written to.
    """
    check_choice("split", split, ("train", "test"))
    found = published(Path(root) / FOLDER)
    if found is None:
        found = built(root, Path(root) / FOLDER, 0, Effort(), HELD_BACK, progress)
    half = len(found) // 2
    part = slice(None, half) if split == "train" else slice(half, None)
    return Ambiguous(found.images[part], found.labels[part], found.probs[part])


def published(folder: Path) -> Ambiguous | None:
    """Read both halves from the published files, if they are there."""
    names = ("amnist_samples.pt", "amnist_labels.pt")
    there = [(folder / name).is_file() for name in names]
    if not any(there):
        return None
    if not all(there):
        raise DataError(
            expected(str(folder), "one with both " + " and ".join(names), f"no {names[there.index(False)]}")
        )
    samples, labels = (_tensor(folder / name) for name in names)
    if samples.ndim != 4 or samples.shape[1:] != (1, 28, 28) or not len(samples) or len(samples) % 2:
        raise DataError(expected(names[0], "an even number of images (1, 28, 28)", tuple(samples.shape)))
    if not samples.is_floating_point() or not bool(((samples >= 0) & (samples <= 1)).all()):
        raise DataError(expected(names[0], "floats between 0 and 1", "others"))
    if labels.shape != (len(samples), LABELS):
        raise DataError(expected(names[1], f"of shape {(len(samples), LABELS)}", tuple(labels.shape)))
    if not bool(((labels >= 0) & (labels < CLASSES) & (labels == labels.long())).all()):
        raise DataError(expected(names[1], f"classes from 0 to {CLASSES - 1}", "others"))
    labels = labels.long()
    frequencies = torch.nn.functional.one_hot(labels, CLASSES).float().mean(dim=1)
    return Ambiguous((samples.float() * 255).round().to(torch.uint8), labels, frequencies)


def built(root: str | Path, folder: Path, seed: int, effort: Effort, held_back: int, progress: bool) -> Ambiguous:
    """Read both halves from the cache, or build them; of several processes, one builds and the others wait."""
    path = folder / f"built-{seed}.safetensors"
    about = {"format": FORMAT, "seed": seed, "held_back": held_back, "effort": asdict(effort)}
    found = _kept(path, about)
    if found is None:
        with locked(folder):
            found = _kept(path, about, say=True)  # perhaps another process was faster
            if found is None:
                found = build(root, seed, effort, held_back, progress)
                with explaining_disk_errors(folder):
                    sweep(path)
                    write_whole(path, _packed(found, about))
    return found


def build(root: str | Path, seed: int, effort: Effort, held_back: int, progress: bool = False) -> Ambiguous:
    """Build both halves from MNIST as `ambiguous_mnist` says."""
    images, labels = load("mnist", "train", root).labelled
    if not 0 < held_back < len(images):
        raise RecipeError(expected("held_back", f"between 0 and {len(images)}", held_back))
    generator = torch.Generator().manual_seed(seed)
    maker = Maker(images[:-held_back], labels[:-held_back], effort, generator, progress)
    pools = [(images[-held_back:], labels[-held_back:]), load("mnist", "test", root).labelled]
    halves = [maker.make(*pool) for pool in pools]
    probs = torch.cat([half[1] for half in halves])
    draws = torch.multinomial(probs, LABELS, replacement=True, generator=generator)
    return Ambiguous(torch.cat([half[0] for half in halves]), draws, probs)


def _packed(data: Ambiguous, about: dict[str, object]) -> bytes:
    columns = {"images": data.images, "labels": data.labels.to(torch.uint8), "probs": data.probs.float()}
    # One entry only: several would be written in an order that changes from run to run.
    return safetensors.save(columns, metadata={"about": json.dumps({**about, "digest": _digest(columns)})})


def _kept(path: Path, about: dict[str, object], say: bool = False) -> Ambiguous | None:
    """Read what is in the cache, if it is whole and of this build."""
    if not path.is_file():
        return None
    why = "of other settings"
    try:
        with safe_open(path, framework="pt") as file:
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            found = json.loads((file.metadata() or {}).get("about", "{}"))
        if found == {**about, "digest": _digest(columns)}:
            return Ambiguous(columns["images"], columns["labels"].long(), columns["probs"])
        if {**found, "digest": None} == {**about, "digest": None}:
            why = "damaged"
    except (SafetensorError, OSError, ValueError, TypeError):
        why = "damaged"
    if say:
        warnings.warn(f"The ambiguous digits in {path} are built again: the file is {why}.", CacheWarning, stacklevel=2)
    return None


def _digest(columns: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, column in sorted(columns.items()):
        digest.update(f"{name} {column.dtype} {tuple(column.shape)}".encode())
        digest.update(as_bytes(column))
    return digest.hexdigest()


def _tensor(path: Path) -> Tensor:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as reason:
        got = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        raise DataError(expected(str(path), "a tensor saved by PyTorch", got)) from reason
    if not isinstance(value, Tensor):
        raise DataError(expected(str(path), "a tensor saved by PyTorch", f"a {type(value).__name__}"))
    return value
