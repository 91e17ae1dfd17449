"""Table B.6: which set to repel on, judged on every set, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Column, Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import PAPER_PHOTOS, PHOTO_NOTES, PUBLISHED
from repulse_lab.study.problems import CIFAR10
from repulse_lab.study.tables import methods_as_columns

ROWS = (
    *map(Row, ("MAP", "DDU", "LL-E")),
    *(Row("fs-RLL-E", name) for name in ("CIFAR-100", "Tiny ImageNet", "textures", "SVHN", "SVHN crops", "noise")),
)
GRID = Grid("cifar10", ROWS, PUBLISHED, PAPER_PHOTOS, PHOTO_NOTES)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    known = [name for name in CIFAR10.sets if any(f"{name} auroc" in one.figures for one in outcomes)]
    metrics = {f"{name} auroc": Column(name, 1, "higher") for name in known}

    def paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
        like = "WRN-28-10" if network in ("ResNet-20", "ResNet-32") else network
        return printed("B.6", like, method, repulsion, metric)

    table = methods_as_columns(
        outcomes, metrics, "network, foreign set", "AUROC CIFAR-10 against each foreign set", paper
    )
    table.footnote = "Heads that are repelled on the set of their row are oracles: they have seen other images of it."
    return [table]


EXPERIMENT = Experiment("repulsion-sets", "Which set to repel on?", "Table B.6", GRID.plan, tables)
