"""From outcomes to tables: methods as rows, one table per network, or methods as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from repulse.evaluation.compare import INSIDE as LIBRARY_COLUMNS
from repulse.evaluation.table import Column, Table
from repulse_lab.study.experiment import Outcome, groups
from repulse_lab.study.problems import CIFAR10, DIRTY_MNIST, SETS

INSIDE = {key: LIBRARY_COLUMNS[key] for key in ("accuracy", "nll", "ece")}
MEAN = {"mean auroc": Column("mean AUROC", 1, "higher", "Mean over the out-of-distribution sets.")}
AUROC = {f"{name} auroc": Column(name, 1, "higher", f"AUROC of telling {name}.") for name in CIFAR10.sets}
DIGITS = {
    **INSIDE,
    "clean ambiguous": Column("MNIST/ambiguous", 1, "higher", "AUROC by aleatoric uncertainty."),
    "clean mean": Column("MNIST/OOD", 1, "higher", "AUROC by epistemic uncertainty, mean over three sets."),
    "ambiguous mean": Column("ambiguous/OOD", 1, "higher", "The same, against ambiguous digits."),
}
"""Columns that several tables have, by the name of their figure."""

ORACLE = "† Repelled on other images of the same set, which nobody has in advance: not compared with the others."
NOT_AVERAGED = {name for problem in (CIFAR10, DIRTY_MNIST) for name in problem.sets if name not in problem.averaged}

PaperNumber = Callable[[str, str, str | None, str], float | None]
"""What the paper prints, for a network, a method, a repulsion set and a metric."""


def not_in_paper(network: str, method: str, repulsion: str | None, metric: str) -> float | None:
    """Return None: the paper prints nothing."""
    return None


def methods_as_rows(
    outcomes: Sequence[Outcome], columns: Mapping[str, Column], title: str = "", printed: PaperNumber = not_in_paper
) -> list[Table]:
    """Return one table per network: methods are rows, metrics are columns."""
    tables = []
    for (network,), found in groups(outcomes, "network").items():
        shown = {key: column for key, column in columns.items() if any(key in one.figures for one in found)}
        table = Table("method", list(shown.values()), title=f"{title}, {network}" if title else str(network))
        for (name,), seeds in groups(found, "row").items():
            oracle = [i for i, key in enumerate(shown) if is_oracle(seeds[0], key)]
            values = [[one.figures.get(key, math.nan) for key in shown] for one in seeds]
            table.add(str(name), values, oracle, [_paper(seeds[0], key, printed) for key in shown])
        table.footnote = ORACLE if table.marks else ""
        tables.append(table)
    return tables


def by_rows(
    columns: Mapping[str, Column], title: str = "", printed: PaperNumber = not_in_paper
) -> Callable[[Sequence[Outcome]], list[Table]]:
    """Return the function from outcomes to `methods_as_rows`, for an experiment that shows nothing else."""
    return lambda outcomes: methods_as_rows(outcomes, columns, title, printed)


def methods_as_columns(
    outcomes: Sequence[Outcome],
    metrics: Mapping[str, Column],
    label: str,
    title: str,
    printed: PaperNumber = not_in_paper,
) -> Table:
    """Return one table: a row for each network and metric, methods are columns."""
    names = list(_by_row(outcomes))
    better = next(iter(metrics.values())).better
    digits = max(column.digits for column in metrics.values())
    table = Table(label, [Column(name, digits, better) for name in names], title=title, across=True)
    for (network,), found in groups(outcomes, "network").items():
        by_row = _by_row(found)
        for key, column in metrics.items():
            most = max(len(seeds) for seeds in by_row.values())
            values = [[_value(by_row.get(name, []), seed, key) for name in names] for seed in range(most)]
            paper = [_paper(by_row[name][0], key, printed) if name in by_row else None for name in names]
            table.add(f"{network}, {column.name}" if len(metrics) > 1 else str(network), values, (), paper)
    return table


def _paper(outcome: Outcome, key: str, printed: PaperNumber) -> float | None:
    labels = outcome.labels
    return printed(str(labels["network"]), str(labels["method"]), labels["repulsion"], key)  # pyright: ignore[reportArgumentType]


def _by_row(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes by row, deep ensembles of any number of members in one."""
    found: dict[str, list[Outcome]] = {}
    for (row,), seeds in groups(outcomes, "row").items():
        found.setdefault("DE" if row.startswith("DE-") else row, []).extend(seeds)
    return found


def _value(seeds: Sequence[Outcome], seed: int, key: str) -> float | None:
    return seeds[seed].figures.get(key, math.nan) if seed < len(seeds) else None


def is_oracle(outcome: Outcome, key: str) -> bool:
    """Check whether a figure is about the set that was repelled on, or a mean over sets with that one."""
    name = str(outcome.labels["repulsion"])
    if name not in SETS or SETS[name].apart:
        return False
    averaged = "mean" in key and name not in NOT_AVERAGED and key.replace("mean", name) in outcome.figures
    return name in key or averaged
