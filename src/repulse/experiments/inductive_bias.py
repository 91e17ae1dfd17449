"""Table B.2: how much the architecture decides, on DirtyMNIST."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from repulse.experiments.dirty_mnist import COLUMNS
from repulse.experiments.paper import printed
from repulse.laboratory.experiment import Experiment, Outcome
from repulse.laboratory.grid import Grid, Row, across
from repulse.laboratory.zoo import DIGIT_NOTES, DIGITS, PAPER_DIGITS
from repulse.report.table import Table

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
    "clean mean": "AUROC MNIST against foreign sets, by epistemic uncertainty",
    "ambiguous mean": "AUROC ambiguous digits against foreign sets, by epistemic uncertainty",
}


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    paper = partial(printed, "B.2")
    return [across(outcomes, {key: COLUMNS[key]}, "network", title, paper) for key, title in TITLES.items()]


EXPERIMENT = Experiment(
    "inductive-bias", "Does the architecture decide what a method knows?", "Table B.2", GRID.plan, tables
)
