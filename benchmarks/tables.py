"""Put tables of the committed results in the README and the docs, and that of the demo in docs/measured.md.

Every number comes from docs/results/cpu, where `benchmarks/results.py` puts what `repulse-lab reproduce` and
`repulse-lab evaluate` measured: what pages call the same is the same. A row that was not measured is left out.

    python benchmarks/tables.py [--demo]
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from repulse._files import write_whole
from repulse.demo import run as demo
from repulse.evaluation.table import Column, Table
from repulse_lab.study.evaluate import COSTS, DIGIT_ROWS, PHOTOGRAPH_ROWS
from repulse_lab.study.grid import Row
from repulse_lab.study.tables import INSIDE

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "cpu"
LAYERS = {"last": "last", "auto": "with taps"}
RANKS = {f"{name} auroc": Column(name, 1, "higher") for name in ("Tiny ImageNet", "textures", "noise")}
PHOTOGRAPHS = {
    **INSIDE,
    "human_correlation": Column("human", 3, "higher"),
    "aurc": Column("AURC", 2, "lower"),
    **RANKS,
    "mean auroc": Column("mean AUROC", 1, "higher"),
    "mean fpr95": Column("mean FPR@95", 1, "lower"),
    **COSTS,
}
DIGITS = {
    **INSIDE,
    "clean ambiguous": Column("clean/ambiguous", 1, "higher"),
    "clean mean": Column("clean/OOD", 1, "higher"),
    **{
        f"ambiguous {name}": Column(f"ambiguous/{name}", 1, "higher") for name in ("KMNIST", "FashionMNIST", "Omniglot")
    },
    "ambiguous mean": Column("ambiguous/OOD", 1, "higher"),
    **COSTS,
}
TEXT = {
    **INSIDE,
    "out-of-scope auroc": Column("out of scope", 1, "higher"),
    "out-of-scope auroc by total": Column("by total", 1, "higher"),
}
HEADLINE = (
    *map(Row, ("MAP", "LL-Laplace", "ViM", "KNN")),
    Row("repulse", "synthetic images", "auto"),
    Row("repulse", "Tiny ImageNet", "auto"),
)
"""The rows of the README: the network, three methods that people use, and ours."""

HEADS = (
    *map(Row, ("MAP", "LL-E", "RLL-E")),
    *(Row("fs-RLL-E", name) for name in ("training data", "16 patches", "synthetic images", "Tiny ImageNet")),
    Row("repulse", "synthetic images", "auto"),
    Row("repulse", "Tiny ImageNet", "auto"),
)
METHODS = (
    *map(Row, ("MAP", "Energy", "KNN", "ViM", "DDU", "SNGP", "LL-Laplace")),
    *(Row(name, "synthetic images") for name in ("outlier exposure", "discriminator")),
    Row("LL-E"),
    *(Row(name, "synthetic images") for name in ("fs-RLL-E", "repulse")),
    *(Row(name, "Tiny ImageNet") for name in ("outlier exposure", "discriminator", "repulse")),
)
QUERIES = (
    *map(Row, ("MAP", "LL-E")),
    Row("fs-RLL-E", "Wikipedia"),
    Row("repulse", "Wikipedia"),
    Row("repulse", "Wikipedia", "auto"),
)

Key = tuple[str, str, str, str]
"""Network, method, repulsion set and layers."""


@cache
def measured(results: Path = RESULTS) -> dict[Key, dict[int, dict[str, float]]]:
    """Return the figures of every seed; of what several experiments hold, that of the first."""
    found: dict[Key, dict[int, dict[str, float]]] = {}
    for path in sorted(results.glob("*/results.csv"), key=lambda path: (path.parent.name == "ablation", path)):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                name = f"{line['method']}, {line['repulsion']}" if line["repulsion"] else line["method"]
                if "task" not in line and "collection" not in line and line.get("row", name) == name:
                    key = line["network"], line["method"], line["repulsion"], line["layers"]
                    figures = found.setdefault(key, {}).setdefault(int(line["seed"]), {})
                    figures.setdefault(line["metric"], float(line["value"]))
    return found


def seeds_of(network: str, row: Row) -> tuple[str, list[dict[str, float]]]:
    """Return the name of a row and its figures, one per seed; a deep ensemble has any number of members."""
    for (where, method, repulsion, layers), seeds in measured().items():
        same = (where, re.sub(r"-\d+$", "", method)) == (network, row.method)
        full = any("accuracy" in figures for figures in seeds.values())  # maps and curves have other figures
        if full and same and (repulsion, layers) == (row.repulsion or "", row.layers):
            return row.name.replace(row.method, method), [
                figures for figures in seeds.values() if "accuracy" in figures
            ]
    return row.name, []


def table_of(label: str, network: str, rows: Sequence[Row], columns: Mapping[str, Column], taps: bool = False) -> Table:
    """Return the rows that were measured; `taps` says in each row whether it sees them."""
    table = Table(label, list(columns.values()))
    for row in rows:
        name, seeds = seeds_of(network, row)
        if seeds:
            name += ", with taps" if taps and row.layers == "auto" else ""
            table.add(name, [[figures.get(key, float("nan")) for key in columns] for figures in seeds])
    return table


def headline() -> str:
    """Return the table of the README: what a user asks first."""
    columns = {"accuracy": INSIDE["accuracy"], "ece": INSIDE["ece"], **RANKS}
    table = table_of("method", "ResNet-20", HEADLINE, columns, taps=True)
    return table.markdown().replace("| MAP |", "| network alone (MAP) |")


def both_layers(network: str, rows: Sequence[Row], columns: Mapping[str, Column]) -> str:
    """Return a table for each kind of features."""
    parts = [
        table_of(label, network, [row for row in rows if row.layers == layers], columns)
        for layers, label in LAYERS.items()
    ]
    return "\n\n".join(part.markdown() for part in parts if part.rows)


def short(network: str, rows: Sequence[Row]) -> Table:
    """Return methods in use and ours, on both kinds of features."""
    columns = [
        column
        for layers in ("last", "taps")
        for column in (Column(f"ECE, {layers}", 2, "lower"), Column(f"AUROC, {layers}", 1, "higher"))
    ]
    table = Table("method", columns)
    for row in rows:
        sides = [seeds_of(network, Row(row.method, row.repulsion, layers))[1] for layers in LAYERS]
        count = max(map(len, sides))
        values = [
            [side[seed][key] if seed < len(side) else None for side in sides for key in ("ece", "mean auroc")]
            for seed in range(count)
        ]
        if count:
            table.add(row.name, values)
    return table


def insert(page: Path, name: str, text: str) -> None:
    """Put text between the comments `name` and `end of name` of a Markdown page, if it has them."""
    old = page.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not between.search(old):
        print(f"{page.relative_to(ROOT)} has no place for the table {name!r}.", file=sys.stderr)
        return
    write_whole(page, between.sub(lambda match: f"{match[1]}\n{text.strip()}\n\n{match[2]}", old))


def pages() -> list[tuple[Path, str, Callable[[], str]]]:
    """Return every table that is made of the results: its page, its place in it, and what makes it."""
    label = "heads, and where they repel"
    wide, comparison = ROOT / "docs" / "measured.md", ROOT / "docs" / "comparison.md"
    heads = INSIDE | RANKS | {"fit_seconds": Column("seconds", 1)}
    return [
        (ROOT / "README.md", "headline", headline),
        (wide, "cifar", lambda: table_of(label, "ResNet-20", HEADS, heads, True).markdown()),
        (wide, "methods", lambda: short("ResNet-20", METHODS).markdown()),
        (wide, "clinc", lambda: table_of(label, "MiniLM", QUERIES, TEXT, True).markdown()),
        (comparison, "cifar", lambda: both_layers("ResNet-20", PHOTOGRAPH_ROWS, PHOTOGRAPHS)),
        (comparison, "dirty", lambda: both_layers("LeNet", DIGIT_ROWS, DIGITS)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also measure the table of the demo")
    if parser.parse_args().demo:
        with tempfile.TemporaryDirectory() as scratch:
            insert(ROOT / "docs" / "measured.md", "demo", demo.run(Path(scratch))[0].markdown())
    for page, name, text in pages():
        insert(page, name, text())


if __name__ == "__main__":
    main()
