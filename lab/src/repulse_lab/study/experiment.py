"""An experiment: what it runs in each preset, and how what it finds becomes tables and figures.

    plan(options)      -> the cells: jobs, each with labels that say what it is in the tables
    tables(outcomes)   -> tables in the paper's form
    figures(outcomes)  -> figures

The key of a cell does not know the experiment it is in: what two experiments share is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repulse.errors import check_choice
from repulse.evaluation.table import Table
from repulse_lab.jobs.job import Job, Result
from repulse_lab.study.figures import Figure
from repulse_lab.study.problems import is_there

PRESETS = ("cpu", "paper")
Labels = Mapping[str, str | int | None]


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run.

    Attributes:
        preset: "cpu", the largest honest version for two cores, or "paper", the paper's own.
        data: folder of the data sets.
        seeds: maximum number of seeds; None for as many as the preset says.
    """

    preset: str
    data: Path
    seeds: int | None = None

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)

    @property
    def small(self) -> bool:
        """Check whether this is the version for a few cores."""
        return self.preset == "cpu"

    def count(self, cpu: int, paper: int) -> int:
        """Return the number of seeds: those that were asked for, and at most those of the preset."""
        most = cpu if self.small else paper
        return min(self.seeds or most, most)

    def has(self, name: str, split: str) -> bool:
        """Check whether a data set is there."""
        return is_there(self.data, (name, split))


@dataclass(frozen=True, eq=False)
class Cell:
    """A job, and what it is in the tables: "network", "method", "repulsion", "layers", "seed", and whatever else."""

    job: Job
    labels: Labels


@dataclass(frozen=True, eq=False)
class Outcome:
    """A cell that was run, with what it found."""

    labels: Labels
    key: str
    result: Result

    @property
    def figures(self) -> dict[str, float]:
        """Return numbers by name."""
        return self.result.get("figures", {})


@dataclass(frozen=True, eq=False)
class Plan:
    """What an experiment would run.

    Attributes:
        cells: in the order of its tables.
        notes: what stands in for what, and how this preset is smaller than the paper's, one sentence each.
        missing: what cannot be run, and which data is not there.
    """

    cells: Sequence[Cell]
    notes: Sequence[str] = ()
    missing: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Experiment:
    """One table or figure.

    Attributes:
        name: on the command line.
        title: the question, in one line.
        source: where it is in the paper ("Table 1"), or "beyond the paper".
        plan: from options to cells.
        tables: from outcomes to tables.
        figures: from outcomes to figures.
    """

    name: str
    title: str
    source: str
    plan: Callable[[RunOptions], Plan]
    tables: Callable[[Sequence[Outcome]], list[Table]] = field(default=lambda outcomes: [])
    figures: Callable[[Sequence[Outcome]], list[Figure]] = field(default=lambda outcomes: [])


def groups(outcomes: Sequence[Outcome], *labels: str) -> dict[tuple[Any, ...], list[Outcome]]:
    """Group outcomes by some of their labels, in the order in which they come; a group usually differs by seed."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(tuple(outcome.labels.get(label) for label in labels), []).append(outcome)
    return found
