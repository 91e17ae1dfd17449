"""Where repulsion helps and where it hurts: its strength, and the space in which heads repel each other.

The paper's text leaves both open. Each is chosen on images that no table reports: training images against synthetic
images, which are made of the training images.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from repulse import metrics
from repulse.evaluation.table import Column, Table
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study import presets, tables
from repulse_lab.study.cells import CODE, fit_method
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Line, Lines
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.measures import Trial, measured
from repulse_lab.study.training import Networks

STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SPACES = ("probabilities", "logits")
UNSEEN = "synthetic images"
"""The set to choose on."""
VALIDATION = "validation auroc"
LOSS = "validation nll"
"""Of the labels of the training images that are chosen on: what repulsion costs."""
SHARE = "epistemic share"
"""How much of the uncertainty about out-of-distribution samples is epistemic, in per cent."""
COUNT = 5000
"""Number of training images to choose on."""
DETECTION = ("ambiguous mean", "mean auroc")
"""What is drawn, of digits and of photographs."""


def rows(*sets: str) -> list[Row]:
    """Return LL-E, and fs-RLL-E with every strength in both spaces on each set."""
    changes = [{"on": space, "strength": strength} for space in SPACES for strength in STRENGTHS]
    return [
        Row("LL-E"),
        *(Row("fs-RLL-E", name, recipe=one, label=_label(name, **one)) for name in sets for one in changes),
    ]


def _label(name: str, on: str, strength: float) -> str:
    return f"{name}, {on}, {strength:g}"


ON_DIGITS = Networks((presets.LENET, presets.RESNET18), 3)
ON_PHOTOGRAPHS = Networks((presets.RESNET20,), 3)
GRIDS = (
    Grid("dirty-mnist", rows("letters", "16 patches", "training data"), ON_DIGITS, presets.PAPER_DIGITS),
    Grid("cifar10", rows("Tiny ImageNet", "16 patches", "training data"), ON_PHOTOGRAPHS, presets.PAPER_WIDE),
)


@work(*CODE, "repulse_lab.study.cells", seconds=lambda about: 4.0)
def sweep_strength(about: Mapping[str, Any], place: Place) -> Result:
    """Measure heads as every table does and, to choose among them, on training images against synthetic ones."""
    trial, _ = fit_method(about, place)
    assert trial.view is not None
    order = torch.randperm(len(trial.view.train), generator=torch.Generator().manual_seed(0))[:COUNT]
    prediction, inside = trial.method.predict_and_score(trial.view.train[order])
    outside = trial.method.score(trial.view.repulsion[UNSEEN])
    chosen_by = {
        VALIDATION: 100 * metrics.auroc(inside, outside),
        LOSS: metrics.nll(prediction, trial.images.targets[order]),
    }
    return {"figures": {**measured(trial), **chosen_by, SHARE: _epistemic_share(trial)}}


def _epistemic_share(trial: Trial) -> float:
    """Return the mean mutual information on out-of-distribution samples by the mean entropy of the mixture."""
    _, outside = trial.sets()
    found = [trial.method.predict(outside[name]) for name in trial.images.averaged if name in outside]
    aleatoric, epistemic = (
        sum(float(getattr(one, kind).double().sum()) for one in found) for kind in ("aleatoric", "epistemic")
    )
    return 100 * epistemic / max(aleatoric + epistemic, 1e-12)


def plan(options: RunOptions) -> Plan:
    """Plan every strength in both spaces, on digits and on photographs."""
    plans = [grid.plan(options) for grid in GRIDS]
    cells = [cell for one in plans for cell in one.cells]
    notes = (
        f"A strength is chosen on {COUNT:,} training images against {UNSEEN}, which no table reports.",
        "But for strength and space, heads are those of every table: " + presets.HEADS_NOTE,
    )
    missing = list(dict.fromkeys(line for one in plans for line in one.missing))
    return Plan([_cell(cell) for cell in cells], notes, missing)


def _cell(cell: Cell) -> Cell:
    job = Job(sweep_strength, cell.job.about, cell.job.needs, cell.job.code)
    return Cell(job, {**cell.labels, **cell.job.about.get("recipe", {})})


def _gains(outcomes: Sequence[Outcome]) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return, for each row of each network, its labels and means of its numbers; detection relative to LL-E."""
    found = []
    for (network,), ones in groups(outcomes, "network").items():
        base = _means([one for one in ones if one.labels["method"] == "LL-E"])
        for (row,), seeds in groups([one for one in ones if one.labels["repulsion"]], "row").items():
            means = _means(seeds)
            gain = {key: means[key] - base[key] for key in DETECTION if key in means and key in base}
            found.append(({**seeds[0].labels, "network": network, "row": row}, {**means, "gain": sum(gain.values())}))
    return found


def _means(seeds: Sequence[Outcome]) -> dict[str, float]:
    names = seeds[0].figures if seeds else ()
    return {key: statistics.fmean(one.figures[key] for one in seeds) for key in names}


def made_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Show what would be chosen for each set, and every row."""
    columns = [
        Column("strength", 4),
        Column("validation AUROC", 1),
        Column("gain over LL-E", 2),
        Column("ECE", 2),
    ]
    chosen = Table("network, set, space", columns, title="The strength with the largest validation AUROC")
    gains = _gains(outcomes)
    for key in dict.fromkeys((one["network"], one["repulsion"], one["on"]) for one, _ in gains):
        alike = [(o, m) for o, m in gains if (o["network"], o["repulsion"], o["on"]) == key]
        labels, means = max(alike, key=lambda pair: pair[1][VALIDATION])
        chosen.add(", ".join(key), [[labels["strength"], means[VALIDATION], means["gain"], means["ece"]]])
    shown = (
        tables.INSIDE
        | tables.DIGITS
        | tables.MEAN
        | {SHARE: Column("epistemic, %", 1, "", "Share of the uncertainty about other sets that is epistemic.")}
        | {VALIDATION: Column("validation", 1, "", "AUROC to choose by."), LOSS: Column("NLL there", 3)}
    )
    return [*([chosen] if chosen.rows else []), *tables.methods_as_rows(outcomes, shown, "Every strength")]


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw, for each network and set, what repulsion changes against its strength, in both spaces."""
    gains = _gains(outcomes)
    panels = []
    for network, name in dict.fromkeys((one["network"], one["repulsion"]) for one, _ in gains):
        lines = []
        for space in SPACES:
            at = [(o, m) for o, m in gains if (o["network"], o["repulsion"], o["on"]) == (network, name, space)]
            points = [(math.log10(labels["strength"]), round(means["gain"], 3)) for labels, means in at]
            lines += [Line(space, [x for x, _ in points], [y for _, y in points])] if points else []
        panels.append(Lines(f"{network}: {name}", "log10 of the strength", "AUROC minus LL-E's", lines))
    caption = (
        "What repulsion changes: AUROC minus that of LL-E (digits: of ambiguous digits against other sets; "
        "photographs: mean over sets), against the strength, with kernels on probabilities or on logits."
    )
    alt = "Curves of the gain in AUROC against the logarithm of the strength, one panel per network and repulsion set."
    return [Figure("strength", caption, alt, panels, columns=3)] if panels else []


EXPERIMENT = Experiment(
    "strength", "Where does repulsion help, and where does it hurt?", "beyond the paper", plan, made_tables, figures
)
