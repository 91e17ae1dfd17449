"""Table 1: every method on DirtyMNIST."""

from __future__ import annotations

from collections.abc import Sequence

from repulse.evaluation.table import Column, Table
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.grid import Grid, Row, Several, down
from repulse_lab.study.zoo import DIGIT_NOTES, PAPER_DIGITS, RESNET18

COLUMNS = {
    "accuracy": Column("accuracy", 2, "higher", "Over all pairs of an image and a label, in per cent."),
    "nll": Column("NLL", 3, "lower", "Negative log-likelihood, in nats."),
    "ece": Column("ECE", 2, "lower", "Expected calibration error, in per cent."),
    "clean ambiguous": Column("MNIST/ambiguous", 1, "higher", "AUROC by aleatoric uncertainty."),
    "clean mean": Column("MNIST/OOD", 1, "higher", "AUROC by epistemic uncertainty, mean over the OOD sets."),
    "ambiguous mean": Column("ambiguous/OOD", 1, "higher", "The same, against ambiguous digits."),
}
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
    cpu=Several((RESNET18,), 3),
    paper=Several(PAPER_DIGITS.networks[-1:], 10, members=5),
    notes=DIGIT_NOTES,
)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    def paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
        return printed("B.2", network, method, repulsion, metric)

    return down(outcomes, COLUMNS, "DirtyMNIST", paper)


EXPERIMENT = Experiment(
    "dirty-mnist", "Every method on clean, ambiguous and out-of-distribution digits", "Table 1", GRID.plan, tables
)
