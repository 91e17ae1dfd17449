"""How honest probabilities stay while images get worse: CIFAR-10-C, 19 corruptions at five severities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repulse.evaluation.table import Column, Table
from repulse_lab.data.corruptions import KINDS, SEVERITIES
from repulse_lab.jobs.job import Job
from repulse_lab.paper import cifar100
from repulse_lab.paper.corrupted import CLEAN, SHOWN, corruption_job, judge_under_corruption, words
from repulse_lab.study import presets
from repulse_lab.study.cells import networks_of
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Line, Lines
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.tables import methods_as_rows

IMAGES = {"cpu": 1000, "paper": 5000}
"""Number of test images that are judged; on the others, clean, is calibrated what calibrates."""
ROWS = (
    *(Row(method) for method in ("MAP", "SNGP", "LL-Laplace", "DE", "LL-E")),
    *(Row("fs-RLL-E", repulsion) for repulsion in ("training data", "16 patches", "Tiny ImageNet")),
    Row("repulse", "Tiny ImageNet", label="repulse, Tiny ImageNet, without taps"),
    Row("repulse", "Tiny ImageNet", "auto"),
)
GRIDS = {
    "CIFAR-10-C": Grid(
        "cifar10",
        ROWS,
        presets.PUBLISHED,
        presets.PAPER_WIDE,
        ("The published ResNet-20 stands in for a trained WRN-28-10 and, with the published ResNet-32, for DE-5.",),
    ),
    "CIFAR-100-C": Grid("cifar100", ROWS, cifar100.GRID.cpu, presets.PAPER_WIDE, cifar100.GRID.notes),
}
METRICS = {
    "nll": Column("NLL", 3, "lower", "Negative log-likelihood, in nats."),
    "ece": Column("ECE", 2, "lower", "Expected calibration error in 15 bins of equal width, in per cent."),
    "accuracy": Column("accuracy", 1, "higher", "Share of right predictions, in per cent."),
    "epistemic": Column("epistemic uncertainty", 3, "", "Mutual information of class and member, in nats."),
}
LABELS = {"nll": "NLL (nats)", "ece": "ECE (%)", "epistemic": "epistemic uncertainty (nats)"}


def plan(options: RunOptions) -> Plan:
    """Plan every method on both problems, as far as their data is there."""
    cells: list[Cell] = []
    notes = [
        "Methods are fitted on clean training images. What calibrates (SNGP's factor, the centre of repulse) is chosen "
        "on clean test images that are not judged; the other rows see no test label.",
        f"Heads: {presets.heads_note('cifar10')}",
    ]
    missing: list[str] = []
    if options.small:
        notes.append(
            f"The first {IMAGES['cpu']:,} test images under each corruption; ECE of so few is a little larger."
        )
    for name, grid in GRIDS.items():
        planned = grid.plan(options)
        missing += [f"{name}: {one.removeprefix('All of it: ')}" for one in planned.missing if "judged" not in one]
        if planned.cells:
            published = all(options.has(f"{grid.problem}-c", f"{kind}-1") for kind in KINDS)
            made = () if published else ("its published files are not in the data folder, so it is made here.",)
            notes += [f"{name}: {note}" for note in (*planned.notes, *made)]
            what = {"count": IMAGES[options.preset], "published": published}
            base = planned.cells[0].labels["network"]  # the others are only members of a deep ensemble
            cells += [_cell(cell, name, what) for cell in planned.cells if cell.labels["network"] == base]
    return Plan(cells, notes, missing)


def _cell(cell: Cell, name: str, what: Mapping[str, Any]) -> Cell:
    """Return the cell of a grid with corrupted images in the place of out-of-distribution ones."""
    about = {**cell.job.about, **what}
    kept = [corruption_job(about, *network, kind) for network in networks_of(about) for kind in (CLEAN, *KINDS)]
    job = Job(judge_under_corruption, about, (*cell.job.needs, *kept), cell.job.code)
    return Cell(job, {**cell.labels, "collection": name})


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Make, for each metric, a table of methods by severity."""
    made = []
    for (name,), found in groups(outcomes, "collection").items():
        for metric, column in METRICS.items():
            heads = {f"{metric} severity {s}": str(s) if s else CLEAN for s in (0, *SEVERITIES)} | {
                f"{metric} mean": "mean"
            }
            columns = {key: Column(head, column.digits, column.better, column.help) for key, head in heads.items()}
            shown = [one for one in found if f"{metric} mean" in one.figures]
            made += methods_as_rows(shown, columns, f"{name}, {column.name} by severity") if shown else []
    return made


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw curves over severities, then corruptions one by one."""
    made = []
    for (name,), found in groups(outcomes, "collection").items():
        made += [_curves(name, found), *(_one_by_one(name, found, metric) for metric in ("ece", "nll"))]
    return made


def _curves(name: str, outcomes: Sequence[Outcome]) -> Figure:
    heads = [one for one in outcomes if one.labels["method"] in ("LL-E", "fs-RLL-E")]
    ours = [one for one in outcomes if one.labels["method"] == "repulse"]
    others = [one for one in outcomes if one not in heads and one not in ours]
    others.sort(key=lambda one: "epistemic mean" not in one.figures)  # colours are those of the row's other panels
    panels = [
        _panel(title, [*ours, *some], metric)
        for title, some in (("other methods", others), ("heads", heads))
        for metric in LABELS
    ]
    caption = (
        f"{name}: NLL, calibration error and epistemic uncertainty by severity of corruption (0: clean), mean over 19 "
        "corruptions; bands are standard deviations over seeds. Above other methods, below heads and where they repel."
    )
    alt = "Curves of NLL, ECE and epistemic uncertainty, all of which grow with the severity of the corruption."
    return Figure(f"severity-{name.lower()}", caption, alt, panels, columns=3)


def _one_by_one(name: str, outcomes: Sequence[Outcome], metric: str) -> Figure:
    rows = ("MAP", "LL-E", "fs-RLL-E, Tiny ImageNet")
    shown = [one for one in outcomes if one.labels["method"] == "repulse"]
    shown += [one for one in outcomes if one.labels["row"] in rows or str(one.labels["method"]).startswith("DE")]
    mean = _panel("mean over corruptions", shown, metric)
    each = [_panel(words(kind), shown, metric, kind) for kind in KINDS]
    caption = (
        f"{name}: {METRICS[metric].name} under each corruption at severities 1, 3 and 5 (0: clean), for the methods of "
        "the first panel."
    )
    alt = f"Twenty small panels of {METRICS[metric].name} against severity, one a corruption and one of their mean."
    return Figure(f"corruptions-{name.lower()}-{metric}", caption, alt, [mean, *each], columns=5)


def _panel(title: str, outcomes: Sequence[Outcome], metric: str, kind: str | None = None) -> Lines:
    """Draw a line for each method that has the metric: the mean or, without names, under one corruption."""
    keys = {severity: f"{metric} severity {severity}" for severity in ((0,) if kind else (0, *SEVERITIES))}
    keys |= {severity: f"{metric} {words(kind)} {severity}" for severity in SHOWN} if kind else {}
    lines = []
    for (row,), seeds in groups([one for one in outcomes if keys[0] in one.figures], "row").items():
        runs = [[one.figures[key] for key in keys.values()] for one in seeds]
        lines.append(Line.over("" if kind else str(row), list(keys), runs))
    return Lines(title, "severity", LABELS[metric], lines)


EXPERIMENT = Experiment(
    name="corruption",
    title="Calibration under corruption: does doubt grow as images get worse?",
    source="Figure 6 and Appendix B.1",
    plan=plan,
    tables=tables,
    figures=figures,
)
