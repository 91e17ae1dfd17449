"""The two problems on which every method is compared: CIFAR-10 and DirtyMNIST."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse.baselines import DeepEnsemble, Method, RepulsiveDeepEnsemble
from repulse.evaluation.compare import INSIDE, SELECTIVE
from repulse.evaluation.table import Column
from repulse.recipe import FS_RLL_E, RLL_E, Recipe
from repulse.repulsion import DeadLeaves, PatchShuffle, SyntheticImages, TrainingData
from repulse_lab.data import load
from repulse_lab.networks import build
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published
from repulse_lab.networks.train import SCHEDULES, train
from repulse_lab.study.bench import Bench, Images
from repulse_lab.study.collections import DIGIT_MEAN, DIGIT_STD
from repulse_lab.study.comparison import Problem, rows_for
from repulse_lab.study.dirty_mnist import ambiguous_mnist, dirty_mnist
from repulse_lab.study.measures import Dirt, measure_digits, measure_photographs

WEIGHTS = {20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th"}
NATURAL = "Tiny ImageNet"
SYNTHETIC = "synthetic images"
TOGETHER = 3
"""Epochs of networks that are trained together, which takes as long as training all of them."""
PUBLISHED = "DE-2 (ResNet-20 and ResNet-32)"


COSTS = {
    "fit_seconds": Column("fit, s", 1, "", "Processor seconds to fit, from features."),
    "milliseconds": Column("ms per 1000", 1, "", "Processor milliseconds for 1000 predictions, from features."),
}


def cifar10(root: Path, keep: Path | None, depth: int = 20, progress: bool = True) -> Problem:
    """CIFAR-10 with a published network."""
    training, test = load("cifar10", "train", root), load("cifar10h", "test", root)
    images = Images(
        *training.labelled,
        *test.labelled,
        outside={
            "Tiny ImageNet": load("tiny-imagenet", "evaluation", root).images,
            "textures": load("dtd", "ten-classes", root).images,
            "noise": load("noise", "evaluation", root).images,
        },
        repulsion={
            NATURAL: load("tiny-imagenet", "repulsion", root).images,
            SYNTHETIC: SyntheticImages(),
            "training data": TrainingData(),
            "16 patches": PatchShuffle(16),
        },
        mean=MEAN,
        std=STD,
        human=test.soft,
    )
    networks = {d: load_published(root / "weights" / name, d) for d, name in WEIGHTS.items()}
    bench = Bench(images, networks[depth], keep, progress)
    return Problem(
        f"cifar10-resnet{depth}",
        f"CIFAR-10, published ResNet-{depth}",
        lambda _: bench,
        rows_for((NATURAL, SYNTHETIC), ("training data", "16 patches"), (PUBLISHED,)),
        _cifar_columns(images),
        measure_photographs,
        {PUBLISHED: lambda _, __: DeepEnsemble(list(networks.values()), prepare=images.prepared)},
    )


def _cifar_columns(images: Images) -> dict[str, dict[str, Column]]:
    names = [*images.outside, "mean"]
    ranked = {
        label: {
            f"{name} {key}": Column(name, 1, better) for name in names if key in ("auroc", "fpr95") or name != "mean"
        }
        for label, key, better in (
            ("AUROC", "auroc", "higher"),
            ("FPR@95", "fpr95", "lower"),
            ("AUPR, outside positive", "aupr_out", "higher"),
            ("AUPR, inside positive", "aupr_in", "higher"),
        )
    }
    inside = {key: column for key, column in INSIDE.items() if key not in ("rmse", "coverage_95")}
    return {"inside": inside, "selective, and cost": {**SELECTIVE, **COSTS}, **ranked}


def dirty_mnist_lenet(root: Path, keep: Path, progress: bool = True) -> Problem:
    """DirtyMNIST with LeNets trained here, one a seed."""
    training, test = dirty_mnist(root, "train", progress=progress), ambiguous_mnist(root, "test", progress=progress)
    clean, clean_targets = load("mnist", "test", root).labelled
    sets = {
        "KMNIST": load("kmnist", "test", root).images,
        "FashionMNIST": load("fashion-mnist", "test", root).images,
        "Omniglot": load("omniglot", "evaluation", root).images,
    }
    letters = load("notmnist", "all", root).images
    images = Images(
        training.images,
        training.targets,
        torch.cat([clean, test.images]),
        torch.cat([clean_targets, test.labels[:, 0]]),
        outside=sets,
        repulsion={
            "letters": letters,
            SYNTHETIC: SyntheticImages(),
            "training data": TrainingData(),
            "16 patches": PatchShuffle(16),
            "8 patches": PatchShuffle(8),
            "4 patches": PatchShuffle(4),
            "dead leaves": DeadLeaves(),
        },
        mean=DIGIT_MEAN,
        std=DIGIT_STD,
    )

    @cache
    def network(seed: int) -> nn.Module:
        made = build("lenet", channels=1, size=28, seed=seed)
        schedule, folder = SCHEDULES["cpu-lenet"], keep / "networks" / f"dirty-mnist-lenet-{seed}"
        how = {"mean": DIGIT_MEAN, "std": DIGIT_STD, "seed": seed, "checkpoint": folder, "progress": progress}
        train(made, images.train, images.targets, schedule, **how)
        return made

    @cache
    def bench(seed: int) -> Bench:
        return Bench(images, network(seed), keep, progress)

    def repulsive(space: Recipe) -> Method:
        members = [build("lenet", channels=1, size=28, seed=100 + i) for i in range(5)]
        recipe = space.replace(epochs=TOGETHER)
        outside = letters if recipe.space == "function" else None
        method = RepulsiveDeepEnsemble(members, recipe, outside, images.prepared)
        return method.fit(images.train, images.targets)

    dirt = Dirt.of(root)
    return Problem(
        "dirty-mnist-lenet",
        "DirtyMNIST, LeNets trained here",
        bench,
        rows_for(
            ("letters", SYNTHETIC),
            ("training data", "16 patches", "8 patches", "4 patches", "dead leaves"),
            ("DE-5", "repulsive DE-5 (parameters)", "repulsive DE-5 (letters)"),
        ),
        _dirty_columns(sets),
        lambda trial: measure_digits(trial, dirt),
        {
            "DE-5": lambda _, __: DeepEnsemble([network(i) for i in range(5)], prepare=images.prepared),
            "repulsive DE-5 (parameters)": lambda _, __: repulsive(RLL_E),
            "repulsive DE-5 (letters)": lambda _, __: repulsive(FS_RLL_E),
        },
    )


def _dirty_columns(sets: dict[str, Tensor]) -> dict[str, dict[str, Column]]:
    main = {
        **{key: INSIDE[key] for key in ("accuracy", "nll", "ece")},
        "clean ambiguous": Column("clean/ambiguous", 1, "higher"),
        "clean mean": Column("clean/OOD", 1, "higher"),
        "ambiguous mean": Column("ambiguous/OOD", 1, "higher"),
        **COSTS,
    }
    kinds = ("clean", "ambiguous")
    return {"summary": main, "AUROC": {f"{k} {s}": Column(f"{k}/{s}", 1, "higher") for k in kinds for s in sets}}


PROBLEMS: dict[str, Callable[[Path, Path, bool], Problem]] = {
    "resnet20": lambda root, keep, progress: cifar10(root, keep, 20, progress),
    "resnet32": lambda root, keep, progress: cifar10(root, keep, 32, progress),
    "lenet": dirty_mnist_lenet,
}
"""By the name of the network: from the data folder and one for what is kept."""
