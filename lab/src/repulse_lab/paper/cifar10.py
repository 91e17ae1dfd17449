"""Table 2: every method on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Table
from repulse_lab.paper import curves
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome, Plan, RunOptions
from repulse_lab.study.figures import Figure
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import PAPER_WIDE, PHOTO_NOTES, PUBLISHED
from repulse_lab.study.tables import AUROC, INSIDE, MEAN, methods_as_rows

ROWS = (
    *map(Row, ("MAP", "Energy", "KNN", "ViM", "DDU", "SNGP", "LL-Laplace", "LL-E", "RLL-E")),
    *(
        Row("fs-RLL-E", name)
        for name in ("training data", "CIFAR-100", "Tiny ImageNet", "textures", "32 patches", "16 patches")
    ),
    Row("repulse", "Tiny ImageNet", "auto"),
    Row("repulse", "synthetic images", "auto"),
    Row("DE"),
)
GRID = Grid(
    "cifar10",
    ROWS,
    PUBLISHED,
    PAPER_WIDE,
    (*PHOTO_NOTES, "The deep ensemble has the two published networks."),
)


DRAWN = ("MAP", "LL-Laplace", "fs-RLL-E, Tiny ImageNet", "repulse, Tiny ImageNet")


def plan(options: RunOptions) -> Plan:
    """Plan the grid, and curves of some of its rows."""
    planned = GRID.plan(options)
    return Plan([*planned.cells, *curves.with_curves(planned.cells, DRAWN)], planned.notes, planned.missing)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    def paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
        return printed("B.6", "WRN-28-10", method, repulsion, metric) or printed(
            "B.5", "WRN-28-10", method, repulsion, metric
        )

    measured = [one for one in outcomes if not one.labels.get("beyond")]
    return methods_as_rows(measured, INSIDE | AUROC | MEAN, "CIFAR-10", paper)


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    return curves.figures(outcomes, "CIFAR-10", "cifar10")


EXPERIMENT = Experiment("cifar10", "Every method on CIFAR-10", "Table 2", plan, tables, figures)
