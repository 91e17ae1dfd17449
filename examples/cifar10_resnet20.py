"""A published CIFAR-10 network, retrofitted: what repulsion samples and taps are worth.

ResNet-20 with published weights; features are computed once and shared by all rows. Out of distribution: the 100
classes of Tiny ImageNet that no head was repelled on, textures, uniform noise. The upper rows are the paper's, whose
heads see the penultimate features (`layers="last"`); in the lower rows they also see earlier stages (`layers="auto"`).
Needs the data folder (REPULSE_DATA; `make data`).

    python examples/cifar10_resnet20.py
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import repulse
from repulse import FS_RLL_E, LL_E, RLL_E, ClassPrediction, DataError, Prediction, Recipe, metrics, repulsion
from repulse._files import write_whole
from repulse.backbone import Backbone, split
from repulse.evaluation.table import Column, Table
from repulse_lab.data import load
from repulse_lab.data.images import normalise
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

COLUMNS = (
    Column("accuracy", 2, "higher"),
    Column("NLL", 3, "lower"),
    Column("ECE", 2, "lower"),
    Column("Tiny ImageNet", 1, "higher"),
    Column("textures", 1, "higher"),
    Column("noise", 1, "higher"),
    Column("seconds", 1),
)
SAMPLES = 10_000


@torch.no_grad()
def through(backbone: Backbone, images: Tensor, source: repulsion.Source | None = None) -> Tensor:
    """Features of images, or of what a source makes of them."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for part in tqdm(images.split(500), desc=str(source or "features"), leave=False):
        batch = normalise(part, MEAN, STD)
        parts.append(backbone(batch if source is None else source.sample(batch, generator)))
    return torch.cat(parts)


def figures(test: Prediction, labels: Tensor, outside: list[Prediction], seconds: float) -> list[float]:
    """One row of the table; a single network, which has no epistemic uncertainty, is ranked by its entropy."""
    alone = test.members == 1
    scores = [p.total if alone else p.epistemic for p in (test, *outside)]
    return [
        100 * metrics.accuracy(test, labels),
        metrics.nll(test, labels),
        100 * metrics.ece(test, labels),
        *(100 * metrics.auroc(scores[0], other) for other in scores[1:]),
        seconds,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the heads")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    if not os.environ.get("REPULSE_DATA"):
        sys.exit("examples/cifar10_resnet20.py needs the real data: set REPULSE_DATA to its folder (see `make data`).")
    root = Path(os.environ["REPULSE_DATA"])

    try:
        images, labels = load("cifar10", "train", root).labelled
    except DataError as error:
        sys.exit(str(error))
    network = load_published(root / "weights" / "resnet20-12fca82f.th")
    test_images, test_labels = load("cifar10", "test", root).labelled
    backbone = split(network, normalise(images[:4], MEAN, STD), layers="auto")
    train, test = through(backbone, images), through(backbone, test_images)
    noise = torch.randint(256, (5000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    foreign = load("tiny-imagenet", "evaluation", root).images, load("dtd", "ten-classes", root).images, noise
    outside = [through(backbone, x) for x in foreign]

    some = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:SAMPLES]]
    leaves = repulsion.Mixture([repulsion.DeadLeaves(), repulsion.PhaseScramble()])
    where = {
        "nowhere": None,
        "training data": train[:: len(train) // SAMPLES],
        "16 patches": through(backbone, some, repulsion.PatchShuffle(16)),
        "dead leaves + phase scramble": through(backbone, some, leaves),
        "synthetic images": through(backbone, some, repulsion.SyntheticImages()),
        "100 other Tiny ImageNet classes": through(backbone, load("tiny-imagenet", "repulsion", root).images),
    }
    rows = {"LL-E": ("nowhere", LL_E), "RLL-E": ("nowhere", RLL_E)}
    rows |= {f"fs-RLL-E, {name}": (name, FS_RLL_E) for name in where if name not in ("nowhere", "synthetic images")}
    rows |= {f"repulse, {name}": (name, Recipe()) for name in where}

    table = Table("heads, and where they repel", COLUMNS)
    with torch.no_grad():
        seen = [x[:, : backbone.penultimate] for x in (test, *outside)]
        alone = [ClassPrediction(network.linear(x).log_softmax(dim=-1).unsqueeze(0)) for x in seen]
    table.add("network alone", [figures(alone[0], test_labels, alone[1:], float("nan"))] * arguments.seeds)
    for name, (place, recipe) in tqdm(rows.items(), desc="fits"):
        width = backbone.penultimate if recipe.layers == "last" else backbone.width
        repel_on = None if where[place] is None else where[place][:, :width]
        seeds = []
        for seed in range(arguments.seeds):
            begun = time.perf_counter()
            heads = repulse.fit_heads(
                train[:, :width],
                labels,
                repel_on,
                recipe.replace(seed=seed),
                taps=width - backbone.penultimate,
                progress=False,
            )
            seconds = time.perf_counter() - begun
            predicted = [heads.predict(x[:, :width]) for x in (test, *outside)]
            seeds.append(figures(predicted[0], test_labels, predicted[1:], seconds))
        table.add(name, seeds)
    print(table.text())
    if arguments.markdown:
        write_whole(arguments.markdown, table.markdown() + "\n")


if __name__ == "__main__":
    main()
