"""Grids: every method of a list on every network of a list, on one problem.

Most tables of the paper are such grids. A grid is a plain description; `plan` turns it into cells.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repulse.baselines import METHODS, DeepEnsemble, LastLayerEnsemble
from repulse.recipe import PAPER_TRAINING
from repulse_lab.jobs.job import Job
from repulse_lab.study.cells import measure
from repulse_lab.study.experiment import Cell, Plan, RunOptions
from repulse_lab.study.features import features_job
from repulse_lab.study.presets import REPULSION
from repulse_lab.study.problems import problem_of
from repulse_lab.study.training import Network, Networks, ambiguous_digits_job

EVERY_METHOD = {f"repulse.baselines.{name}" for name in ("contract", "registry", "resources")}
"""Modules that every method uses; of them, only the contract decides results."""
Member = tuple[Network, int]
"""A network of a deep ensemble, and its seed."""
REPULSIVE = "repulsive DE"
"""Networks that are trained together, with seeds that no other network has."""


@dataclass(frozen=True)
class Row:
    """A method as a row.

    Attributes:
        method: as in `repulse.baselines.METHODS`, or "DE" for a deep ensemble of the grid's networks, or "repulsive DE"
            for networks that are trained together.
        repulsion: the set to repel on.
        layers: the features that the method sees: "last", or "auto" with taps.
        recipe: changes to the recipe of heads.
        label: in tables, if not made of the others.
    """

    method: str
    repulsion: str | None = None
    layers: str = "last"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or (self.method if self.repulsion is None else f"{self.method}, {self.repulsion}")


@dataclass(frozen=True)
class Grid:
    """What is run.

    Attributes:
        problem: name of the problem.
        rows: methods.
        cpu: networks of the cpu preset.
        paper: networks of the paper preset.
        notes: what stands in for what in the cpu preset.
    """

    problem: str
    rows: Sequence[Row]
    cpu: Networks
    paper: Networks
    notes: Sequence[str] = ()

    def plan(self, options: RunOptions) -> Plan:
        """Return the cells, and what cannot be run."""
        data, networks = options.data, self.cpu if options.small else self.paper
        problem, notes = problem_of(self.problem), self.notes if options.small else ()
        lacking = problem.missing(data, [one.name for one in networks.networks if not one.schedule])
        if lacking:
            return Plan([], notes, [f"All of it: {lacking}."])
        repelled = problem.repelled(data)
        rows = [row for row in self.rows if row.repulsion is None or row.repulsion in repelled]
        absent = [name for name in problem.sets if name not in problem.judged(data)]
        missing = [f"{name} is not in the data folder, so neither judged nor repelled on." for name in absent]
        missing += [f"the row {row.name}, for want of {row.repulsion}." for row in self.rows if row not in rows]
        cells = [
            cell
            for network in networks.networks
            for row in rows
            for cell in self._cells(network, row, networks, options)
        ]
        return Plan(cells, notes, missing)

    def _cells(self, network: Network, row: Row, networks: Networks, options: RunOptions) -> list[Cell]:
        labels = {"network": network.label, "method": row.method, "repulsion": row.repulsion, "layers": row.layers}
        if row.method in ("DE", REPULSIVE):
            ensembles = self._ensembles(network, row, networks, options)
            job = deep_ensemble_job if row.method == "DE" else repulsive_ensemble_job
            named = [(f"{row.method}-{len(members)}", members) for members in ensembles if len(members) > 1]
            return [
                Cell(
                    job(self.problem, members, row, options.data),
                    {**labels, "method": name, "row": row.name.replace(row.method, name), "seed": seed},
                )
                for seed, (name, members) in enumerate(named)
            ]
        most = networks.count(network)
        kind = METHODS[row.method]
        seeds = min(options.seeds or most, most) if network.schedule or kind.random else 1
        from_paper = issubclass(kind, LastLayerEnsemble) and kind.in_paper
        recipe = PAPER_TRAINING if from_paper and not options.small else {}
        recipe = recipe | (REPULSION.get(self.problem, {}) if row.method == "fs-RLL-E" else {}) | dict(row.recipe)
        return [
            Cell(
                cell_job(self.problem, network, row, seed, options.data, recipe),
                {**labels, "row": row.name, "seed": seed},
            )
            for seed in range(seeds)
        ]

    @staticmethod
    def _ensembles(network: Network, row: Row, networks: Networks, options: RunOptions) -> list[list[Member]]:
        """Return the members of each deep ensemble: networks that are apart or, of few, all but one, each in turn."""
        if not network.schedule:
            return [[(one, 0) for one in networks.networks]]
        count, size = networks.count(network), networks.members
        if row.method == REPULSIVE:
            chosen = [range(size or count)]
        elif size:
            chosen = [range(first, first + size) for first in range(0, max(count - size, 0) + 1, size)]
        elif count > 2:
            chosen = [[seed for seed in range(count) if seed != left] for left in range(count)]
        else:
            chosen = [range(count)]
        return [[(network, seed) for seed in seeds] for seeds in chosen[: options.seeds]]


def cell_job(problem: str, network: Network, row: Row, seed: int, data: Path, recipe: Mapping[str, Any]) -> Job:
    """Return the job of a method on a network; a trained network has the seed of the method."""
    about: dict[str, Any] = {"problem": problem, "network": network.about, "method": row.method}
    about |= {"network_seed": seed if network.schedule else 0, "seed": seed, "layers": row.layers}
    about |= {"repulsion": row.repulsion} if row.repulsion else {}
    about |= {"recipe": dict(recipe)} if recipe else {}
    return Job(measure, about, (features_job(problem, network, seed, data),), code_of(row.method))


def code_of(method: str) -> tuple[str, ...]:
    """Return the module of a method, whose code decides what it finds, and those of other methods that it uses."""
    if method not in METHODS:
        return (DeepEnsemble.__module__,)
    own = sys.modules[METHODS[method].__module__]
    others = {getattr(thing, "__module__", None) for thing in vars(own).values()}
    others = {name for name in others if name and name.startswith("repulse.baselines.")}
    return (own.__name__, *sorted(others - {own.__name__, *EVERY_METHOD}))


def deep_ensemble_job(problem: str, members: Sequence[Member], row: Row, data: Path) -> Job:
    """Return the job of a deep ensemble, of one network with several seeds or of different ones."""
    about: dict[str, Any] = {"problem": problem, "method": f"DE-{len(members)}", "seed": 0}
    about["members"] = [{"network": one.about, "seed": seed} for one, seed in members]
    needs = {job.key: job for job in (features_job(problem, one, seed, data) for one, seed in members)}
    return Job(measure, about, tuple(needs.values()), code_of(row.method))


def repulsive_ensemble_job(problem: str, members: Sequence[Member], row: Row, data: Path) -> Job:
    """Return the job of networks that are trained together and repel each other, on a set or in their parameters."""
    about: dict[str, Any] = {
        "problem": problem,
        "method": f"{REPULSIVE}-{len(members)}",
        "network": members[0][0].about,
    }
    about |= {"seeds": [100 + i for i in range(len(members))], "files": problem_of(problem).files(data)}
    about |= {"repulsion": row.repulsion} if row.repulsion else {}
    return Job(measure, about, ambiguous_digits_job(problem), code_of(row.method))
