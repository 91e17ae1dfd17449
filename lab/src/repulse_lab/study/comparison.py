"""Every method on one problem, in one table: rows of methods, columns of metrics, means and spreads over seeds."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from repulse._files import with_nan, without_nan, write_whole
from repulse.baselines import METHODS, DeepEnsemble, Method, Resources, build
from repulse.errors import CheckpointError, DataError, check_choice, expected
from repulse.evaluation.compare import ORACLE
from repulse.evaluation.overlap import overlap
from repulse.evaluation.table import Column, Table
from repulse_lab.study.bench import Bench, Images
from repulse_lab.study.measures import Trial

HEADINGS = {
    "last": "Penultimate features, as in the paper",
    "auto": "Penultimate features and taps of earlier stages",
}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        method: name of the method, as in `repulse.baselines.METHODS`, or of a method that the problem adds.
        repulsion: name of the set to repel on, or None.
        layers: "last" or "auto".
    """

    method: str
    repulsion: str | None = None
    layers: str = "last"

    @property
    def name(self) -> str:
        return self.method if self.repulsion is None else f"{self.method}, {self.repulsion}"


Measure = Callable[[Trial], dict[str, float]]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is compared on what.

    Attributes:
        name: short name.
        title: in a sentence, for the head of the output.
        bench: for a seed, the features (of a network of that seed, if networks differ).
        rows: in the order of the table.
        columns: tables side by side, each with its metrics by the keys that `measure` gives them.
        measure: from a fitted method to metrics.
        extra: methods beyond `METHODS` by name: made, fitted or trained, from a bench and a seed.
    """

    name: str
    title: str
    bench: Callable[[int], Bench]
    rows: Sequence[Row]
    columns: dict[str, dict[str, Column]]
    measure: Measure
    extra: dict[str, Callable[[Bench, int], Method]] = field(default_factory=dict)


@dataclass
class Cell:
    """The figures of one row for one seed."""

    method: str
    repulsion: str | None
    layers: str
    seed: int
    figures: dict[str, float]
    oracle: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str | None, str, int]:
        """Which row and seed it is of."""
        return self.method, self.repulsion, self.layers, self.seed


def chosen(problem: Problem, methods: Iterable[str], layers: str) -> list[Row]:
    """The rows of some methods ("all" for every one) and of one view of the features, or of "both"."""
    methods = [method.strip() for method in methods]
    known = list(dict.fromkeys(row.method for row in problem.rows))
    for method in methods:
        check_choice("methods", method, ("all", *known))
    check_choice("layers", layers, ("last", "auto", "both"))
    rows = [
        row for row in problem.rows if ("all" in methods or row.method in methods) and layers in ("both", row.layers)
    ]
    if not rows:
        raise DataError(expected("methods", f"some that are measured with layers {layers!r}", ", ".join(methods)))
    return rows


def run(problem: Problem, rows: Sequence[Row], seeds: int, progress: bool = True) -> Iterator[Cell]:
    """Fit and measure every row; rows in which nothing is random are run once for each network."""
    first = problem.bench(0)
    same = all(problem.bench(seed) is first for seed in range(1, seeds))
    with tqdm(total=len(rows) * seeds, desc=problem.name, disable=not progress) as bar:
        for seed in range(seeds):
            for row in rows:
                bar.set_postfix_str(row.name, refresh=True)
                cell = _cell(problem, problem.bench(seed), row, seed, same)
                if cell is not None:
                    yield cell
                bar.update()


def _cell(problem: Problem, bench: Bench, row: Row, seed: int, same: bool) -> Cell | None:
    view = bench.view(row.layers)
    outside = view.repulsion[row.repulsion] if row.repulsion else None
    if row.method in problem.extra:
        if seed:
            return None  # one ensemble of networks is enough work
        start = time.process_time()
        method = problem.extra[row.method](bench, seed)
    else:
        method = build(row.method, Resources(view.layer, outside, view.taps, seed))
        if same and seed and not method.random:
            return None
        start = time.process_time()
        method.fit(view.train, bench.images.targets)
    trained = isinstance(method, DeepEnsemble)  # before, and elsewhere
    seconds = math.nan if trained else time.process_time() - start
    trial = Trial(method, bench.images, view)
    test = trial.sets()[0]
    start = time.process_time()
    method.predict_and_score(test[:5000])
    milliseconds = 1000 * (time.process_time() - start) / len(test[:5000]) * 1000
    figures = {**problem.measure(trial), "fit_seconds": seconds, "milliseconds": milliseconds}
    return Cell(row.method, row.repulsion, row.layers, seed, figures, _oracle(bench.images, row))


def _oracle(images: Images, row: Row) -> list[str]:
    """The sets outside that share images with those the row repelled on, found by content."""
    repelled = images.repulsion[row.repulsion] if row.repulsion else None
    if not isinstance(repelled, Tensor):
        return []
    return [name for name, others in images.outside.items() if overlap(repelled, others) > 0]


def tables(problem: Problem, cells: Sequence[Cell]) -> dict[str, list[Table]]:
    """For each view of the features that was measured, the tables of the problem."""
    made: dict[str, list[Table]] = {}
    for layers in HEADINGS:
        rows = [(row, found) for row in problem.rows if row.layers == layers and (found := _found(cells, row))]
        if rows:
            made[layers] = [_table(label, columns, rows) for label, columns in problem.columns.items()]
    return made


def _found(cells: Sequence[Cell], row: Row) -> list[Cell]:
    return [cell for cell in cells if cell.key[:3] == (row.method, row.repulsion, row.layers)]


def _table(label: str, columns: dict[str, Column], rows: Sequence[tuple[Row, list[Cell]]]) -> Table:
    table = Table(label, list(columns.values()))
    for row, found in rows:
        name = row.name + (f" (oracle: {', '.join(found[0].oracle)})" if found[0].oracle else "")
        values = [[cell.figures.get(key, math.nan) for key in columns] for cell in found]
        table.add(name, values, range(len(columns)) if found[0].oracle else ())
    table.footnote = ORACLE if table.marks else ""
    return table


def read(folder: Path) -> list[Cell]:
    """What was measured before and kept in a folder."""
    path = folder / "cells.json"
    if not path.is_file():
        return []
    try:
        cells = [Cell(**cell) for cell in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as reason:
        raise CheckpointError(expected(f"the file {path}", "as it was written", str(reason))) from reason
    for cell in cells:
        cell.figures = with_nan(cell.figures)
    return cells


def write(problem: Problem, cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """Keep what was measured: `cells.json`, `results.csv`, one line a figure, and the tables in Markdown.

    Returns:
        These cells and, of other rows and seeds, those that were in the folder before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        new = {cell.key for cell in cells}
        cells = [cell for cell in read(folder) if cell.key not in new] + list(cells)
        order = {(row.method, row.repulsion, row.layers): place for place, row in enumerate(problem.rows)}
        cells.sort(key=lambda cell: (order.get(cell.key[:3], len(order)), cell.seed))
        lines = io.StringIO()
        out = csv.writer(lines)
        out.writerow(["problem", "method", "repulsion", "oracle", "layers", "seed", "metric", "value"])
        for cell in cells:
            about = [problem.name, cell.method, cell.repulsion or "", "; ".join(cell.oracle), cell.layers, cell.seed]
            out.writerows([*about, key, repr(value)] for key, value in cell.figures.items())
        kept = [asdict(cell) | {"figures": without_nan(cell.figures)} for cell in cells]
        write_whole(folder / "cells.json", json.dumps(kept, indent=1, allow_nan=False) + "\n")
        write_whole(folder / "results.csv", lines.getvalue())
        parts = [f"# {problem.title}"]
        for layers, several in tables(problem, cells).items():
            parts += [f"## {HEADINGS[layers]}", *(table.markdown() for table in several)]
        write_whole(folder / "tables.md", "\n\n".join(parts) + "\n")
    return cells


def legend(cells: Sequence[Cell]) -> str:
    """What the figures are."""
    seeds = len({cell.seed for cell in cells})
    spread = f"Mean ± standard deviation over {seeds} seeds where something is random" if seeds > 1 else "One seed"
    return (
        f"{spread}; * marks the best of a column. Accuracy, ECE, AURC, coverage, AUROC, AUPR and FPR@95 in percent; "
        "outside is positive in FPR@95."
    )


def rows_for(repulsion: Sequence[str], only_heads: Sequence[str] = (), extra: Sequence[str] = ()) -> list[Row]:
    """Every method on both views; those that use repulsion samples once with each set.

    Args:
        repulsion: sets for all methods that use them.
        only_heads: sets for fs-RLL-E alone.
        extra: methods that take the network's inputs.
    """
    rows = [Row(name) for name in extra]
    for layers in ("last", "auto"):
        for method, kind in METHODS.items():
            if kind.uses_repulsion:
                rows += [Row(method, name, layers) for name in repulsion]
                rows += [Row(method, name, layers) for name in only_heads if method == "fs-RLL-E"]
            elif layers == "last" or kind.accepts_taps:
                rows.append(Row(method, None, layers))
    return rows
