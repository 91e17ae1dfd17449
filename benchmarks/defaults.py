"""Measure the settings that decided the default recipe, on real data, and put the tables in docs/defaults.md.

Published ResNet-20 on CIFAR-10, repelled on the 100 repulsion classes of Tiny ImageNet or on synthetic images,
evaluated on the 100 other classes, on textures and on uniform noise; and the digits problem of `repulse demo`. Each
row changes one setting of the default. Needs the data folder (REPULSE_DATA).

    python benchmarks/defaults.py
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import repulse
from repulse import FS_RLL_E, PAPER_TRAINING, FitWarning, Recipe, metrics, repulsion
from repulse.backbone import Backbone, compute_features, split
from repulse.data.images import cifar10, normalise, textures, tiny_imagenet
from repulse.experiments import digits
from repulse.networks.resnet_cifar import MEAN, STD, load_published
from repulse.report import Column, Table
from tables import insert

AUTO = repulsion.SyntheticImages()

VARIANTS: dict[str, Recipe] = {
    "**default**": Recipe(),
    "compare jointly (the paper)": Recipe(compare="jointly"),
    "the paper's training, jointly": FS_RLL_E.replace(**PAPER_TRAINING),
    "no repulsion (LL-E)": Recipe(space="none"),
    "in parameter space (RLL-E)": Recipe(space="parameters"),
    "strength 0.01": Recipe(strength=0.01),
    "strength 0.1": Recipe(strength=0.1),
    "strength 0.3": Recipe(strength=0.3),
    "on logits": Recipe(on="logits"),
    "on log-probabilities": Recipe(on="log_probabilities"),
    "kernel laplace": Recipe(kernel="laplace"),
    "kernel imq": Recipe(kernel="imq"),
    "prior_std 1": Recipe(prior_std=1.0),
    "prior_std 0.1": Recipe(prior_std=0.1),
    "lr 0.001": Recipe(lr=1e-3),
    "lr 0.005": Recipe(lr=5e-3),
    "init pretrained": Recipe(init="pretrained"),
    "5 heads": Recipe(heads=5),
    "20 heads": Recipe(heads=20),
}

CIFAR_COLUMNS = (
    Column("accuracy", 2, "higher"),
    Column("NLL", 3, "lower"),
    Column("ECE", 2, "lower"),
    Column("mistakes", 1, "higher"),
    Column("Tiny ImageNet", 1, "higher"),
    Column("textures", 1, "higher"),
    Column("noise", 1, "higher"),
)
DIGITS_COLUMNS = (
    Column("accuracy", 2, "higher"),
    Column("NLL", 3, "lower"),
    Column("ECE", 2, "lower"),
    Column("clean/ambiguous", 1, "higher"),
    Column("clean/foreign", 1, "higher"),
    Column("ambiguous/foreign", 1, "higher"),
)


def cached(path: Path, make) -> dict[str, Tensor]:
    """The tensors in a safetensors file, made and written first if it is not there."""
    from safetensors.torch import load_file, save_file

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in make().items()}, path)
    return load_file(path)


@torch.no_grad()
def through(backbone: Backbone, images: Tensor) -> Tensor:
    return torch.cat([backbone(normalise(part, MEAN, STD)) for part in tqdm(images.split(500), leave=False)])


def cifar_features(root: Path) -> dict[str, Tensor]:
    network = load_published(root / "weights" / "resnet20-12fca82f.th")
    images, labels = cifar10(root, "train")
    test, test_labels = cifar10(root, "test")
    backbone = split(network, normalise(images[:4], MEAN, STD))
    noise = torch.randint(256, (5000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:10_000]
    batches = [(normalise(images[part], MEAN, STD), labels[part]) for part in order.split(500)]
    generator = torch.Generator().manual_seed(0)
    made = compute_features(
        backbone, batches, AUTO, samples=10_000, generator=generator, device=torch.device("cpu"), progress=True
    )
    assert made.repulsion is not None
    return {
        "train": through(backbone, images),
        "labels": labels,
        "test": through(backbone, test),
        "test_labels": test_labels,
        "synthetic": made.repulsion,
        "natural": through(backbone, tiny_imagenet(root, "repulsion")),
        "Tiny ImageNet": through(backbone, tiny_imagenet(root, "evaluation")),
        "textures": through(backbone, textures(root)),
        "noise": through(backbone, noise),
        "weight": network.linear.weight.detach(),
        "bias": network.linear.bias.detach(),
    }


def digits_features(seed: int) -> dict[str, Tensor]:
    data = digits.load(seed)
    network = digits.train_network(data, seed)
    backbone = split(network, data.train[:4])
    loader = list(zip(data.train.split(128), data.train_labels.split(128), strict=True))
    generator = torch.Generator().manual_seed(seed)
    made = compute_features(backbone, loader, AUTO, samples=10_000, generator=generator, device=torch.device("cpu"))
    assert made.repulsion is not None
    last = network[-1]
    with torch.no_grad():
        return {
            "train": made.train,
            "labels": made.targets,
            "synthetic": made.repulsion,
            "clean": backbone(data.clean),
            "clean_labels": data.clean_labels,
            "ambiguous": backbone(data.ambiguous),
            "ambiguous_labels": data.ambiguous_labels,
            "foreign": backbone(torch.cat([data.photographs, data.scrambled])),
            "weight": last.weight.detach(),  # pyright: ignore
            "bias": last.bias.detach(),  # pyright: ignore
        }


def fit(data: dict[str, Tensor], repel_on: str, recipe: Recipe, seed: int) -> repulse.Heads:
    start = (data["weight"], data["bias"])
    where = None if recipe.space == "none" else data[repel_on]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the paper's training has not converged, and the table shows it
        return repulse.fit_heads(
            data["train"], data["labels"], where, recipe.replace(seed=seed), start=start, progress=False
        )


def cifar_row(data: dict[str, Tensor], heads: repulse.Heads) -> list[float]:
    test, labels = heads.predict(data["test"]), data["test_labels"]
    wrong = test.labels != labels
    outside = [heads.score(data[name]) for name in ("Tiny ImageNet", "textures", "noise")]
    return [
        100 * metrics.accuracy(test, labels),
        metrics.nll(test, labels),
        100 * metrics.ece(test, labels),
        100 * metrics.auroc(test.total[~wrong], test.total[wrong]),
        *(100 * metrics.auroc(test.epistemic, scores) for scores in outside),
    ]


def digits_row(data: dict[str, Tensor], heads: repulse.Heads) -> list[float]:
    clean, ambiguous, foreign = (heads.predict(data[name]) for name in ("clean", "ambiguous", "foreign"))
    both = repulse.Prediction.cat([clean, ambiguous])
    labels = torch.cat([data["clean_labels"], data["ambiguous_labels"]])
    return [
        100 * metrics.accuracy(clean, data["clean_labels"]),
        metrics.nll(both, labels),
        100 * metrics.ece(both, labels),
        100 * metrics.auroc(clean.aleatoric, ambiguous.aleatoric),
        100 * metrics.auroc(clean.epistemic, foreign.epistemic),
        100 * metrics.auroc(ambiguous.epistemic, foreign.epistemic),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=Path("docs/defaults.md"), help="page to put the tables in")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the heads (and, for digits, of the network)")
    parser.add_argument("--cache", type=Path, default=Path("data/features"), help="folder for computed features")
    arguments = parser.parse_args()
    root = os.environ.get("REPULSE_DATA")
    if not root:
        sys.exit("benchmarks/defaults.py needs the real data: set REPULSE_DATA to its folder (`make data` says how).")
    if not (Path(root) / "cifar-10-batches-bin").is_dir():
        sys.exit(f"benchmarks/defaults.py found no real data in {root} (`make data` says how to get it).")
    seeds = range(arguments.seeds)
    cifar = cached(arguments.cache / "cifar10-resnet20.safetensors", lambda: cifar_features(Path(root)))
    small = [cached(arguments.cache / f"digits-{s}.safetensors", lambda s=s: digits_features(s)) for s in seeds]
    tables = {
        "CIFAR-10, published ResNet-20, repelled on 100 other classes of Tiny ImageNet": Table(
            "setting", CIFAR_COLUMNS
        ),
        "CIFAR-10, published ResNet-20, repelled on dead leaves and phase scramble": Table("setting", CIFAR_COLUMNS),
        "Digits, repelled on dead leaves and phase scramble": Table("setting", DIGITS_COLUMNS),
    }
    natural, synthetic, little = tables.values()
    for name, recipe in tqdm(VARIANTS.items(), desc="settings"):
        natural.add(name, [cifar_row(cifar, fit(cifar, "natural", recipe, s)) for s in seeds])
        synthetic.add(name, [cifar_row(cifar, fit(cifar, "synthetic", recipe, s)) for s in seeds])
        little.add(name, [digits_row(data, fit(data, "synthetic", recipe, s)) for s, data in enumerate(small)])
    parts = [f"### {title}\n\n{table.markdown()}" for title, table in tables.items()]
    insert(arguments.page, "tables", "\n\n".join(parts))
    for title, table in tables.items():
        print(f"\n{title}\n{table.text()}")


if __name__ == "__main__":
    main()
