"""What is measured of a fitted method: on digits that are clean or ambiguous, and on photographs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from repulse import metrics
from repulse.baselines import Method
from repulse.evaluation.compare import PLAIN
from repulse.evaluation.evaluate import Evaluation, evaluate
from repulse.prediction import ClassPrediction, Prediction, mean_log_probs
from repulse_lab.data import load
from repulse_lab.study.bench import Images, View
from repulse_lab.study.collections import halves
from repulse_lab.study.dirty_mnist import ambiguous_mnist


@dataclass(frozen=True, eq=False)
class Trial:
    """A fitted method on a bench, to be measured.

    Attributes:
        method: fitted.
        images: of the problem.
        view: features.
    """

    method: Method
    images: Images
    view: View

    def sets(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The test samples and those of each set outside, as the method takes them."""
        if self.method.takes == "inputs":
            return self.images.test, dict(self.images.outside)
        return self.view.test, dict(self.view.outside)


@dataclass(frozen=True, eq=False)
class Dirt:
    """Which test samples are clean digits, and every pair of a sample and a label that is judged.

    Attributes:
        clean: how many of the first samples are clean.
        pairs: the sample of each pair; an ambiguous one has ten, as in the published set.
        targets: the label of each pair.
    """

    clean: int
    pairs: Tensor
    targets: Tensor

    @staticmethod
    def of(root: Path) -> Dirt:
        """That of DirtyMNIST in a data folder."""
        clean, labels = load("mnist", "test", root).labelled[1], ambiguous_mnist(root, "test", progress=False).labels
        ten = len(clean) + torch.arange(len(labels)).repeat_interleave(labels.shape[1])
        return Dirt(len(clean), torch.cat([torch.arange(len(clean)), ten]), torch.cat([clean, labels.flatten()]))


def measure_photographs(trial: Trial) -> dict[str, float]:
    """All metrics."""
    test = trial.sets()[0]
    targets, human = trial.images.test_targets, trial.images.human
    figures, parts = [], []
    for here, outside in _folds(trial, torch.arange(len(test)), targets):
        people = None if human is None else human[here]
        found = evaluate(trial.method, (test[here], targets[here]), outside, human=people, progress=False)
        if not bool(here.all()):
            parts.append((_mixture(trial.method.predict(test[here])), targets[here]))
        figures.append(flat(found))
    return {**_mean_of(figures), **(_calibration(parts) if parts else {})}


def flat(found: Evaluation) -> dict[str, float]:
    """The figures of an evaluation under one name each, shares in per cent, with means over the sets outside."""
    one = {key: value if key in PLAIN else 100 * value for key, value in found.id.items()}
    for name, values in found.ood.items():
        one |= {f"{name} {key}": 100 * value for key, value in values.items()}
    for key in ("auroc", "fpr95") if found.ood else ():
        one[f"mean {key}"] = 100 * sum(values[key] for values in found.ood.values()) / len(found.ood)
    return one


def measure_digits(trial: Trial, dirt: Dirt, main: Sequence[str] | None = None) -> dict[str, float]:
    """Accuracy and calibration over all pairs, then who is told from whom.

    Args:
        trial: on DirtyMNIST.
        dirt: which samples are clean.
        main: sets outside whose mean is taken; all of them if not given.
    """
    test = trial.sets()[0]
    figures, parts = [], []
    for here, outside in _folds(trial, dirt.pairs, dirt.targets):
        prediction, scores = trial.method.predict_and_score(test)
        judged = here[dirt.pairs]
        parts.append((_mixture(prediction)[dirt.pairs[judged]], dirt.targets[judged]))
        first = torch.arange(len(test)) < dirt.clean
        digits, dirty = here & first, here & ~first
        doubt = prediction.aleatoric
        one = {"clean ambiguous": 100 * metrics.auroc(doubt[digits], doubt[dirty])}
        for name, samples in outside.items():
            other = trial.method.score(samples)
            one[f"clean {name}"] = 100 * metrics.auroc(scores[digits], other)
            one[f"ambiguous {name}"] = 100 * metrics.auroc(scores[dirty], other)
        for kind in ("clean", "ambiguous"):
            over = [one[f"{kind} {name}"] for name in outside if main is None or name in main]
            one |= {f"{kind} mean": sum(over) / len(over)} if over else {}
        figures.append(one)
    return {**_calibration(parts), **_mean_of(figures)}


def _folds(trial: Trial, pairs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Which test samples, and which samples outside, to judge on.

    All of them; but a method that can be calibrated has been, on the pairs of a sample and its label in one half, and
    is judged on the other half, and on as large a part of the samples outside, which keeps their proportion.
    """
    test, outside = trial.sets()
    if not trial.method.calibrates:
        yield torch.ones(len(test), dtype=torch.bool), outside
        return
    for fold, half in enumerate(halves(len(test))):
        here = torch.zeros(len(test), dtype=torch.bool).index_fill(0, half, True)
        known = ~here[pairs]
        trial.method.calibrate(test[pairs[known]], targets[known])
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


def _mean_of(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: sum(one[key] for one in figures) / len(figures) for key in figures[0]}
