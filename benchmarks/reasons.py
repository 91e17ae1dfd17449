"""Why ensembles doubt, on pictures that a person can check: ten of CIFAR-10 and ten of pets, for docs/reasons.md.

Nothing is picked by hand: of the test data the inputs of the least doubt, of the first, second and third quarter of it,
and of the most; and the first inputs of sets that are foreign. Needs the data folder (REPULSE_DATA) and, for pets,
`repulse-lab[images]`.

    REPULSE_DATA=data python benchmarks/reasons.py [cifar10 pets]    # some minutes on one core
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import repulse
from repulse_lab.data.images import normalise
from repulse_lab.defaults.images import (
    PIXELS,
    WEIGHTS,
    bytes_of,
    efficientnet_lite0,
    labelled,
    noise,
    photographs,
    svhn_crops,
)
from repulse_lab.defaults.last_layer import train_last_layer
from repulse_lab.defaults.problem import Samples
from repulse_lab.defaults.training import Schedule
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published
from tables import ROOT, insert

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
FALSE_ALARMS = 0.05
NEAREST, SHARES = 4, 5
"""Training images, and shares of the disagreement, that are shown."""


@dataclass(frozen=True)
class Case:
    """A network, its data, and inputs from elsewhere with a name for each."""

    model: nn.Module
    names: tuple[str, ...]
    train: Samples
    validation: Samples
    calibration: Samples
    test: Samples
    foreign: Sequence[tuple[str, Tensor]]


def cifar10(root: Path, folder: Path) -> Case:
    """Take the published ResNet-20 with 10,000 training images."""
    prepare = partial(normalise, mean=MEAN, std=STD)
    test = Samples(*labelled("cifar10", "test", root), prepare)
    parts = [test.some(part) for part in torch.arange(6000).tensor_split([2500, 5000])]
    tiny, numbers = bytes_of("tiny-imagenet", "evaluation", root), svhn_crops(root)
    textures = bytes_of("dtd", "ten-classes", root)
    foreign = [("Tiny ImageNet", tiny[0]), ("Tiny ImageNet", tiny[1]), ("SVHN crops", numbers[0])]
    foreign += [("textures", textures[0]), ("uniform noise", noise((3, 32, 32), 1)[0])]
    train = Samples(*labelled("cifar10", "train", root), prepare).at_most(10_000)
    return Case(load_published(root / WEIGHTS[20], 20), CLASSES, train, parts[0], parts[1], parts[2], foreign)


def pets(root: Path, folder: Path) -> Case:
    """Take eight breeds on EfficientNet-Lite0, whose last layer is trained on 80 photographs of each."""
    breeds = sorted(path for path in (root / "files" / "pets" / "images").iterdir() if path.is_dir())
    known, unknown = breeds[::4][:8], breeds[1::4]
    images = Samples(*photographs(known, 150), partial(normalise, **PIXELS))
    order = torch.randperm(images.count, generator=torch.Generator().manual_seed(0))
    train, validation, calibration, test = (images.some(part) for part in order.tensor_split([640, 800, 1000]))
    network = efficientnet_lite0()
    train_last_layer(network, "_fc", train, len(known), Schedule(steps=500, lr=3e-3), 0, folder / "pets")
    others = sorted(path for path in (root / "files" / "imagenette").iterdir() if path.is_dir())
    foreign = [(breed.name.replace("_", " "), photographs([breed], 1)[0][0]) for breed in unknown[:3]]
    foreign += [("Imagenette", photographs([other], 1)[0][0]) for other in others[:2]]
    names = tuple(breed.name.replace("_", " ") for breed in known)
    return Case(network, names, train, validation, calibration, test, foreign)


CASES: dict[str, Callable[[Path, Path], Case]] = {"cifar10": cifar10, "pets": pets}


@dataclass(frozen=True)
class Shown:
    """An input, where it is from, and what is decided on it and why."""

    source: str
    image: Tensor
    reason: repulse.decide.Reason


def explained(case: Case) -> list[Shown]:
    """Retrofit the network, calibrate a gate, and explain ten inputs."""
    ensemble = repulse.retrofit(
        case.model, case.train, validation=case.validation, class_names=case.names, progress=False
    )
    ensemble.gate(case.calibration, false_alarms=FALSE_ALARMS, progress=False)
    doubt = ensemble.predict(case.test, progress=False).epistemic
    order = doubt.argsort()
    chosen = [int(order[round(share * (len(order) - 1))]) for share in QUARTERS]
    assert isinstance(case.test.inputs, Tensor)
    assert case.test.targets is not None
    inputs = [(f"test: {case.names[int(case.test.targets[i])]}", case.test.inputs[i]) for i in chosen]
    inputs += case.foreign
    found = []
    for source, image in inputs:
        x = case.test.prepare(image.unsqueeze(0))
        reason = ensemble.why(x[0], nearest=NEAREST)
        assert isinstance(reason, repulse.decide.Reason)
        found.append(Shown(source, image, reason))
    return found


def picture(found: Sequence[Shown], train: Samples, path: Path) -> None:
    """Draw a row for each input: itself, votes, shares, and the nearest training images."""
    assert isinstance(train.inputs, Tensor)
    figure = Figure(figsize=(13, 2.1 * len(found)), layout="constrained")
    ratios = [1, 1, 1.4, *[1] * NEAREST]
    rows: Any = figure.subfigures(len(found), 1)
    for i, (row, one) in enumerate(zip(rows, found, strict=True), start=1):
        axes = row.subplots(1, len(ratios), gridspec_kw={"width_ratios": ratios})
        reason = one.reason
        row.suptitle(f"{i}. {one.source}  →  {reason.text.split(';')[0]}", fontsize=10, x=0.01, ha="left")
        axes[0].imshow(one.image.movedim(0, -1).numpy())
        _bars(axes[1], reason.votes, "heads that prefer it")
        _bars(axes[2], largest(reason.shares), "share of the disagreement")
        for panel, near in zip(axes[3:], reason.nearest, strict=True):
            panel.imshow(train.inputs[near.index].movedim(0, -1).numpy())
            panel.set_title(f"{near.target}\n{near.distance:.1f} x usual distance", fontsize=8)
        for panel in (axes[0], *axes[3:]):
            panel.axis("off")
    figure.savefig(path, dpi=75, facecolor="white")


def _bars(panel: Any, values: Mapping[str, float], title: str) -> None:
    panel.barh(
        range(len(values)), list(values.values()), color=["#b3261e" if v < 0 else "#2f6fb0" for v in values.values()]
    )
    panel.set_yticks(range(len(values)), [name if len(name) < 25 else f"{name[:23]}…" for name in values], fontsize=8)
    panel.set_title(title, fontsize=8)
    panel.tick_params(axis="x", labelsize=7)
    panel.invert_yaxis()
    panel.axvline(0, color="#5d6b7a", linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)


def largest(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the largest shares, whichever way they pull, and the sum of the others."""
    ranked = sorted(shares, key=lambda name: -abs(shares[name]))
    found = {name: shares[name] for name in ranked[:SHARES]}
    return {**found, f"{len(ranked) - SHARES} others": sum(shares[name] for name in ranked[SHARES:])}


def table(found: Sequence[Shown]) -> str:
    """Return the lines as a table."""
    rows = [f"| {i} | {one.source} | {one.reason.text} |" for i, one in enumerate(found, start=1)]
    return "\n".join(["| | input | why |", "| --- | --- | --- |", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--folder", type=Path, default=Path("bench/reasons"))
    told = parser.parse_args()
    for name in told.cases:
        case = CASES[name](Path(os.environ["REPULSE_DATA"]), told.folder)
        found = explained(case)
        picture(found, case.train, ROOT / "docs" / "images" / f"why-{name}.png")
        print(table(found), flush=True)
        insert(ROOT / "docs" / "reasons.md", name, table(found))


if __name__ == "__main__":
    main()
