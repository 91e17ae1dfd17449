"""Beyond the paper: does aleatoric uncertainty follow the disagreement of people (CIFAR-10H)?"""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Column, Table
from repulse_lab.paper.cifar10 import INSIDE
from repulse_lab.study.collections import there
from repulse_lab.study.experiment import Experiment, Outcome, Plan, Setting
from repulse_lab.study.grid import Grid, Row, down
from repulse_lab.study.zoo import PAPER_WIDE, PHOTO_NOTES, PUBLISHED

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


def plan(setting: Setting) -> Plan:
    if not there(setting.data, ("cifar10h", "test")):
        return Plan([], (), ["All of it: the counts of CIFAR-10H are not in the data folder."])
    return GRID.plan(setting)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    return down(outcomes, COLUMNS, "CIFAR-10H")


EXPERIMENT = Experiment(
    "human-ambiguity", "Does aleatoric uncertainty follow human disagreement?", "beyond the paper", plan, tables
)
