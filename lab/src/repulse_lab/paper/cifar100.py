"""Table 3: every method on CIFAR-100."""

from __future__ import annotations

from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import PAPER_WIDE
from repulse_lab.study.tables import AUROC, INSIDE, MEAN, by_rows
from repulse_lab.study.training import Network, Networks

ROWS = (
    *map(Row, ("MAP", "DDU", "SNGP", "LL-Laplace", "LL-E", "RLL-E")),
    *(Row("fs-RLL-E", name) for name in ("training data", "Tiny ImageNet", "textures", "32 patches", "16 patches")),
    Row("repulse", "Tiny ImageNet", "auto"),
    Row("DE"),
)
GRID = Grid(
    "cifar100",
    ROWS,
    Networks((Network("ResNet-18", "resnet18", "cpu-cifar", width=16, like="WRN-28-10"),), 2),
    PAPER_WIDE,
    ("A ResNet-18 with a quarter of the channels, trained for 6 epochs, stands in for WRN-28-10.",),
)


EXPERIMENT = Experiment(
    "cifar100", "Every method on CIFAR-100", "Table 3", GRID.plan, by_rows(INSIDE | AUROC | MEAN, "CIFAR-100")
)
