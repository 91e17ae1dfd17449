"""The columns of the table, from what a method says of every set."""

from __future__ import annotations

import math
from statistics import fmean

import torch

from repulse import ClassPrediction, RegressionPrediction, metrics
from repulse.evaluation.table import Column
from repulse_lab.defaults.methods import Judged
from repulse_lab.defaults.problem import Task, Trained

FALSE_ALARMS = 0.05
"""Share of the validation samples that may be flagged as out of distribution."""

_DETECTION = (
    Column("AUROC near", 1, "higher", "Mean over the near out-of-distribution sets, in percent."),
    Column("AUROC far", 1, "higher", "Mean over the far out-of-distribution sets, in percent."),
    Column("AUROC", 1, "higher", "Mean over all out-of-distribution sets, in percent."),
    Column("flagged", 1, "higher", "Share of out-of-distribution samples above the threshold that validation gives."),
    Column("seconds", 1, "", "Processor seconds of fit and evaluation, without features that were kept."),
)
COLUMNS: dict[Task, tuple[Column, ...]] = {
    "classification": (
        Column("accuracy", 2, "higher", "In percent."),
        Column("NLL", 3, "lower", "Mean negative log-likelihood of the test labels."),
        Column("ECE", 2, "lower", "Expected calibration error in percent, 15 bins."),
        Column("AURC", 2, "lower", "Area under the risk-coverage curve in percent, by 1 - max p."),
        *_DETECTION,
    ),
    "regression": (
        Column("RMSE", 3, "lower", "In the units of the table."),
        Column("NLL", 3, "lower", "Mean negative log-likelihood in the units of the table."),
        Column("coverage", 1, "", "Share of test rows in their 95 % intervals, in percent."),
        *_DETECTION,
    ),
}


def measure(judged: Judged, trained: Trained) -> dict[str, float]:
    """Compute all columns but the seconds, and the AUROC of every out-of-distribution set under its own name."""
    targets = trained.test.targets
    assert targets is not None
    prediction, scores = judged["test"]
    found = {name: _area(scores, s) for name, (_, s) in judged.items() if ":" in name}
    kinds = {kind: [v for name, v in found.items() if name.startswith(kind)] for kind in ("near", "far")}
    threshold = float(torch.quantile(judged["validation"][1].double(), 1 - FALSE_ALARMS))
    flagged = [100 * float((s > threshold).double().mean()) for name, (_, s) in judged.items() if ":" in name]
    detection = {
        **{f"AUROC {kind}": fmean(values) if values else math.nan for kind, values in kinds.items()},
        "AUROC": fmean(found.values()) if found else math.nan,
        "flagged": fmean(flagged) if flagged else math.nan,
        **found,
    }
    if isinstance(prediction, RegressionPrediction):
        return {
            "RMSE": trained.unit * metrics.rmse(prediction, targets),
            "NLL": metrics.nll(prediction, targets) + math.log(trained.unit),
            "coverage": 100 * metrics.interval_coverage(prediction, targets, 0.95),
            **detection,
        }
    assert isinstance(prediction, ClassPrediction)
    return {
        "accuracy": 100 * metrics.accuracy(prediction, targets),
        "NLL": metrics.nll(prediction, targets),
        "ECE": 100 * metrics.ece(prediction, targets),
        "AURC": 100 * metrics.aurc(1 - prediction.confidence, prediction.labels != targets),
        **detection,
    }


def _area(inside: torch.Tensor, outside: torch.Tensor) -> float:
    return 100 * metrics.auroc(inside, outside)
