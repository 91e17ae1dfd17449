"""A table of results over seeds, that can be printed, pasted into Markdown or put on a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from repulse.errors import DataError, expected
from repulse.evaluation import Evaluation


@dataclass(frozen=True)
class Column:
    """One figure of merit.

    Attributes:
        name: short heading.
        digits: digits after the point.
        better: "higher", "lower", or "" for columns without a best.
        help: what it is, in one sentence, for the page.
    """

    name: str
    digits: int = 1
    better: str = ""
    help: str = ""

    @property
    def heading(self) -> str:
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[self.better]
        return self.name + arrow


@dataclass
class Table:
    """Rows of results, each with one list of values a seed.

    Examples:
        >>> table = Table("method", [Column("acc"), Column("ece", better="lower")])
        >>> table.add("network", [[97.0, 5.0], [98.0, 6.0]])
        >>> table.add("ensemble", [[97.0, 2.0], [98.0, 2.0]])
        >>> print(table.text())
        method      acc         ece ↓
        network     97.5 ± 0.7  5.5 ± 0.7
        ensemble    97.5 ± 0.7  2.0 ± 0.0 *
    """

    label: str
    columns: Sequence[Column]
    rows: list[tuple[str, list[list[float]]]] = field(default_factory=list)
    footnote: str = ""
    marks: set[tuple[int, int]] = field(default_factory=set)
    """Cells, as (row, column), that carry a dagger and are never the best of their column."""

    def add(self, name: str, seeds: Sequence[Sequence[float]], marked: Iterable[int] = ()) -> None:
        """Add a row: for every seed, one value a column; `marked` columns are not compared with other rows."""
        if not seeds:
            raise DataError(expected(f"row {name!r}", "values of at least one seed", "none"))
        for values in seeds:
            if len(values) != len(self.columns):
                raise DataError(expected(f"row {name!r}", f"{len(self.columns)} values a seed", len(values)))
        self.marks |= {(len(self.rows), column) for column in marked}
        self.rows.append((name, [list(values) for values in seeds]))

    def mean(self, row: int, column: int) -> float:
        return statistics.fmean(values[column] for values in self.rows[row][1])

    def cell(self, row: int, column: int) -> str:
        """Mean and, from two seeds on, the standard deviation over seeds."""
        digits = self.columns[column].digits
        values = [values[column] for values in self.rows[row][1]]
        if not all(map(math.isfinite, values)):
            return "–"
        text = f"{statistics.fmean(values):.{digits}f}"
        text += "" if len(values) < 2 else f" ± {statistics.stdev(values):.{digits}f}"
        return f"{text} †" if (row, column) in self.marks else text

    def is_best(self, row: int, column: int) -> bool:
        """Whether no other row is better, as printed; nobody is best where all are equal."""
        spec = self.columns[column]
        sign = {"higher": 1, "lower": -1, "": 0}[spec.better]
        means = [round(sign * self.mean(i, column), spec.digits) for i in range(len(self.rows))]
        finite = [m for i, m in enumerate(means) if math.isfinite(m) and (i, column) not in self.marks]
        rival = (row, column) not in self.marks
        return bool(sign) and rival and len(set(finite)) > 1 and means[row] == max(finite)

    def text(self) -> str:
        """Aligned plain text; a star marks the best of a column."""
        marked = [
            [name, *(self.cell(i, j) + (" *" if self.is_best(i, j) else "") for j in range(len(self.columns)))]
            for i, (name, _) in enumerate(self.rows)
        ]
        lines = [[self.label, *(column.heading for column in self.columns)], *marked]
        widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
        widths[0] += 2
        rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*rows, *([self.footnote] if self.footnote else [])])

    def markdown(self) -> str:
        """A Markdown table; the best of a column in bold."""
        lines = [[self.label, *(column.heading for column in self.columns)], ["---"] * (len(self.columns) + 1)]
        for i, (name, _) in enumerate(self.rows):
            cells = [self.cell(i, j) for j in range(len(self.columns))]
            lines.append(
                [name.replace("|", "\\|"), *(f"**{c}**" if self.is_best(i, j) else c for j, c in enumerate(cells))]
            )
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{table}\n\n{self.footnote}" if self.footnote else table

    def html(self) -> str:
        """A table for the page; headings explain themselves on hover."""
        head = "".join(f'<th scope="col" title="{escape(c.help)}">{escape(c.heading)}</th>' for c in self.columns)
        body = ""
        for i, (name, _) in enumerate(self.rows):
            cells = "".join(
                f"<td{' class=best' if self.is_best(i, j) else ''}>{escape(self.cell(i, j))}</td>"
                for j in range(len(self.columns))
            )
            body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>\n'
        corner = f'<th scope="col">{escape(self.label)}</th>'
        foot = f"\n<p><small>{escape(self.footnote)}</small></p>" if self.footnote else ""
        return f"<table><thead><tr>{corner}{head}</tr></thead><tbody>\n{body}</tbody></table>{foot}"


ORACLE = "† The method was repelled on samples of this set: an oracle, not compared with the others."

INSIDE = {
    "accuracy": Column("accuracy", 2, "higher", "Share of right predictions, in per cent."),
    "rmse": Column("RMSE", 3, "lower", "Root of the mean squared error."),
    "nll": Column("NLL", 3, "lower", "Negative log-likelihood, in nats."),
    "coverage_95": Column("in 95 % interval", 1, "", "Share of targets in their interval, in per cent; 95 is right."),
    "brier": Column("Brier", 3, "lower", "Squared error of the probabilities."),
    "ece": Column("ECE", 2, "lower", "Expected calibration error in 15 bins of equal width, in per cent."),
    "adaptive_ece": Column("adaptive ECE", 2, "lower", "The same in bins of equal mass."),
    "human_correlation": Column("human", 3, "higher", "Rank correlation of aleatoric uncertainty with people's doubt."),
}
"""Columns of accuracy and calibration."""

SELECTIVE = {
    "aurc": Column("AURC", 2, "lower", "Mean error rate over all coverages, in per cent."),
    "coverage_at_5": Column("coverage at 5 %", 1, "higher", "Share that can be kept with an error rate of 5 per cent."),
    "misclassification_auroc": Column("error AUROC", 1, "higher", "Of telling wrong predictions by total uncertainty."),
}
"""Columns of selective prediction."""

PLAIN = {"rmse", "nll", "brier", "human_correlation"}
"""Metrics that are printed as they are; all others are shares, and printed in per cent."""


def compare(evaluations: Mapping[str, Sequence[Evaluation]]) -> list[Table]:
    """Methods side by side: accuracy and calibration, selective prediction, AUROC and FPR@95 of each foreign set.

    Sets that a method was repelled on are marked with a dagger, as is its mean over sets, and never best.

    Args:
        evaluations: for each method its name and its evaluations, one a seed.
    """
    empty = [name for name, seeds in evaluations.items() if not seeds]
    if empty or not evaluations:
        raise DataError(expected("evaluations", "at least one a method", f"none of {empty[0]!r}" if empty else "none"))
    every = [evaluation for seeds in evaluations.values() for evaluation in seeds]
    tables = [
        _inside(label, evaluations, every, known) for label, known in (("inside", INSIDE), ("selective", SELECTIVE))
    ]
    if any(evaluation.ood for evaluation in every):
        tables.append(_outside("AUROC", "auroc", "higher", evaluations, every))
        tables.append(_outside("FPR@95", "fpr95", "lower", evaluations, every))
    return [table for table in tables if table.columns]


def summary(evaluation: Evaluation) -> Table:
    """The metrics inside and the AUROC of each foreign set in one row."""
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
    table = Table(
        label, [*(Column(name, 1, better, f"{label} of telling {name}, in per cent.") for name in sets), *means]
    )
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
    return value if key in PLAIN else 100 * value
