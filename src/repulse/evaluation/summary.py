"""All metrics of one pass, with their curves and confidence intervals, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.metrics.calibration import (
    accuracy,
    binned,
    brier,
    calibration_error,
    confidence_of,
    ece,
    nll,
    reliability,
    squared_errors,
)
from repulse.metrics.human import human_entropy, spearman
from repulse.metrics.inputs import checked
from repulse.metrics.multilabel import label_auroc, label_average_precision, label_ece, label_f1, label_nll
from repulse.metrics.ranking import aupr, auroc, fpr_at_95, misclassification_auroc
from repulse.metrics.regression import central_mass, interval_coverage, rmse
from repulse.metrics.resampling import Interval, bootstrap
from repulse.metrics.selective import aurc, coverage_at_risk, risk_coverage
from repulse.prediction import ClassPrediction, MultilabelPrediction, MultiregressionPrediction, RegressionPrediction

POINTS = 200
"""Maximum number of points of a curve."""
BINS = 40
"""Number of bins of a histogram."""


class Summary(NamedTuple):
    """Metrics of in-distribution predictions, their intervals and curves."""

    metrics: dict[str, float]
    intervals: dict[str, Interval]
    reliability: dict[str, list[float]]
    risk_coverage: dict[str, list[float]]


def of_classes(
    prediction: ClassPrediction, targets: Tensor, aleatoric: Tensor, total: Tensor, human: Tensor | None, repeats: int
) -> Summary:
    """Compute accuracy, calibration and selective prediction by total uncertainty."""
    prediction, targets = checked(prediction, targets, ClassPrediction)
    wrong = prediction.labels != targets
    mixed = bool(wrong.any()) and not bool(wrong.all())
    found = {
        "accuracy": accuracy(prediction, targets),
        "nll": nll(prediction, targets),
        "brier": brier(prediction, targets),
        "ece": ece(prediction, targets),
        "adaptive_ece": ece(prediction, targets, adaptive=True),
        "aurc": aurc(total, wrong),
        "coverage_at_5": coverage_at_risk(total, wrong, 0.05),
        "misclassification_auroc": misclassification_auroc(prediction, targets, total) if mixed else math.nan,
    }
    if human is not None:
        found["human_correlation"] = _agreement(aleatoric, human)
    bars = reliability(prediction, targets)
    full = bars[2] > 0
    coverage, risk = risk_coverage(total, wrong)
    kept = torch.linspace(0, len(risk) - 1, min(POINTS, len(risk))).round().long()
    return Summary(
        found,
        _class_intervals(prediction, targets, total, wrong, repeats) if repeats else {},
        {key: bar[full].tolist() for key, bar in zip(("confidence", "accuracy", "share"), bars, strict=True)},
        {"coverage": coverage[kept].tolist(), "risk": risk[kept].tolist()},
    )


def of_numbers(prediction: RegressionPrediction, targets: Tensor, repeats: int) -> Summary:
    """Compute error and calibration of a regression."""
    prediction, targets = checked(prediction, targets, RegressionPrediction)
    mass = central_mass(prediction, targets)
    found = {
        "rmse": rmse(prediction, targets),
        "nll": nll(prediction, targets),
        "coverage_95": interval_coverage(prediction, targets, 0.95),
    }
    levels = [k / 20 for k in range(1, 20)]
    intervals = {}
    if repeats:
        square = (prediction.mean.double() - targets).square()
        each = {"nll": -prediction.log_likelihood(targets), "coverage_95": mass <= 0.95}
        intervals = {key: bootstrap(_mean, values, repeats=repeats) for key, values in each.items()}
        intervals["rmse"] = bootstrap(lambda part: math.sqrt(_mean(part)), square, repeats=repeats)
    return Summary(found, intervals, {"level": levels, "coverage": [_mean(mass <= at) for at in levels]}, {})


def of_labels(prediction: MultilabelPrediction, targets: Tensor, repeats: int) -> Summary:
    """Compute means over labels of their calibration and ranking, and `<metric>[<label>]` of each."""
    prediction, targets = checked(prediction, targets, MultilabelPrediction)
    each = {
        "nll": label_nll(prediction, targets),
        "ece": label_ece(prediction, targets),
        "adaptive_ece": label_ece(prediction, targets, adaptive=True),
        "auroc": label_auroc(prediction, targets),
        "average_precision": label_average_precision(prediction, targets),
        "f1": label_f1(prediction, targets),
    }
    found = {key: float(values.nanmean()) for key, values in each.items()}
    found |= {f"{key}[{k}]": value for key, values in each.items() for k, value in enumerate(values.tolist())}
    known = ~targets.isnan()
    bars = binned(prediction.probs[known].double().clamp(0.0, 1.0), targets[known].double(), 15)
    full = bars[2] > 0
    intervals = {}
    if repeats:
        row = -prediction.label_log_likelihood(targets).double().sum(dim=1) / known.sum(dim=1).clamp_min(1)
        intervals = {"nll": bootstrap(_mean, row, repeats=repeats)}
    diagram = {key: bar[full].tolist() for key, bar in zip(("confidence", "accuracy", "share"), bars, strict=True)}
    return Summary(found, intervals, diagram, {})


def of_targets(prediction: MultiregressionPrediction, targets: Tensor, repeats: int) -> Summary:
    """Compute error and calibration of several targets: `rmse[k]` and `coverage_95[k]` of each, and means."""
    prediction, targets = checked(prediction, targets, MultiregressionPrediction)
    each = [of_numbers(prediction.target(k), targets[:, k], repeats) for k in range(prediction.targets)]
    coverage = [one.metrics["coverage_95"] for one in each]
    found = {"nll": nll(prediction, targets), "coverage_95": sum(coverage) / len(coverage)}
    found |= {f"{key}[{k}]": one.metrics[key] for key in ("rmse", "coverage_95") for k, one in enumerate(each)}
    intervals = {f"{key}[{k}]": one.intervals[key] for k, one in enumerate(each) for key in one.intervals}
    levels = each[0].reliability["level"]
    covered = torch.tensor([one.reliability["coverage"] for one in each]).mean(dim=0).tolist()
    return Summary(found, intervals, {"level": levels, "coverage": covered}, {})


def of_scores(inside: Tensor, outside: Tensor, repeats: int) -> tuple[dict[str, float], dict[str, Interval]]:
    """Compute how well scores separate an out-of-distribution set, and the intervals of these metrics."""
    found = {
        "auroc": auroc(inside, outside),
        "aupr_out": aupr(inside, outside),
        "aupr_in": aupr(inside, outside, positive="inside"),
        "fpr95": fpr_at_95(inside, outside),
    }
    if not repeats:
        return found, {}
    both = {"auroc": auroc, "aupr_out": aupr, "fpr95": fpr_at_95}
    intervals = {key: bootstrap(metric, inside, outside, paired=False, repeats=repeats) for key, metric in both.items()}
    intervals["aupr_in"] = bootstrap(aupr, -outside, -inside, paired=False, repeats=repeats)
    return found, intervals


def histograms(scores: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Compute the share of the scores of each set in common bins, whose edges are under "edges".

    Bins cover all but the outermost half per cent of the scores of any set, which count in the first and the last bin.
    Edges are equidistant or, if scores are positive and of very different sizes, grow by a constant factor.
    """
    tails = torch.tensor([0.005, 0.995], dtype=torch.float64)
    finite = [values[values.isfinite()].double() for values in scores.values() if bool(values.isfinite().any())]
    ends = torch.stack([values.quantile(tails) for values in finite]) if finite else torch.tensor([[0.0, 1.0]])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    middle = float(torch.cat(finite).median()) if finite else 0.5
    if low >= 0 and middle > 0 and high > 20 * middle:
        low = max(low, 1e-4 * middle)
        edges = torch.logspace(math.log10(low), math.log10(high), BINS + 1, dtype=torch.float64)
    else:
        margin = 0.0 if high > low else max(1e-6, 1e-3 * abs(low))
        edges = torch.linspace(low - margin, high + margin, BINS + 1, dtype=torch.float64)
    found = {"edges": edges.tolist()}
    for key, values in scores.items():
        counts = torch.bucketize(values.double(), edges[1:-1]).bincount(minlength=BINS)
        found[key] = (counts / len(values)).tolist()
    return found


def _class_intervals(
    prediction: ClassPrediction, targets: Tensor, total: Tensor, wrong: Tensor, repeats: int
) -> dict[str, Interval]:
    """Resample only the few numbers per sample that a metric needs, not the whole prediction."""
    each = {
        "accuracy": (~wrong).double(),
        "nll": -prediction.log_likelihood(targets),
        "brier": squared_errors(prediction, targets),
    }
    found = {key: bootstrap(_mean, values, repeats=repeats) for key, values in each.items()}
    for key, adaptive in (("ece", False), ("adaptive_ece", True)):
        found[key] = bootstrap(
            lambda confidence, right, adaptive=adaptive: calibration_error(*binned(confidence, right, 15, adaptive)),
            confidence_of(prediction),
            each["accuracy"],
            repeats=repeats,
        )
    found["aurc"] = bootstrap(aurc, total, wrong, repeats=repeats)
    found["coverage_at_5"] = bootstrap(coverage_at_risk, total, wrong, repeats=repeats)
    return found


def _agreement(aleatoric: Tensor, human: Tensor) -> float:
    """Compute `human_correlation`, or NaN if all samples are equally ambiguous to people or to the model."""
    people = human_entropy(human)
    if len(people) != len(aleatoric):
        raise DataError(expected("human", f"{len(aleatoric)} rows, one per in-distribution sample", len(people)))
    constant = len(people.unique()) == 1 or len(aleatoric.unique()) == 1
    return math.nan if constant else spearman(aleatoric.double(), people)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
