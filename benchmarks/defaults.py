"""Measure the settings that decided the default recipe, on real data, and put the tables in docs/defaults.md.

Published ResNet-20 on CIFAR-10, repelled on the 100 repulsion classes of Tiny ImageNet or on synthetic images; 150
intents of CLINC150 on sentence embeddings, repelled on Wikipedia; DirtyMNIST by a LeNet, repelled on synthetic images.
Heads are left as fitted. Rows below the first two change one setting without whitening, which was added last. Needs the
data folder (REPULSE_DATA) and `repulse[text]`.

    python benchmarks/defaults.py
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import repulse
from problems import PROBLEMS, Data, load
from repulse import FS_RLL_E, LL_E, PAPER_TRAINING, FitWarning, Prediction, Recipe, metrics
from repulse.evaluation.table import Column, Table
from tables import insert

BASE = Recipe(whiten=False, centre="heads")
VARIANTS: dict[str, Recipe] = {
    "whitened": Recipe(centre="heads"),
    "whitened, layers last": Recipe(centre="heads", layers="last"),
    "not whitened": BASE,
    "layers last": BASE.replace(layers="last"),
    "tap_scale 0.1": BASE.replace(tap_scale=0.1),
    "tap_scale 0.4": BASE.replace(tap_scale=0.4),
    "no repulsion": BASE.replace(space="none"),
    "LL-E: no repulsion, layers last, lr 0.001": LL_E,
    "compare jointly": BASE.replace(compare="jointly"),
    "fs-RLL-E: jointly, layers last, lr 0.001": FS_RLL_E,
    "fs-RLL-E with the paper's training": FS_RLL_E.replace(**PAPER_TRAINING),
    "strength x 0.3": BASE,
    "strength x 3": BASE,
    "strength x 10": BASE,
    "lr 0.0003": BASE.replace(lr=3e-4),
    "lr 0.0015": BASE.replace(lr=1.5e-3),
    "fewer epochs": BASE.replace(epochs=3),
    "more epochs": BASE.replace(epochs=12),
    "prior_std 0.1": BASE.replace(prior_std=0.1),
    "prior_std 1": BASE.replace(prior_std=1.0),
    "5 heads": BASE.replace(heads=5),
}
"""Epochs are those of 50,000 samples; where there are fewer, they are multiplied to make as many steps."""

FACTORS = {"strength x 0.3": 0.3, "strength x 3": 3.0, "strength x 10": 10.0}
LEFT_OUT = {
    "clinc": {
        "whitened, layers last",
        "tap_scale 0.1",
        "compare jointly",
        "fs-RLL-E with the paper's training",
        "fewer epochs",
        "prior_std 0.1",
        "5 heads",
    }
}
"""Heads for 150 classes take ten times as long."""

USUAL = (Column("accuracy", 2, "higher"), Column("NLL", 3, "lower"), Column("ECE", 2, "lower"))
IMAGES = (*USUAL, *(Column(name, 1, "higher") for name in ("mistakes", "Tiny ImageNet", "textures", "noise")))
TEXT = (*USUAL, *(Column(name, 1, "higher") for name in ("mistakes", "out of scope", "by total")))
DIGITS = (
    *USUAL,
    *(Column(name, 1, "higher") for name in ("clean/ambig.", "clean/fashion", "ambig./fashion", "clean/letters")),
)

CASES = {
    "CIFAR-10, published ResNet-20, repelled on 100 other classes of Tiny ImageNet": ("cifar", "natural", IMAGES),
    "CIFAR-10, published ResNet-20, repelled on synthetic images": ("cifar", "synthetic", IMAGES),
    "CLINC150 on sentence embeddings, repelled on Wikipedia": ("clinc", "repulsion", TEXT),
    "DirtyMNIST, LeNet, repelled on synthetic images": ("digits", "synthetic", DIGITS),
}


def heads_for(data: Data, repel_on: str, recipe: Recipe) -> tuple[repulse.Heads, int]:
    """The heads, and how many columns of the features they see."""
    taps = 0 if recipe.layers == "last" else int(data["taps"])
    width = data["train"].shape[1] if taps else data["weight"].shape[1]
    where = None if recipe.space == "none" else data[repel_on][:, :width]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the paper's training has not converged, and the table shows it
        start = data["weight"], data["bias"]
        heads = repulse.fit_heads(
            data["train"][:, :width], data["labels"], where, recipe, start=start, taps=taps, progress=False
        )
    return heads, width


def usual(p: Prediction, labels: Tensor) -> list[float]:
    return [100 * metrics.accuracy(p, labels), metrics.nll(p, labels), 100 * metrics.ece(p, labels)]


def mistakes(p: Prediction, labels: Tensor) -> float:
    wrong = p.labels != labels
    return 100 * metrics.auroc(p.total[~wrong], p.total[wrong])


def row(name: str, data: Data, heads: repulse.Heads, width: int) -> list[float]:
    """The figures of one fit."""
    seen = {key: heads.predict(value[:, :width]) for key, value in data.items() if key in EVALUATED[name]}
    if name == "digits":
        clean, ambiguous, fashion, letters = (seen[key] for key in EVALUATED[name])
        both = Prediction.cat([clean, ambiguous])[data["samples"]]
        return [
            *usual(both, data["targets"]),
            100 * metrics.auroc(clean.aleatoric, ambiguous.aleatoric),
            100 * metrics.auroc(clean.epistemic, fashion.epistemic),
            100 * metrics.auroc(ambiguous.epistemic, fashion.epistemic),
            100 * metrics.auroc(clean.epistemic, letters.epistemic),
        ]
    test, labels = seen["test"], data["test_labels"]
    ranks = [100 * metrics.auroc(test.epistemic, seen[key].epistemic) for key in EVALUATED[name][1:]]
    if name == "clinc":
        ranks.insert(1, 100 * metrics.auroc(test.total, seen["out of scope"].total))
    return [*usual(test, labels), mistakes(test, labels), *ranks]


EVALUATED = {
    "cifar": ("test", "Tiny ImageNet", "textures", "noise"),
    "clinc": ("test", "out of scope"),
    "digits": ("clean", "ambiguous", "FashionMNIST", "letters"),
}


def variants_of(name: str) -> list[str]:
    return [variant for variant in VARIANTS if variant not in LEFT_OUT.get(name, ())]


@cache
def kept(name: str, root: Path, folder: Path) -> Data:
    return load(name, root, folder)


def measure(task: tuple[str, str, str, int, Path, Path]) -> list[float]:
    """One fit, in a process of its own with one thread."""
    torch.set_num_threads(1)
    variant, name, repel_on, seed, root, folder = task
    data = kept(name, root, folder)
    recipe = VARIANTS[variant].replace(seed=seed)
    if variant in FACTORS:
        recipe = recipe.replace(strength=FACTORS[variant] * recipe.strength_for(len(data["bias"])))
    if recipe.epochs is not None:
        recipe = recipe.replace(epochs=max(round(recipe.epochs * 50_000 / len(data["train"])), 1))
    return row(name, data, *heads_for(data, repel_on, recipe))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=Path("docs/defaults.md"), help="page to put the tables in")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the heads")
    parser.add_argument("--cache", type=Path, default=Path("results", "cpu", "cache"), help="folder of the features")
    parser.add_argument("--processes", type=int, default=2, help="fits at a time")
    arguments = parser.parse_args()
    root = os.environ.get("REPULSE_DATA")
    if not root:
        sys.exit("benchmarks/defaults.py needs the real data: set REPULSE_DATA to its folder (`make data` says how).")
    if not (Path(root) / "cifar-10-batches-bin").is_dir():
        sys.exit(f"benchmarks/defaults.py found no real data in {root} (`make data` says how to get it).")
    for name in PROBLEMS:
        load(name, Path(root), arguments.cache)
    tasks = [
        (variant, name, repel_on, seed, Path(root), arguments.cache)
        for name, repel_on, _ in CASES.values()
        for variant in variants_of(name)
        for seed in range(arguments.seeds)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        rows = dict(zip(tasks, tqdm(pool.map(measure, tasks), total=len(tasks), desc="fits"), strict=True))
    parts = []
    for title, (name, repel_on, columns) in CASES.items():
        table = Table("setting", columns)
        for variant in variants_of(name):
            seeds = range(arguments.seeds)
            table.add(variant, [rows[variant, name, repel_on, s, Path(root), arguments.cache] for s in seeds])
        parts.append(f"### {title}\n\n{table.markdown()}")
        print(f"\n{title}\n{table.text()}")
    insert(arguments.page, "tables", "\n\n".join(parts))


if __name__ == "__main__":
    main()
