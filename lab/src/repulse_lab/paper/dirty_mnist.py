"""Table 1: every method on DirtyMNIST."""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import DIGIT_NOTES, PAPER_DIGITS, RESNET18
from repulse_lab.study.tables import DIGITS, methods_as_rows
from repulse_lab.study.training import Networks

ROWS = (
    *map(Row, ("MAP", "DDU", "SNGP", "LL-Laplace", "LL-E", "RLL-E")),
    *(Row("fs-RLL-E", name) for name in ("training data", "EMNIST", "letters", "16 patches", "8 patches", "4 patches")),
    Row("repulse", "letters", "auto"),
    Row("repulse", "synthetic images", "auto"),
    Row("DE"),
)
GRID = Grid(
    "dirty-mnist",
    ROWS,
    cpu=Networks((RESNET18,), 3),
    paper=Networks(PAPER_DIGITS.networks[-1:], 10, members=5),
    notes=DIGIT_NOTES,
)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    def paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
        return printed("B.2", network, method, repulsion, metric)

    return methods_as_rows(outcomes, DIGITS, "DirtyMNIST", paper)


EXPERIMENT = Experiment(
    "dirty-mnist", "Every method on clean, ambiguous and out-of-distribution digits", "Table 1", GRID.plan, tables
)
