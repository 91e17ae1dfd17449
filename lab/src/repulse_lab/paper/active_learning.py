"""Active learning among ambiguous digits: who spends labels on what can be learned?"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from repulse.evaluation.table import Column, Table
from repulse.recipe import PAPER_TRAINING
from repulse_lab.jobs.job import Job
from repulse_lab.paper.labelling import RECIPES, REPELLED, STRATEGIES, buy
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Line, Lines
from repulse_lab.study.training import make_ambiguous_digits

CPU: dict[str, Any] = {
    "network": {"name": "lenet"},
    "schedule": {"epochs": 1, "lr": 5e-3, "policy": "onecycle", "optimizer": "adam", "batch_size": 32},
    "draws": 3200,
    "clean": 1000,
    "ambiguous": 6000,
    "labels": 10,
    "rounds": 20,
    "test": 5,
    "head steps": 300,
    "heads": {method: {"lr": 5e-3} for method in RECIPES},
}
PAPER: dict[str, Any] = CPU | {
    "network": {"name": "resnet18", "spectral_norm": 3.0, "mod": True},
    "schedule": {"epochs": 1, "lr": 1e-3, "optimizer": "adam", "batch_size": 64},
    "draws": 20 * 5056,
    "rounds": 55,
    "test": 1,
    "head steps": 30 * 5056 // 128,
    "heads": {
        method: {key: PAPER_TRAINING[key] for key in ("lr", "decay", "prior_std")} for method in ("LL-E", "fs-RLL-E")
    },
}
"""Network, its training on draws of what is labelled, clean digits, ambiguous images and labels of each in the pool,
rounds of buying, which part of the test data is judged on, and how heads are trained."""
ONCE: dict[str, Any] = {"clean": 100, "labels": 1}
"""A pool in the same proportion in which every image is one pair, as in anybody's pool but the paper's."""
ONCE_TOO = ("DE-3 MI", "MAP", "DDU", "LL-E MI", "fs-RLL-E MI", "repulse MI", "repulse BatchBALD", "random")
"""Strategies that are tried on that one too."""

COMMON = (
    "AmbiguousMNIST is built here after the published recipe, unless its files are in the data folder.",
    "The pool is the paper's: 1,000 clean digits, 6,000 ambiguous images with ten labels each. All ten pairs of an "
    "image have the same score, so that a ranking often buys the same image several times. A second pool holds 100 "
    "clean digits and 6,000 ambiguous images with one label each.",
    "Heads repel on 10,000 pairs of the pool that are not bought; fs-RLL-E with strength 0.1, as in the paper.",
    "The paper has no rows for repulse, our default recipe on the penultimate features, and for random choice.",
)
SMALLER = (
    "LeNets stand in for ResNet-18, each trained for 100 steps of 32 images, one-cycle Adam up to 0.005, instead of 20 "
    "epochs of 5,056 draws; on clean digits this is about as accurate as 600 steps of 64 at 0.001.",
    "20 rounds of five labels after the first twenty, 120 in all, instead of 295; three runs instead of five.",
    "Heads are fitted for 300 steps with a learning rate of 0.005, whose product is about that of the default.",
    "Accuracy is that of a fixed random fifth of the test set: 2,000 clean digits and 12,000 ambiguous pairs.",
)


def plan(options: RunOptions) -> Plan:
    """Plan every strategy, from the same pool and the same first labels in each run."""
    size, label = (CPU, "LeNet") if options.small else (PAPER, "ResNet-18")
    notes = (*SMALLER, *COMMON) if options.small else COMMON
    if not (options.has("mnist", "train") and options.has("mnist", "test")):
        return Plan([], notes, ["MNIST is not in the data folder: nothing can be run."])
    needs = (Job(make_ambiguous_digits, {}),)
    pools = [(label, size, tuple(STRATEGIES)), (f"{label}, images once", size | ONCE, ONCE_TOO)]
    cells = []
    for network, how, strategies in pools:
        for strategy in strategies:
            repulsion = "pool" if STRATEGIES[strategy][0] in REPELLED else None
            labels = {"network": network, "method": strategy, "repulsion": repulsion}
            labels |= {} if network == label else {"beyond": "the paper"}
            jobs = [Job(buy, {**how, "strategy": strategy, "seed": i}, needs) for i in range(options.count(3, 5))]
            cells += [Cell(job, {**labels, "seed": seed}) for seed, job in enumerate(jobs)]
    return Plan(cells, notes)


COLUMNS = {
    "final accuracy": Column("accuracy", 1, "higher", "With all labels bought, on clean and ambiguous test pairs."),
    "clean accuracy": Column("clean", 1, "higher", "With all labels bought, on clean test digits."),
    "mean accuracy": Column("mean", 1, "higher", "Mean over all rounds of the accuracy on all test pairs."),
    "mean clean accuracy": Column("mean clean", 1, "higher", "Mean over all rounds of that on clean test digits."),
    "ambiguous share": Column("ambiguous", 1, "lower", "Share of what was bought that is ambiguous."),
    "images": Column("images", 1, "higher", "Share of what was bought that are different images."),
}


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Make one table per network with one row per strategy."""
    made = []
    for (network,), found in groups(outcomes, "network").items():
        labels = int(max(one.result["curves"]["samples"][-1] for one in found))
        table = Table("strategy", list(COLUMNS.values()), title=f"Active learning, {network}, {labels} labels")
        table.footnote = (
            "All in per cent. PE buys by predictive entropy, MI by mutual information, MAP by the entropy of one "
            "network, DDU by feature density. Of the pool, 98.4 per cent are ambiguous."
        )
        for (method,), seeds in groups(found, "method").items():
            table.add(str(method), [[seed.figures[key] for key in COLUMNS] for seed in seeds])
        made.append(table)
    return made


ROWS = {
    "epistemic": ("DE-3 MI", "DDU", "LL-E MI", "fs-RLL-E MI", "random"),
    "entropy": ("DE-3 PE", "MAP", "LL-E PE", "fs-RLL-E PE", "random"),
    "ours": ("DE-3 MI", "repulse BatchBALD", "repulse MI", "fs-RLL-E MI", "random"),
}
"""Strategies that are drawn together, few enough to tell them apart."""
PANELS = {
    "accuracy": "all test pairs",
    "clean accuracy": "clean test digits",
    "ambiguous share": "ambiguous among bought",
}


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw accuracy and what was bought against the number of labels: rows of three panels."""
    made = []
    for (network,), found in groups(outcomes, "network").items():
        seeds = {str(method): several for (method,), several in groups(found, "method").items()}
        panels = []
        for title, methods in ROWS.items():
            shown = [method for method in methods if method in seeds]
            for curve, what in PANELS.items():
                lines = [_line(method, seeds[method], curve) for method in shown]
                unit = "ambiguous, %" if curve == "ambiguous share" else "accuracy, %"
                panels.append(Lines(f"{what}, {title}", "labels", unit, lines, y_range=_range(found, curve)))
        ends = "; ".join(
            f"{method} ends at {statistics.fmean(one.figures['final accuracy'] for one in several):.1f} per cent"
            for method, several in seeds.items()
        )
        caption = (
            f"{network}: accuracy against the number of labels, and how many of those bought are ambiguous; mean and "
            f"standard deviation over runs. First row: the paper's strategies that ask for what is not "
            f"known; second: those that ask for what is uncertain for any reason; third: ours next to two of them."
        )
        alt = f"Rising accuracy curves of {len(seeds)} strategies. {ends}."
        made.append(
            Figure(
                f"active-learning-{re.sub(r'[^a-z]+', '-', str(network).lower())}",
                caption,
                alt,
                panels,
                columns=len(PANELS),
            )
        )
    return made


def _line(name: str, seeds: Sequence[Outcome], curve: str) -> Line:
    """Return the mean over seeds and, where there are several, a band of one standard deviation."""
    start = 1 if curve == "ambiguous share" else 0  # before anything is bought there is no share
    runs = [one.result["curves"][curve][start:] for one in seeds]
    x = seeds[0].result["curves"]["samples"][start:]
    return Line.over(name, x, runs)


def _range(outcomes: Sequence[Outcome], curve: str) -> tuple[float, float]:
    """Return limits that are the same for all panels of a kind, so that rows can be compared."""
    if curve == "ambiguous share":
        return 0.0, 105.0
    values = [value for one in outcomes for value in one.result["curves"][curve]]
    return 5.0 * (min(values) // 5), 5.0 * (max(values) // 5 + 1)


EXPERIMENT = Experiment(
    name="active-learning",
    title="Among ambiguous digits, whose doubt finds the labels that are worth buying?",
    source="Figure 5",
    plan=plan,
    tables=tables,
    figures=figures,
)
