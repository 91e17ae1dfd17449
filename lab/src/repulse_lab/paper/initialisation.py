"""Desideratum D2 of the paper: do heads that all start from the network's last layer part, and does repulsion do it?

Without repulsion they have no reason to part but the noise that they start with; where they are afterwards is told by
how often two of them choose different classes, and by the mutual information between head and class.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from repulse.evaluation.table import Column
from repulse.prediction import ClassPrediction
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study import presets
from repulse_lab.study.cells import CODE, fit_method
from repulse_lab.study.experiment import Cell, Experiment, Plan, RunOptions
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.measures import measured
from repulse_lab.study.tables import INSIDE, MEAN, by_rows
from repulse_lab.study.training import Networks

STARTS = {"random": "random start", "pretrained": "same start"}
"""What `init` is in tables and claims: the same start is the network's last layer, with a little noise."""
SETS = (None, "Tiny ImageNet")
COLUMNS = {
    **INSIDE,
    **MEAN,
    "disagreement test": Column("test, %", 2, "", "Test images of which two heads choose different classes."),
    "disagreement outside": Column("outside, %", 1, "", "The same of out-of-distribution images."),
    "epistemic test": Column("MI test", 4, "", "Mean mutual information in nats on test images."),
    "epistemic outside": Column("MI outside", 4, "", "The same on out-of-distribution images."),
}


def rows() -> list[Row]:
    """Return heads with and without repulsion, from either start."""
    return [
        Row("fs-RLL-E" if name else "LL-E", name, recipe={"init": init}, label=_label(name, words))
        for name in SETS
        for init, words in STARTS.items()
    ]


def _label(name: str | None, words: str) -> str:
    return f"fs-RLL-E, {name}, {words}" if name else f"LL-E, {words}"


GRID = Grid(
    "cifar10",
    rows(),
    Networks((presets.RESNET20,), 3),
    presets.PAPER_WIDE,
    (
        "Published ResNet-20. Same start: every head is the network's last layer with noise of a tenth of the standard "
        "deviation of its weights.",
        "Heads: " + presets.heads_note("cifar10"),
    ),
)


@work(*CODE, "repulse_lab.study.cells", seconds=lambda about: 5.0)
def compare_heads(about: Mapping[str, Any], place: Place) -> Result:
    """Measure heads as every table does, and how far they are apart."""
    trial, _ = fit_method(about, place)
    test, outside = trial.sets()
    samples = {"test": test, "outside": torch.cat([outside[name] for name in trial.images.averaged if name in outside])}
    figures = measured(trial)
    for name, features in samples.items():
        prediction = trial.method.predict(features)
        assert isinstance(prediction, ClassPrediction)
        figures[f"disagreement {name}"] = disagreement(prediction)
        figures[f"epistemic {name}"] = float(prediction.epistemic.double().mean())
    return {"figures": figures}


def disagreement(prediction: ClassPrediction) -> float:
    """Return how often two members choose different classes, in per cent, the mean over pairs.

    Examples:
        >>> probs = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.8, 0.2], [0.3, 0.7]]])
        >>> disagreement(ClassPrediction(probs.log()))
        50.0
    """
    labels = prediction.log_probs.argmax(dim=-1)
    pairs = [(one != other).double().mean() for one, other in itertools.combinations(labels, 2)]
    return 100 * float(torch.stack(pairs).mean())


def plan(options: RunOptions) -> Plan:
    """Plan the cells of the grid, with the distances between heads."""
    planned = GRID.plan(options)
    cells = [
        Cell(
            Job(compare_heads, cell.job.about, cell.job.needs, cell.job.code),
            {**cell.labels, "task": STARTS[cell.job.about["recipe"]["init"]]},
        )
        for cell in planned.cells
    ]
    return Plan(cells, planned.notes, planned.missing)


EXPERIMENT = Experiment(
    "initialisation",
    "Do heads that start alike find different solutions?",
    "Section III, second desideratum",
    plan,
    by_rows(COLUMNS, "CIFAR-10"),
)
