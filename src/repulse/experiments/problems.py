"""The two problems on which every method is compared: CIFAR-10 and DirtyMNIST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse import metrics
from repulse.baselines import DeepEnsemble, Method, RepulsiveDeepEnsemble
from repulse.data import load
from repulse.data.dirty_mnist import ambiguous_mnist, dirty_mnist
from repulse.evaluation import evaluate
from repulse.experiments.bench import Bench, Images
from repulse.experiments.comparison import Problem, Trial, halves, mean_of, rows_for
from repulse.networks import build
from repulse.networks.resnet_cifar import MEAN, STD, load_published
from repulse.networks.train import SCHEDULES, train
from repulse.prediction import ClassPrediction, Prediction, mean_log_probs
from repulse.recipe import FS_RLL_E, RLL_E, Recipe
from repulse.report import Column
from repulse.report.tables import INSIDE, PLAIN, SELECTIVE
from repulse.repulsion import DeadLeaves, PatchShuffle, SyntheticImages, TrainingData

WEIGHTS = {20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th"}
DIGIT_MEAN, DIGIT_STD = (0.1307,), (0.3081,)
NATURAL = "Tiny ImageNet"
SYNTHETIC = "synthetic images"
TOGETHER = 3
"""Epochs of networks that are trained together, which takes as long as training all of them."""
PUBLISHED = "DE-2 (ResNet-20 and ResNet-32)"


COSTS = {
    "fit_seconds": Column("fit, s", 1, "", "Seconds to fit, from features."),
    "milliseconds": Column("ms per 1000", 1, "", "Milliseconds for 1000 predictions, from features."),
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
        _measure_cifar,
        {PUBLISHED: lambda _, __: DeepEnsemble(list(networks.values()), prepare=images.prepared)},
    )


def _folds(trial: Trial, pairs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Which test samples, and which samples outside, to judge on.

    All of them; but a method that can be calibrated has been, on the pairs of a sample and its label in one half, and
    is judged on the other half, and on as large a part of the samples outside, which keeps their proportion.
    """
    test, outside = trial.sets()
    if not hasattr(trial.method, "calibrate"):
        yield torch.ones(len(test), dtype=torch.bool), outside
        return
    for fold, half in enumerate(halves(len(test))):
        here = torch.zeros(len(test), dtype=torch.bool).index_fill(0, half, True)
        known = ~here[pairs]
        trial.method.calibrate(test[pairs[known]], targets[known])  # pyright: ignore[reportAttributeAccessIssue]
        yield here, {name: samples[halves(len(samples))[fold]] for name, samples in outside.items()}


def _calibration(parts: Sequence[tuple[ClassPrediction, Tensor]]) -> dict[str, float]:
    """Accuracy, NLL and calibration over all folds at once, for calibration errors are larger on fewer samples."""
    prediction = ClassPrediction.cat([mixture for mixture, _ in parts])
    targets = torch.cat([part for _, part in parts])
    return {
        "accuracy": 100 * metrics.accuracy(prediction, targets),
        "nll": metrics.nll(prediction, targets),
        "brier": metrics.brier(prediction, targets),
        "ece": 100 * metrics.ece(prediction, targets),
        "adaptive_ece": 100 * metrics.ece(prediction, targets, adaptive=True),
    }


def _mixture(prediction: Prediction) -> ClassPrediction:
    assert isinstance(prediction, ClassPrediction)
    return ClassPrediction(mean_log_probs(prediction.log_probs).clamp_max(0.0).unsqueeze(0))


def _measure_cifar(trial: Trial) -> dict[str, float]:
    """All metrics."""
    test = trial.sets()[0]
    targets, human = trial.images.test_targets, trial.images.human
    figures, parts = [], []
    for here, outside in _folds(trial, torch.arange(len(test)), targets):
        people = None if human is None else human[here]
        found = evaluate(trial.method, (test[here], targets[here]), outside, human=people, progress=False)
        if not bool(here.all()):
            parts.append((_mixture(trial.method.predict(test[here])), targets[here]))
        one = {key: value if key in PLAIN else 100 * value for key, value in found.id.items()}
        for name, values in found.ood.items():
            one |= {f"{name} {key}": 100 * value for key, value in values.items()}
        for key in ("auroc", "fpr95"):
            one[f"mean {key}"] = 100 * sum(values[key] for values in found.ood.values()) / len(found.ood)
        figures.append(one)
    return {**mean_of(figures), **(_calibration(parts) if parts else {})}


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

    # Every label of an ambiguous image is a pair to be judged, as in the published set.
    pairs = torch.cat([torch.arange(len(clean)), len(clean) + torch.arange(len(test)).repeat_interleave(10)])
    targets = torch.cat([clean_targets, test.labels.flatten()])
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
        lambda trial: _measure_dirty(trial, len(clean), pairs, targets),
        {
            "DE-5": lambda _, __: DeepEnsemble([network(i) for i in range(5)], prepare=images.prepared),
            "repulsive DE-5 (parameters)": lambda _, __: repulsive(RLL_E),
            "repulsive DE-5 (letters)": lambda _, __: repulsive(FS_RLL_E),
        },
    )


def _measure_dirty(trial: Trial, clean: int, pairs: Tensor, targets: Tensor) -> dict[str, float]:
    """Accuracy and calibration over all pairs, then who is told from whom."""
    test = trial.sets()[0]
    figures, parts = [], []
    for here, outside in _folds(trial, pairs, targets):
        prediction, scores = trial.method.predict_and_score(test)
        parts.append((_mixture(prediction)[pairs[here[pairs]]], targets[here[pairs]]))
        digits, dirt = here & (torch.arange(len(test)) < clean), here & (torch.arange(len(test)) >= clean)
        doubt = prediction.aleatoric
        one = {"clean ambiguous": 100 * metrics.auroc(doubt[digits], doubt[dirt])}
        for name, samples in outside.items():
            other = trial.method.score(samples)
            one[f"clean {name}"] = 100 * metrics.auroc(scores[digits], other)
            one[f"ambiguous {name}"] = 100 * metrics.auroc(scores[dirt], other)
        for kind in ("clean", "ambiguous"):
            one[f"{kind} mean"] = sum(one[f"{kind} {name}"] for name in outside) / len(outside)
        figures.append(one)
    return {**_calibration(parts), **mean_of(figures)}


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
