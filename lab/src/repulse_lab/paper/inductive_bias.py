"""Table B.2: how much the architecture decides, on DirtyMNIST."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from repulse.evaluation.table import Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import DIGIT_NOTES, DIGITS, PAPER_DIGITS
from repulse_lab.study.tables import DIGITS as COLUMNS
from repulse_lab.study.tables import methods_as_columns

ROWS = (
    *map(Row, ("MAP", "DDU", "SNGP", "LL-Laplace", "DE", "LL-E")),
    Row("fs-RLL-E", "EMNIST"),
    Row("fs-RLL-E", "letters"),
    Row("repulse", "letters", "auto"),
)
GRID = Grid("dirty-mnist", ROWS, DIGITS, PAPER_DIGITS, DIGIT_NOTES)
TITLES = {
    "accuracy": "Accuracy",
    "ece": "ECE",
    "clean ambiguous": "AUROC MNIST against ambiguous digits, by aleatoric uncertainty",
    "clean mean": "AUROC MNIST against out-of-distribution sets, by epistemic uncertainty",
    "ambiguous mean": "AUROC ambiguous digits against out-of-distribution sets, by epistemic uncertainty",
}


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    paper = partial(printed, "B.2")
    return [methods_as_columns(outcomes, {key: COLUMNS[key]}, "network", title, paper) for key, title in TITLES.items()]


EXPERIMENT = Experiment(
    "inductive-bias", "Does the architecture decide what a method knows?", "Table B.2", GRID.plan, tables
)
