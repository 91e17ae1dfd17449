"""Tables of evaluations: methods side by side, in the usual columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from repulse.errors import DataError, expected
from repulse.evaluation.evaluate import Evaluation
from repulse.evaluation.table import Column, Table

ORACLE = "† The method was repelled on samples of this set: an oracle, not compared with the others."

INSIDE = {
    "accuracy": Column("accuracy", 2, "higher", "Share of correct predictions, in per cent."),
    "mean_iou": Column("mean IoU", 2, "higher", "Intersection over union, mean over classes, in per cent."),
    "rmse": Column("RMSE", 3, "lower", "Root of the mean squared error."),
    "nll": Column("NLL", 3, "lower", "Negative log-likelihood, in nats."),
    "coverage_95": Column("in 95 % interval", 1, "", "Share of targets in their interval, in per cent; 95 is right."),
    "brier": Column("Brier", 3, "lower", "Squared error of the probabilities."),
    "ece": Column("ECE", 2, "lower", "Expected calibration error in 15 bins of equal width, in per cent."),
    "adaptive_ece": Column("adaptive ECE", 2, "lower", "The same in bins of equal mass."),
    "average_precision": Column("average precision", 1, "higher", "Mean over labels, in per cent."),
    "auroc": Column("label AUROC", 1, "higher", "Mean over labels, in per cent."),
    "human_correlation": Column(
        "human", 3, "higher", "Rank correlation of aleatoric uncertainty with human ambiguity."
    ),
}
"""Columns of accuracy and calibration."""

SELECTIVE = {
    "aurc": Column("AURC", 2, "lower", "Mean error rate over all coverages, in per cent."),
    "coverage_at_5": Column("coverage at 5 %", 1, "higher", "Share that can be kept with an error rate of 5 per cent."),
    "misclassification_auroc": Column("error AUROC", 1, "higher", "Of finding wrong predictions by total uncertainty."),
}
"""Columns of selective prediction."""

NOT_IN_PERCENT = {"rmse", "nll", "brier", "human_correlation"}
"""Metrics that are printed as they are; all others are rates, printed in per cent."""


def compare(evaluations: Mapping[str, Sequence[Evaluation]]) -> list[Table]:
    """Make tables of methods: accuracy and calibration, selective prediction, AUROC and FPR@95 of each set.

    Sets that a method was repelled on are marked with a dagger, as is its mean over sets, and are never the best.

    Args:
        evaluations: for each name of a method its evaluations, one per seed.
    """
    empty = [name for name, seeds in evaluations.items() if not seeds]
    if empty or not evaluations:
        raise DataError(
            expected("evaluations", "at least one per method", f"none of {empty[0]!r}" if empty else "none")
        )
    every = [evaluation for seeds in evaluations.values() for evaluation in seeds]
    tables = [
        _inside(label, evaluations, every, known) for label, known in (("inside", INSIDE), ("selective", SELECTIVE))
    ]
    if any(evaluation.ood for evaluation in every):
        tables.append(_outside("AUROC", "auroc", "higher", evaluations, every))
        tables.append(_outside("FPR@95", "fpr95", "lower", evaluations, every))
    return [table for table in tables if table.columns]


def one_row(evaluation: Evaluation) -> Table:
    """Make a table of one row: in-distribution metrics and the AUROC of each out-of-distribution set."""
    one = {evaluation.name: [evaluation]}
    parts = [table for table in compare(one) if table.label != "FPR@95"]
    table = Table("method", [column for part in parts for column in part.columns])
    widths = [len(part.columns) for part in parts]
    marked = [sum(widths[:i]) + column for i, part in enumerate(parts) for _, column in part.marks]
    table.add(evaluation.name, [[value for part in parts for value in part.rows[0][1][0]]], marked)
    table.footnote = ORACLE if marked else ""
    return table


def _inside(
    label: str,
    evaluations: Mapping[str, Sequence[Evaluation]],
    every: Sequence[Evaluation],
    known: Mapping[str, Column],
) -> Table:
    keys = [key for key in known if any(key in evaluation.id for evaluation in every)]
    table = Table(label, [known[key] for key in keys])
    for name, seeds in evaluations.items():
        table.add(name, [[_shown(key, seed.id.get(key, math.nan)) for key in keys] for seed in seeds])
    return table


def _outside(
    label: str, key: str, better: str, evaluations: Mapping[str, Sequence[Evaluation]], every: Sequence[Evaluation]
) -> Table:
    sets = list(dict.fromkeys(name for evaluation in every for name in evaluation.ood))
    means = [Column("mean", 1, better, "Mean over the sets.")] if len(sets) > 1 else []
    table = Table(label, [*(Column(name, 1, better, f"{label} of {name}, in per cent.") for name in sets), *means])
    for name, seeds in evaluations.items():
        rows = [[_shown(key, seed.ood.get(other, {}).get(key, math.nan)) for other in sets] for seed in seeds]
        marked = [j for j, other in enumerate(sets) if any(other in seed.oracle for seed in seeds)]
        if means:
            rows = [[*row, statistics.fmean(row)] for row in rows]
            marked += [len(sets)] if marked else []
        table.add(name, rows, marked)
    table.footnote = ORACLE if table.marks else ""
    return table


def _shown(key: str, value: float) -> float:
    return value if key in NOT_IN_PERCENT else 100 * value
