"""Table B.5: the same methods on other networks, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import NARROW11, NARROW18, PAPER_PHOTOS, PHOTO_NOTES, RESNET20, RESNET32
from repulse_lab.study.tables import AUROC, INSIDE, MEAN, methods_as_rows
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


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    def paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
        return printed("B.5", network, method, repulsion, metric)

    return methods_as_rows(
        outcomes, {key: INSIDE[key] for key in ("accuracy", "ece")} | AUROC | MEAN, "CIFAR-10", paper
    )


EXPERIMENT = Experiment("architectures", "The same methods on other networks", "Table B.5", GRID.plan, tables)
