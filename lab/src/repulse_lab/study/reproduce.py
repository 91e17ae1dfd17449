"""Run experiments and write what they found: plan, do the jobs, collect."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from repulse.evaluation.table import Column, Table
from repulse_lab.jobs.job import Job, Place, result
from repulse_lab.jobs.runner import Tally, in_order, minutes, missing, run
from repulse_lab.study import output
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Experiments in one preset, and where they are kept.

    Everything is below `out/PRESET`, so that presets never mix: a folder for each experiment, and `cache` with the
    results of all jobs, networks and features.

    Attributes:
        experiments: what to run.
        options: how.
        out: where to write.
    """

    experiments: Sequence[Experiment]
    options: RunOptions
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / self.options.preset

    def place(self, progress: bool = False) -> Place:
        return Place(self.options.data.resolve(), (self.folder / "cache").resolve(), progress)

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """Return what each experiment would run."""
        return {experiment.name: experiment.plan(self.options) for experiment in self.experiments}

    def dry_run(self, workers: int) -> Table:
        """Return what would run, and about how long it would take."""
        table = Table("experiment", [Column(name, 0) for name in ("cells", "jobs", "to do", "minutes", "not run")])
        place = self.place()
        every: list[Job] = []
        for name, plan in self.plans.items():
            jobs = [cell.job for cell in plan.cells]
            every += jobs
            todo = missing(jobs, place)
            row = [len(jobs), len(in_order(jobs)), len(todo), minutes(todo, workers), len(plan.missing)]
            table.add(name, [[float(value) for value in row]])
        todo = missing(every, place)
        row = [len(every), len(in_order(every)), len(todo), minutes(todo, workers), 0]
        table.add("together, what they share once", [[float(value) for value in row]])
        return table

    def run(
        self,
        workers: int = 0,
        scheduler: str | None = None,
        progress: bool = True,
        choose: Callable[[Sequence[Cell]], Sequence[Cell]] = lambda cells: cells,
    ) -> Tally:
        """Do all jobs that are not done yet.

        Args:
            workers: see `repulse_lab.jobs.runner.run`.
            scheduler: likewise.
            progress: likewise.
            choose: from the cells of an experiment to those that are wanted now.
        """
        jobs = [cell.job for plan in self.plans.values() for cell in choose(plan.cells)]
        return run(jobs, self.place(), workers=workers, scheduler=scheduler, progress=progress)

    def write(self, command: str) -> list[output.Findings]:
        """Write tables and figures of all cells that are done."""
        found = []
        for experiment, plan in zip(self.experiments, self.plans.values(), strict=True):
            place = self.place()
            done = [cell for cell in plan.cells if cell.job.done(place)]
            outcomes = [Outcome(cell.labels, cell.job.key, result(cell.job, place)) for cell in done]
            unfinished = [f"{len(plan.cells) - len(done)} of {len(plan.cells)} cells are not done yet."]
            lacking = [*plan.missing, *(unfinished if len(done) < len(plan.cells) else [])]
            about = {"preset": self.options.preset, "command": command, "date": time.strftime("%Y-%m-%d")}
            spent = _spent([cell.job for cell in done], place)
            findings = output.collect(experiment, outcomes, **about, minutes=spent, notes=plan.notes, missing=lacking)
            output.write(findings, self.folder / experiment.name)
            found.append(findings)
        return found


def _spent(jobs: Sequence[Job], place: Place) -> float:
    """Return the minutes of one core that jobs and what they need have taken."""
    paths = [job.path(place) for job in in_order(jobs) if job.done(place)]
    return round(sum(json.loads(path.read_text(encoding="utf-8"))["seconds"] for path in paths) / 60, 1)
