"""Put what `repulse evaluate` measured in the README, docs/comparison.md and docs/results.

repulse evaluate --network resnet20 && repulse evaluate --network lenet && python benchmarks/comparison.py
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from repulse._files import write_whole
from repulse.evaluation.table import Column, Table
from tables import ROOT, insert

RANKS = ("Tiny ImageNet", "textures", "noise", "mean")
INSIDE = {
    "accuracy": Column("accuracy", 2, "higher"),
    "nll": Column("NLL", 3, "lower"),
    "ece": Column("ECE", 2, "lower"),
}
COSTS = {"fit_seconds": Column("fit, s", 1), "milliseconds": Column("ms per 1000", 1)}
COLUMNS = {
    "cifar10-resnet20": {
        **INSIDE,
        "human_correlation": Column("human", 3, "higher"),
        "aurc": Column("AURC", 2, "lower"),
        **{f"{name} auroc": Column(f"{name} AUROC" if name == "mean" else name, 1, "higher") for name in RANKS},
        "mean fpr95": Column("mean FPR@95", 1, "lower"),
        **COSTS,
    },
    "dirty-mnist-lenet": {
        **INSIDE,
        "clean ambiguous": Column("clean/ambiguous", 1, "higher"),
        "clean mean": Column("clean/OOD", 1, "higher"),
        **{f"ambiguous {name}": Column(f"ambiguous/{name}", 1, "higher") for name in ("KMNIST", "FashionMNIST")},
        "ambiguous Omniglot": Column("ambiguous/Omniglot", 1, "higher"),
        "ambiguous mean": Column("ambiguous/OOD", 1, "higher"),
        **COSTS,
    },
}
"""For each problem, in the order in which it is run, the columns of the page."""
PLACES = {"cifar10-resnet20": "cifar", "dirty-mnist-lenet": "dirty"}
VIEWS = {"last": "last", "auto": "with taps"}

Rows = dict[tuple[str, str, str, str], dict[str, dict[str, float]]]


def read(path: Path) -> Rows:
    """For each method, repulsion set and view, the figures of each seed."""
    rows: Rows = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            key = line["method"], line["repulsion"], line["layers"], line["oracle"]
            seeds = rows.setdefault(key, {})
            seeds.setdefault(line["seed"], {})[line["metric"]] = float(line["value"])
    return rows


def table_of(rows: Rows, view: str, columns: dict[str, Column]) -> Table:
    table = Table(VIEWS[view], list(columns.values()))
    for (method, repulsion, layers, oracle), seeds in rows.items():
        if layers == view:
            name = f"{method}, {repulsion}" if repulsion else method
            name += f" (oracle: {oracle})" if oracle else ""
            marked = range(len(columns)) if oracle else ()
            table.add(name, [[figures[key] for key in columns] for figures in seeds.values()], marked)
    return table


SHORT = (
    ("MAP", ""),
    ("Energy", ""),
    ("KNN", ""),
    ("ViM", ""),
    ("DDU", ""),
    ("SNGP", ""),
    ("LL-Laplace", ""),
    ("outlier exposure", "synthetic images"),
    ("discriminator", "synthetic images"),
    ("LL-E", ""),
    ("fs-RLL-E", "synthetic images"),
    ("repulse", "synthetic images"),
    ("outlier exposure", "Tiny ImageNet"),
    ("discriminator", "Tiny ImageNet"),
    ("repulse", "Tiny ImageNet"),
)


def short(rows: Rows) -> Table:
    """What people use now beside ours, on both kinds of features: for the README."""
    columns = [
        column
        for view in ("last", "taps")
        for column in (Column(f"ECE, {view}", 2, "lower"), Column(f"AUROC, {view}", 1, "higher"))
    ]
    table = Table("method", columns)
    for method, repulsion in SHORT:
        seeds = [rows[method, repulsion, view, ""] for view in VIEWS]
        values = [[figures[seed][key] for figures in seeds for key in ("ece", "mean auroc")] for seed in seeds[0]]
        table.add(f"{method}, {repulsion}" if repulsion else method, values)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("evaluation"), help="folder that was written to")
    results = parser.parse_args().results
    for problem, columns in COLUMNS.items():
        folder = results / problem
        if not (folder / "results.csv").is_file():
            sys.exit(f"{folder / 'results.csv'} is not there: run `repulse evaluate` first.")
        rows = read(folder / "results.csv")
        tables = [table_of(rows, view, columns).markdown() for view in VIEWS]
        insert(ROOT / "docs" / "comparison.md", PLACES[problem], "\n\n".join(tables))
        if problem == "cifar10-resnet20":
            insert(ROOT / "README.md", "methods", short(rows).markdown())
        for name in ("results.csv", "tables.md"):
            write_whole(ROOT / "docs" / "results" / f"{problem}{Path(name).suffix}", (folder / name).read_text())


if __name__ == "__main__":
    main()
