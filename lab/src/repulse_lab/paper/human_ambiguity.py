"""Beyond the paper: does aleatoric uncertainty follow the disagreement of people (CIFAR-10H)?"""

from __future__ import annotations

from repulse.evaluation.table import Column
from repulse_lab.study.experiment import Experiment, Plan, RunOptions
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import PAPER_WIDE, PHOTO_NOTES, PUBLISHED
from repulse_lab.study.problems import is_there
from repulse_lab.study.tables import INSIDE, by_rows

ROWS = (
    *map(Row, ("MAP", "MAP + temperature", "SNGP", "LL-Laplace", "LL-E")),
    *(Row("fs-RLL-E", name) for name in ("training data", "Tiny ImageNet", "16 patches")),
    Row("repulse", "Tiny ImageNet", "auto"),
    Row("repulse", "synthetic images", "auto"),
    Row("outlier exposure", "Tiny ImageNet"),
    Row("DE"),
)
GRID = Grid("cifar10", ROWS, PUBLISHED, PAPER_WIDE, PHOTO_NOTES[:1])
COLUMNS = {
    "human_correlation": Column("rank correlation", 3, "higher", "Of aleatoric uncertainty with people's entropy."),
    **INSIDE,
    "aurc": Column("AURC", 2, "lower", "Mean error rate over all coverages, in per cent."),
}


def plan(options: RunOptions) -> Plan:
    if not is_there(options.data, ("cifar10h", "test")):
        return Plan([], (), ["All of it: the counts of CIFAR-10H are not in the data folder."])
    return GRID.plan(options)


EXPERIMENT = Experiment(
    "human-ambiguity",
    "Does aleatoric uncertainty follow human disagreement?",
    "beyond the paper",
    plan,
    by_rows(COLUMNS, "CIFAR-10H"),
)
