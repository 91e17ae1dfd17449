"""Table B.3: what heads can know that are repelled on the very set they are judged on, network by network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from repulse.evaluation.table import Column, Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import DIGIT_NOTES, DIGITS, PAPER_DIGITS
from repulse_lab.study.tables import methods_as_columns

ROWS = (
    *map(Row, ("MAP", "DDU", "LL-E")),
    *(Row("fs-RLL-E", name) for name in ("training data", "EMNIST", "letters", "KMNIST", "FashionMNIST", "Omniglot")),
)
GRID = Grid("dirty-mnist", ROWS, DIGITS, PAPER_DIGITS, DIGIT_NOTES)
SETS = ("EMNIST", "letters", "KMNIST", "FashionMNIST", "Omniglot")


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    known = [name for name in SETS if any(f"ambiguous {name}" in one.figures for one in outcomes)]
    metrics = {f"ambiguous {name}": Column(name, 1, "higher") for name in known}
    title = "AUROC ambiguous digits against each foreign set"
    table = methods_as_columns(outcomes, metrics, "network, foreign set", title, partial(printed, "B.3"))
    table.footnote = "Heads that are repelled on the set of their row are oracles: they have seen other images of it."
    return [table]


EXPERIMENT = Experiment(
    "feature-collapse",
    "What do features keep of out-of-distribution sets that heads repel on?",
    "Table B.3",
    GRID.plan,
    tables,
)
