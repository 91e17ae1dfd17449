"""What is measured of a fitted method: on samples with one label each, and on digits of which some are ambiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repulse import metrics
from repulse.baselines import Method
from repulse.evaluation.compare import NOT_IN_PERCENT
from repulse.evaluation.evaluate import Evaluation, evaluate
from repulse.prediction import ClassPrediction, Prediction, mean_log_probs
from repulse_lab.study.features import View
from repulse_lab.study.problems import Images, LabelledPairs, halves


@dataclass(frozen=True, eq=False)
class Trial:
    """A fitted method with the features it is measured on.

    Attributes:
        method: fitted.
        images: of the problem.
        view: features; None for a method that takes images.
    """

    method: Method
    images: Images
    view: View | None

    def sets(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the test samples and those of each out-of-distribution set, as the method takes them."""
        from_where = self.images if self.view is None else self.view
        return from_where.test, dict(from_where.outside)


def measured(trial: Trial) -> dict[str, float]:
    """Return every figure of a method by its name, shares in percent."""
    pairs = trial.images.pairs
    return measure_labels(trial) if pairs is None else measure_pairs(trial, pairs)


def measure_labels(trial: Trial) -> dict[str, float]:
    """Measure a method on test samples that have one label each."""
    test = trial.sets()[0]
    targets, human = trial.images.test_targets, trial.images.human
    figures, parts = [], []
    for here, outside in _folds(trial, torch.arange(len(test)), targets):
        people = None if human is None else human[here]
        found = evaluate(trial.method, (test[here], targets[here]), outside, human=people, progress=False)
        if not bool(here.all()):
            parts.append((_mixture(trial.method.predict(test[here])), targets[here]))
        figures.append(flat(found, trial.images.averaged))
    return {**_mean_of(figures), **(_calibration(parts) if parts else {})}


def flat(found: Evaluation, averaged: Sequence[str] = ()) -> dict[str, float]:
    """Return the numbers of an evaluation by name, shares in percent, with means over out-of-distribution sets.

    Args:
        found: the evaluation.
        averaged: sets that means are over; all of them if empty or if none of these is there.
    """
    one = {key: value if key in NOT_IN_PERCENT else 100 * value for key, value in found.id.items()}
    for name, values in found.ood.items():
        one |= {f"{name} {key}": 100 * value for key, value in values.items()}
    over = [values for name, values in found.ood.items() if name in averaged] or list(found.ood.values())
    for key in ("auroc", "fpr95") if over else ():
        one[f"mean {key}"] = 100 * sum(values[key] for values in over) / len(over)
    return one


def measure_pairs(trial: Trial, pairs: LabelledPairs) -> dict[str, float]:
    """Measure accuracy and calibration over all pairs, then how well clean, ambiguous and other digits are told apart.

    Args:
        trial: on a problem with ambiguous test samples.
        pairs: of a test sample and a label.
    """
    test, averaged = trial.sets()[0], trial.images.averaged
    figures, parts = [], []
    for here, outside in _folds(trial, pairs.samples, pairs.targets):
        prediction, scores = trial.method.predict_and_score(test)
        judged = here[pairs.samples]
        parts.append((_mixture(prediction)[pairs.samples[judged]], pairs.targets[judged]))
        first = torch.arange(len(test)) < pairs.clean
        digits, dirty = here & first, here & ~first
        doubt = prediction.aleatoric
        one = {"clean ambiguous": 100 * metrics.auroc(doubt[digits], doubt[dirty])}
        for name, samples in outside.items():
            other = trial.method.score(samples)
            one[f"clean {name}"] = 100 * metrics.auroc(scores[digits], other)
            one[f"ambiguous {name}"] = 100 * metrics.auroc(scores[dirty], other)
        for kind in ("clean", "ambiguous"):
            over = [one[f"{kind} {name}"] for name in outside if not averaged or name in averaged]
            one |= {f"{kind} mean": sum(over) / len(over)} if over else {}
        figures.append(one)
    return {**_calibration(parts), **_mean_of(figures)}


def _folds(trial: Trial, samples: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield masks of test samples to judge on, and the out-of-distribution samples to judge with them.

    All of them; but a method that can be calibrated is calibrated on the pairs of a sample and its label in one half
    and judged on the other half, and on as large a part of the other samples, which keeps their proportion.
    """
    test, outside = trial.sets()
    if not trial.method.calibrates:
        yield torch.ones(len(test), dtype=torch.bool), outside
        return
    for fold, half in enumerate(halves(len(test))):
        here = torch.zeros(len(test), dtype=torch.bool).index_fill(0, half, True)
        known = ~here[samples]
        trial.method.calibrate(test[samples[known]], targets[known])
        yield here, {name: others[halves(len(others))[fold]] for name, others in outside.items()}


def _calibration(parts: Sequence[tuple[ClassPrediction, Tensor]]) -> dict[str, float]:
    """Measure calibration over all folds at once, for calibration errors are larger on fewer samples."""
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
