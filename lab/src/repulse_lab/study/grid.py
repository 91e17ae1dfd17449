"""Grids: every method of a list on every network of a list, on one collection of images.

Most tables of the paper are such grids. A grid is a plain description; `plan` turns it into cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repulse.baselines import METHODS, LastLayerEnsemble
from repulse.evaluation.table import Column, Table
from repulse.recipe import PAPER_TRAINING
from repulse_lab.jobs.job import Job
from repulse_lab.study.cells import MAIN, code_of, measure
from repulse_lab.study.collections import FOREIGN, SETS, TRAINING, repulsion_of, sets_of, there
from repulse_lab.study.experiment import Cell, Outcome, Plan, Setting, groups
from repulse_lab.study.features import features_job
from repulse_lab.study.training import PUBLISHED, Network


@dataclass(frozen=True)
class Row:
    """A method as a row.

    Attributes:
        method: as in `repulse.baselines.METHODS`, or "DE" for a deep ensemble of the grid's networks.
        repulsion: the set to repel on.
        layers: what the method sees of the network.
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
class Several:
    """Networks of a preset.

    Attributes:
        networks: in the order of the table.
        seeds: how many of each are trained; of published ones, how often heads are fitted.
        members: how many networks are in a deep ensemble of each, if not as many as there are seeds; for published
            networks, all of them are.
    """

    networks: Sequence[Network]
    seeds: Mapping[str, int] | int
    members: int | None = None

    def count(self, network: Network) -> int:
        return self.seeds if isinstance(self.seeds, int) else self.seeds[network.label]


@dataclass(frozen=True)
class Grid:
    """What is run.

    Attributes:
        collection: "dirty-mnist", "cifar10" or "cifar100".
        rows: methods.
        cpu: networks of the cpu preset.
        paper: networks of the paper preset.
        notes: what stands in for what in the cpu preset.
    """

    collection: str
    rows: Sequence[Row]
    cpu: Several
    paper: Several
    notes: Sequence[str] = ()

    def plan(self, setting: Setting) -> Plan:
        """The cells, and what cannot be run."""
        data, several = setting.data, self.cpu if setting.small else self.paper
        lacking = _lacking(self.collection, several.networks, data)
        if lacking:
            return Plan([], self.notes if setting.small else (), [f"All of it: {lacking}."])
        can_repel = repulsion_of(self.collection, data)
        rows = [row for row in self.rows if row.repulsion is None or row.repulsion in can_repel]
        absent = [name for name in SETS[self.collection] if name not in sets_of(self.collection, data)]
        missing = [f"{name} is not in the data folder, so neither judged nor repelled on." for name in absent]
        missing += [f"the row {row.name}, for want of {row.repulsion}." for row in self.rows if row not in rows]
        cells = []
        for network in several.networks:
            seeds = min(setting.seeds or several.count(network), several.count(network))
            for row in rows:
                cells += self._cells(network, row, seeds, several, setting)
        return Plan(cells, self.notes if setting.small else (), missing)

    def _cells(self, network: Network, row: Row, seeds: int, several: Several, setting: Setting) -> list[Cell]:
        labels = {"network": network.label, "method": row.method, "repulsion": row.repulsion, "layers": row.layers}
        if row.method == "DE":
            count = several.members or several.count(network)  # of any number of seeds: it is one ensemble
            members = list(several.networks) if not network.schedule else [network] * count
            if len(members) < 2:
                return []
            named = {**labels, "method": f"DE-{len(members)}", "row": f"DE-{len(members)}", "seed": 0}
            return [Cell(deep_ensemble_job(self.collection, members, setting.data), named)]
        kind = METHODS[row.method]
        fixed = not kind.random and not network.schedule
        from_paper = issubclass(kind, LastLayerEnsemble) and kind.in_paper
        recipe = (PAPER_TRAINING if from_paper and not setting.small else {}) | dict(row.recipe)
        return [
            Cell(
                cell_job(self.collection, network, row, seed, setting.data, recipe),
                {**labels, "row": row.name, "seed": seed},
            )
            for seed in range(1 if fixed else seeds)
        ]


def cell_job(collection: str, network: Network, row: Row, seed: int, data: Path, recipe: Mapping[str, Any]) -> Job:
    """The job of a method on a network; a trained network has the seed of the method."""
    about: dict[str, Any] = {"collection": collection, "network": network.about, "method": row.method}
    about |= {"network_seed": seed if network.schedule else 0, "seed": seed, "layers": row.layers}
    about |= {"repulsion": row.repulsion} if row.repulsion else {}
    about |= {"recipe": dict(recipe)} if recipe else {}
    return Job(measure, about, (features_job(collection, network, seed, data),), code_of(row.method))


def deep_ensemble_job(collection: str, members: Sequence[Network], data: Path) -> Job:
    """The job of a deep ensemble, of one network with as many seeds or of different ones."""
    about: dict[str, Any] = {"collection": collection, "method": f"DE-{len(members)}", "seed": 0}
    about["members"] = [{"network": one.about, "seed": i if one.schedule else 0} for i, one in enumerate(members)]
    needs = {job.key: job for job in (features_job(collection, one, i, data) for i, one in enumerate(members))}
    return Job(measure, about, tuple(needs.values()), code_of("DE"))


def _lacking(collection: str, networks: Sequence[Network], data: Path) -> str:
    """What a collection cannot do without and does not have."""
    if not there(data, TRAINING[collection]):
        return f"{TRAINING[collection][0]} is not in the data folder"
    files = [data / "weights" / PUBLISHED[network.name] for network in networks if not network.schedule]
    return next(
        (f"the published weights {file.name} are not in the data folder" for file in files if not file.is_file()), ""
    )


Printed = Callable[[str, str, str | None, str], float | None]
"""What the paper prints, for a network, a method, a repulsion set and a metric."""


def nothing(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
    """Where the paper prints nothing."""
    return None


def down(
    outcomes: Sequence[Outcome], columns: Mapping[str, Column], title: str = "", printed: Printed = nothing
) -> list[Table]:
    """One table a network: methods are rows, metrics are columns."""
    tables = []
    for (network,), found in groups(outcomes, "network").items():
        shown = {key: column for key, column in columns.items() if any(key in one.figures for one in found)}
        table = Table("method", list(shown.values()), title=f"{title}, {network}" if title else str(network))
        for (name,), seeds in groups(found, "row").items():
            labels = seeds[0].labels
            oracle = [i for i, key in enumerate(shown) if _is_oracle(seeds[0], key)]
            paper = [printed(str(network), str(labels["method"]), labels["repulsion"], key) for key in shown]  # pyright: ignore[reportArgumentType]
            table.add(str(name), [[one.figures.get(key, math.nan) for key in shown] for one in seeds], oracle, paper)
        table.footnote = ORACLE if table.marks else ""
        tables.append(table)
    return tables


def across(
    outcomes: Sequence[Outcome], metrics: Mapping[str, Column], label: str, title: str, printed: Printed = nothing
) -> Table:
    """One table: a row for each network and metric, methods are columns."""
    names = list(_columns(outcomes))
    better = {column.better for column in metrics.values()}
    digits = max(column.digits for column in metrics.values())
    table = Table(label, [Column(name, digits, better.copy().pop()) for name in names], title=title, across=True)
    for (network,), found in groups(outcomes, "network").items():
        by_row = _columns(found)
        for key, column in metrics.items():
            most = max(len(seeds) for seeds in by_row.values())
            values = [[_value(by_row.get(name, []), seed, key) for name in names] for seed in range(most)]
            rows = [by_row.get(name, [None])[0] for name in names]
            paper = [o and printed(str(network), str(o.labels["method"]), o.labels["repulsion"], key) for o in rows]  # pyright: ignore
            table.add(f"{network}, {column.name}" if len(metrics) > 1 else str(network), values, (), paper)
    return table


def _columns(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by row, deep ensembles of any number of members in one."""
    found: dict[str, list[Outcome]] = {}
    for (row,), seeds in groups(outcomes, "row").items():
        found.setdefault("DE" if row.startswith("DE-") else row, []).extend(seeds)
    return found


def _value(seeds: Sequence[Outcome], seed: int, key: str) -> float | None:
    """That of a seed, if there was one."""
    return seeds[seed].figures.get(key, math.nan) if seed < len(seeds) else None


ORACLE = (
    "† Repelled on other images of the same set, which no one has of what is to come: not compared with the others."
)


def _is_oracle(outcome: Outcome, key: str) -> bool:
    """Whether a figure is about the set that was repelled on, or a mean over sets with that one."""
    name = outcome.labels["repulsion"]
    if name not in FOREIGN or FOREIGN[name].apart:  # pyright: ignore[reportArgumentType]
        return False
    averaged = "mean" in key and (name in MAIN or key.replace("mean", str(name)) in outcome.figures)
    return str(name) in key or (averaged and name != "letters")
