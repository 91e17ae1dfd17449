"""Table B.5: the same methods on other networks, on CIFAR-10."""

from __future__ import annotations

from functools import partial

from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import NARROW11, NARROW18, PAPER_PHOTOS, PHOTO_NOTES, RESNET20, RESNET32
from repulse_lab.study.tables import AUROC, INSIDE, MEAN, by_rows
from repulse_lab.study.training import Networks

ROWS = (
    *map(Row, ("MAP", "DDU", "LL-Laplace", "SNGP", "LL-E")),
    Row("fs-RLL-E", "Tiny ImageNet"),
    Row("repulse", "Tiny ImageNet", "auto"),
)
GRID = Grid(
    "cifar10",
    ROWS,
    Networks((RESNET20, RESNET32, NARROW18, NARROW11), 3),
    PAPER_PHOTOS,
    (
        "ResNet-18 and VGG-11 have an eighth and a quarter of their channels, and were trained for 6 epochs.",
        *PHOTO_NOTES,
    ),
)


COLUMNS = {key: INSIDE[key] for key in ("accuracy", "ece")} | AUROC | MEAN
EXPERIMENT = Experiment(
    "architectures",
    "The same methods on other networks",
    "Table B.5",
    GRID.plan,
    by_rows(COLUMNS, "CIFAR-10", partial(printed, "B.5")),
)
