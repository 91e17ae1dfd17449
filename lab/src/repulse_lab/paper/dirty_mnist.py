"""Table 1: every method on DirtyMNIST."""

from __future__ import annotations

from functools import partial

from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import DIGIT_NOTES, PAPER_DIGITS, RESNET18
from repulse_lab.study.tables import DIGITS, by_rows
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


EXPERIMENT = Experiment(
    "dirty-mnist",
    "Every method on clean, ambiguous and out-of-distribution digits",
    "Table 1",
    GRID.plan,
    by_rows(DIGITS, "DirtyMNIST", partial(printed, "B.2")),
)
