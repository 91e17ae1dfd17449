"""Beyond the paper: what each choice of the recipe is worth, one at a time."""

from __future__ import annotations

from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import PAPER_WIDE, PHOTO_NOTES, RESNET20
from repulse_lab.study.tables import AUROC, INSIDE, MEAN, by_rows
from repulse_lab.study.training import Networks

CHANGES = {
    "strength": (0.003, 0.01, 0.1, 0.3),
    "heads": (2, 5, 20, 50),
    "kernel": ("laplace", "l2", "imq"),
    "on": ("logits", "centred_logits", "log_probabilities"),
    "repulsion_batch_size": (32, 512),
    "rule": ("blob", "sge", "ssge", "svgd"),
    "compare": ("pointwise",),
    "epochs": (1, 10),
}
SETS = "Tiny ImageNet"


def rows() -> list[Row]:
    """Return the paper's form, then each change of it alone, then this library's recipe without each of its parts."""
    plain = [Row("fs-RLL-E", SETS, label="fs-RLL-E")]
    for name, values in CHANGES.items():
        plain += [Row("fs-RLL-E", SETS, recipe={name: value}, label=f"{_words(name)}: {value}") for value in values]
    plain += [Row("repulse", SETS, "auto", label="repulse")]
    plain += [Row("repulse", SETS, "auto", {"compare": "jointly"}, "repulse, compared jointly")]
    plain += [Row("repulse", SETS, "auto", {"whiten": False}, "repulse, not whitened")]
    return [*plain, Row("repulse", SETS, "last", label="repulse, without taps")]


def _words(name: str) -> str:
    return name.replace("_", " ")


GRID = Grid("cifar10", rows(), Networks((RESNET20,), 3), Networks(PAPER_WIDE.networks, 3), PHOTO_NOTES)


EXPERIMENT = Experiment(
    "ablation",
    "What is each choice of the recipe worth?",
    "beyond the paper",
    GRID.plan,
    by_rows(INSIDE | AUROC | MEAN, f"CIFAR-10, repelled on {SETS}"),
)
