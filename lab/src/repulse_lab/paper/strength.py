"""Where repulsion helps and where it hurts: its strength, and the space in which heads repel each other.

The paper's text leaves both open. Each is chosen on images that no table reports: the largest AUROC of training images
against synthetic images, which are made of the training images, among strengths that hardly cost likelihood on the
labels of these training images. (Without that condition a strength is chosen that ruins calibration.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
COST = 1.01
"""Largest NLL of the labels that are chosen on, relative to that of heads without repulsion."""
TUNED_ON = ("letters", "Tiny ImageNet", "16 patches")
"""Sets that are meant to help, for which one strength and space is chosen."""
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
        f"A strength is chosen on {COUNT:,} training images against {UNSEEN}, which no table reports: the largest "
        f"AUROC among strengths with which the NLL of these training labels is at most {100 * (COST - 1):.0f} % above "
        "that of LL-E.",
        "Where the smallest strength is chosen, heads without repulsion are as good.",
        "But for strength and space, heads are those of other tables; of photographs these have "
        + presets.heads_note("cifar10"),
    )
    missing = list(dict.fromkeys(line for one in plans for line in one.missing))
    return Plan([_cell(cell) for cell in cells], notes, missing)


def _cell(cell: Cell) -> Cell:
    job = Job(sweep_strength, cell.job.about, cell.job.needs, cell.job.code)
    return Cell(job, {**cell.labels, **cell.job.about.get("recipe", {})})


@dataclass(frozen=True)
class Tried:
    """A strength in a space, with one set on one network: means over seeds.

    Attributes:
        key: network, set, space and strength.
        means: of its figures, and "gain", of detection over heads without repulsion.
        cost: NLL of the labels that are chosen on, relative to these heads.
    """

    key: tuple[str, str, str, float]
    means: Mapping[str, float]
    cost: float

    @property
    def allowed(self) -> bool:
        """Return whether it hardly costs likelihood."""
        return self.cost <= COST

    @property
    def problem(self) -> str:
        return "digits" if "ambiguous mean" in self.means else "photographs"


def tried(outcomes: Sequence[Outcome]) -> list[Tried]:
    """Return what was tried, each compared with heads without repulsion on the same networks."""
    found = []
    for (network,), ones in groups(outcomes, "network").items():
        base = {one.labels["seed"]: one.figures for one in ones if one.labels["method"] == "LL-E"}
        repelled = [one for one in ones if one.labels["repulsion"] and one.labels["seed"] in base]
        for (name, space, strength), seeds in groups(repelled, "repulsion", "on", "strength").items():
            means = {key: statistics.fmean(one.figures[key] for one in seeds) for key in seeds[0].figures}
            before = {key: statistics.fmean(base[one.labels["seed"]][key] for one in seeds) for key in means}
            means["gain"] = sum(means[key] - before[key] for key in DETECTION if key in means)
            found.append(Tried((str(network), name, space, strength), means, means[LOSS] / before[LOSS]))
    return found


def best(several: Sequence[Tried]) -> Tried | None:
    """Return the one with the largest AUROC on what is chosen on, of those that hardly cost likelihood."""
    return max((one for one in several if one.allowed), key=lambda one: one.means[VALIDATION], default=None)


def best_of_all(several: Sequence[Tried]) -> tuple[str, float] | None:
    """Return the space and strength with the largest mean AUROC over networks and sets, allowed with each of them."""
    scores = {}
    for setting in dict.fromkeys(one.key[2:] for one in several):
        alike = [one for one in several if one.key[2:] == setting]
        if all(one.allowed for one in alike):
            scores[setting] = statistics.fmean(one.means[VALIDATION] for one in alike)
    return max(scores, key=scores.__getitem__, default=None)


def made_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Show what would be chosen for each set, what is chosen for all, and every row."""
    every = tried(outcomes)
    columns = [
        Column("strength", 4),
        Column("validation AUROC", 1),
        Column("gain over LL-E", 2),
        Column("ECE", 2),
        Column("epistemic, %", 1),
    ]
    of_each = Table("network, set, space", columns, title="The strength that is chosen for each set and space")
    for key in dict.fromkeys(one.key[:3] for one in every):
        chosen = best([one for one in every if one.key[:3] == key])
        if chosen is not None:
            of_each.add(", ".join(key), [_row(chosen)])
    of_all = Table("network, set", columns, title="One strength and space for all networks and sets that are to help")
    for problem in dict.fromkeys(one.problem for one in every):
        alike = [one for one in every if one.problem == problem]
        setting = best_of_all([one for one in alike if one.key[1] in TUNED_ON])
        for one in alike:
            if setting is not None and one.key[2:] == setting:
                of_all.add(f"{problem}, on {setting[0]}: {', '.join(one.key[:2])}", [_row(one)])
    shown = (
        tables.INSIDE
        | tables.DIGITS
        | tables.MEAN
        | {SHARE: Column("epistemic, %", 1, "", "Share of the uncertainty about other sets that is epistemic.")}
        | {VALIDATION: Column("validation", 1, "", "AUROC to choose by."), LOSS: Column("NLL there", 3)}
    )
    made = [table for table in (of_all, of_each) if table.rows]
    return [*made, *tables.methods_as_rows(outcomes, shown, "Every strength")]


def _row(one: Tried) -> list[float]:
    return [one.key[3], *(one.means[key] for key in (VALIDATION, "gain", "ece", SHARE))]


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw, for each network and set, what repulsion changes against its strength, in both spaces."""
    every = tried(outcomes)
    drawn = {
        "strength": (
            "gain",
            "AUROC minus LL-E's",
            "What repulsion changes: AUROC minus that of LL-E (digits: of ambiguous digits against other sets; "
            "photographs: mean over sets), against the strength, with kernels on probabilities or on logits.",
        ),
        "strength-epistemic": (
            SHARE,
            "epistemic share, %",
            "How much of the uncertainty about out-of-distribution sets is epistemic, against the strength.",
        ),
    }
    alt = "Curves against the logarithm of the strength, one panel per network and repulsion set."
    return [
        Figure(name, caption, alt, _panels(every, key, axis), columns=3)
        for name, (key, axis, caption) in drawn.items()
        if every
    ]


def _panels(every: Sequence[Tried], key: str, axis: str) -> list[Lines]:
    panels = []
    for network, name in dict.fromkeys(one.key[:2] for one in every):
        lines = []
        for space in SPACES:
            at = [one for one in every if one.key[:3] == (network, name, space)]
            x, y = [math.log10(one.key[3]) for one in at], [round(one.means[key], 3) for one in at]
            lines += [Line(space, x, y)] if at else []
        panels.append(Lines(f"{network}: {name}", "log10 of the strength", axis, lines))
    return panels


EXPERIMENT = Experiment(
    "strength", "Where does repulsion help, and where does it hurt?", "beyond the paper", plan, made_tables, figures
)
