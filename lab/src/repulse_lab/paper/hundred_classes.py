"""A stand-in for Table 3: every method on 100 classes of Tiny ImageNet, where CIFAR-100 is not to be had."""

from __future__ import annotations

from dataclasses import replace

from repulse.evaluation.table import Column
from repulse_lab.paper import cifar100
from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import CALIBRATION_NOTE, PAPER_WIDE, heads_note
from repulse_lab.study.problems import TINY100
from repulse_lab.study.tables import INSIDE, MEAN, by_rows

SETS = {"Tiny ImageNet": "CIFAR-10"}
"""What is repelled on here, by what Table 3 repels on."""
ROWS = tuple(
    replace(row, repulsion=SETS.get(row.repulsion or "", row.repulsion)) for row in cifar100.ROWS if row != Row("DE")
)
GRID = Grid(
    TINY100.name,
    ROWS,
    cifar100.GRID.cpu,
    PAPER_WIDE,
    (
        "A stand-in: 100 classes of Tiny ImageNet at 32 pixels for CIFAR-100; CIFAR-10 is repelled on in its place.",
        "The other 100 classes were photographed like the training images: the set that is hardest to tell.",
        *cifar100.GRID.notes,
        f"Heads: {heads_note(TINY100.name)}",
        CALIBRATION_NOTE,
    ),
)


COLUMNS = {f"{name} auroc": Column(name, 1, "higher", f"AUROC of telling {name}.") for name in TINY100.sets}
EXPERIMENT = Experiment(
    "hundred-classes",
    "Every method on 100 classes of Tiny ImageNet",
    "a stand-in for Table 3",
    GRID.plan,
    by_rows(INSIDE | COLUMNS | MEAN, TINY100.title),
)
