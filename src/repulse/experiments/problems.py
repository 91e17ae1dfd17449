"""The two problems on which every method is compared: CIFAR-10 and DirtyMNIST."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse import metrics
from repulse.baselines import DeepEnsemble, Method, RepulsiveDeepEnsemble
from repulse.data import DataSet, load
from repulse.data.dirty_mnist import ambiguous_mnist, dirty_mnist
from repulse.evaluation import evaluate
from repulse.experiments.bench import Bench, Images
from repulse.experiments.comparison import Problem, Trial, halves, mean_of, rows_for
from repulse.networks import build
from repulse.networks.resnet_cifar import MEAN, STD, load_published
from repulse.networks.train import SCHEDULES, train
from repulse.prediction import ClassPrediction
from repulse.recipe import FS_RLL_E, RLL_E, Recipe
from repulse.report import Column
from repulse.report.tables import INSIDE, PLAIN, SELECTIVE
from repulse.repulsion import DeadLeaves, PatchShuffle, SyntheticImages, TrainingData

WEIGHTS = {20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th"}
DIGIT_MEAN, DIGIT_STD = (0.1307,), (0.3081,)
NATURAL = "Tiny ImageNet"
SYNTHETIC = "synthetic images"


COSTS = {
    "fit_seconds": Column("fit, s", 1, "", "Seconds to fit, from features."),
    "milliseconds": Column("ms per 1000", 1, "", "Milliseconds for 1000 predictions, from features."),
}


def cifar10(root: Path, keep: Path | None, depth: int = 20, progress: bool = True) -> Problem:
    """CIFAR-10 with a published network."""
    training, test = load("cifar10", "train", root), load("cifar10h", "test", root)
    images = Images(
        *_labelled(training),
        *_labelled(test),
        outside={
            "Tiny ImageNet": _images("tiny-imagenet", "evaluation", root),
            "textures": _images("dtd", "ten-classes", root),
            "noise": _images("noise", "evaluation", root),
        },
        repulsion={
            NATURAL: _images("tiny-imagenet", "repulsion", root),
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
        rows_for((NATURAL, SYNTHETIC), ("training data", "16 patches"), ("DE-2",)),
        _cifar_columns(images),
        _measure_cifar,
        {"DE-2": lambda _, __: DeepEnsemble(list(networks.values()), prepare=images.prepared)},
    )


def _folds(trial: Trial) -> list[Tensor]:
    """Which test samples to judge on, each time after calibrating on the others, if the method can be calibrated."""
    count = len(trial.images.test)
    return list(halves(count)) if hasattr(trial.method, "calibrate") else [torch.arange(count)]


def _calibrate(trial: Trial, judged: Tensor) -> None:
    test = trial.sets()[0]
    known = torch.ones(len(test), dtype=torch.bool).index_fill(0, judged, False)
    if bool(known.any()):
        trial.method.calibrate(test[known], trial.images.test_targets[known])  # pyright: ignore


def _measure_cifar(trial: Trial) -> dict[str, float]:
    return mean_of([_measure_cifar_on(trial, judged) for judged in _folds(trial)])


def _measure_cifar_on(trial: Trial, judged: Tensor) -> dict[str, float]:
    """All metrics on some of the test samples."""
    _calibrate(trial, judged)
    test, outside = trial.sets()
    targets, human = trial.images.test_targets[judged], trial.images.human
    people = None if human is None else human[judged]
    found = evaluate(trial.method, (test[judged], targets), outside, human=people, progress=False)
    figures = {key: value if key in PLAIN else 100 * value for key, value in found.id.items()}
    for name, values in found.ood.items():
        figures |= {f"{name} {key}": 100 * value for key, value in values.items()}
    for key in ("auroc", "fpr95"):
        figures[f"mean {key}"] = 100 * sum(values[key] for values in found.ood.values()) / len(found.ood)
    return figures


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
    clean, clean_targets = _labelled(load("mnist", "test", root))
    sets = {
        "KMNIST": _images("kmnist", "test", root),
        "FashionMNIST": _images("fashion-mnist", "test", root),
        "Omniglot": _images("omniglot", "evaluation", root),
    }
    letters = _images("notmnist", "all", root)
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
        recipe = space.replace(epochs=SCHEDULES["cpu-lenet"].epochs)
        method = RepulsiveDeepEnsemble(members, recipe, images.prepared(letters), images.prepared)
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
            ("DE-5", "repulsive DE-5, parameters", "repulsive DE-5, letters"),
        ),
        _dirty_columns(sets),
        lambda trial: mean_of([_measure_dirty(trial, len(clean), pairs, targets, judged) for judged in _folds(trial)]),
        {
            "DE-5": lambda _, __: DeepEnsemble([network(i) for i in range(5)], prepare=images.prepared),
            "repulsive DE-5, parameters": lambda _, __: repulsive(RLL_E),
            "repulsive DE-5, letters": lambda _, __: repulsive(FS_RLL_E),
        },
    )


def _measure_dirty(trial: Trial, clean: int, pairs: Tensor, targets: Tensor, judged: Tensor) -> dict[str, float]:
    """Accuracy and calibration over all pairs, then who is told from whom."""
    _calibrate(trial, judged)
    test, outside = trial.sets()
    prediction, scores = trial.method.predict_and_score(test)
    assert isinstance(prediction, ClassPrediction)
    here = torch.zeros(len(test), dtype=torch.bool).index_fill(0, judged, True)
    mixture = ClassPrediction(prediction.probs.log().clamp_min(-1e4).unsqueeze(0))[pairs[here[pairs]]]
    targets, doubt = targets[here[pairs]], prediction.aleatoric
    digits, dirt = here & (torch.arange(len(test)) < clean), here & (torch.arange(len(test)) >= clean)
    figures = {
        "accuracy": 100 * metrics.accuracy(mixture, targets),
        "nll": metrics.nll(mixture, targets),
        "ece": 100 * metrics.ece(mixture, targets),
        "clean ambiguous": 100 * metrics.auroc(doubt[digits], doubt[dirt]),
    }
    for name, samples in outside.items():
        other = trial.method.score(samples)
        figures[f"clean {name}"] = 100 * metrics.auroc(scores[digits], other)
        figures[f"ambiguous {name}"] = 100 * metrics.auroc(scores[dirt], other)
    for kind in ("clean", "ambiguous"):
        figures[f"{kind} mean"] = sum(figures[f"{kind} {name}"] for name in outside) / len(outside)
    return figures


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


def _labelled(data: DataSet) -> tuple[Tensor, Tensor]:
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    return data.inputs, data.targets


def _images(name: str, part: str, root: Path) -> Tensor:
    inputs = load(name, part, root).inputs
    assert isinstance(inputs, Tensor)
    return inputs


PROBLEMS: dict[str, Callable[[Path, Path, bool], Problem]] = {
    "resnet20": lambda root, keep, progress: cifar10(root, keep, 20, progress),
    "resnet32": lambda root, keep, progress: cifar10(root, keep, 32, progress),
    "lenet": dirty_mnist_lenet,
}
"""By the name of the network: from the data folder and one for what is kept."""
