"""Measure every (problem, seed, method) once, and keep each row in a file of its own."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import repulse
from repulse._files import sealed, unsealed, with_nan, without_nan, write_whole
from repulse.errors import RepulseError
from repulse_lab.defaults.measures import measure
from repulse_lab.defaults.methods import METHODS, Bench, Method
from repulse_lab.defaults.problem import Problem

SHARED = "shared"
"""Folder of the rows that do not depend on how the library fits heads."""


@dataclass(frozen=True)
class Row:
    """What one method reached on one seed of a problem.

    Attributes:
        problem: its name.
        seed: of network, split and method.
        method: its name.
        values: by column, and by out-of-distribution set.
        test: number of test samples.
        code: digest of the library's fit, for rows that depend on it.
        warnings: what the library warned of.
    """

    problem: str
    seed: int
    method: str
    values: dict[str, float]
    test: int
    code: str = ""
    warnings: list[str] = field(default_factory=list)


@cache
def code_digest() -> str:
    """Compute a digest of the library's source, so that rows of another fit are not taken for rows of this one."""
    folder = Path(repulse.__file__).parent
    rooms = ("backbone", "particles", "prediction", "repulsion")
    files = [path for room in rooms for path in sorted((folder / room).rglob("*.py"))]
    files += [folder / name for name in ("ensemble.py", "recipe.py", "retrofit.py")]
    content = b"".join(path.read_bytes() for path in files if path.exists())
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class Results:
    """The rows of one label below a folder.

    Attributes:
        folder: of everything: rows, trained networks, features, tables.
        label: names the state of the library, such as "before"; its rows are in a folder of this name.
    """

    folder: Path
    label: str

    def path(self, problem: str, seed: int, method: Method) -> Path:
        """Return where a row is kept."""
        state = self.label if method.library else SHARED
        return self.folder / state / "rows" / problem / f"{method.name}-{seed}.json".replace(" ", "_")

    def read(self, problem: str, seed: int, method: Method) -> Row | None:
        """Read a row; None if there is none, or if the library has fitted it in another way."""
        row = _row_in(self.path(problem, seed, method))
        if row is None:
            return None
        return row if not method.library or row.code == code_digest() else None

    def write(self, row: Row) -> None:
        """Keep a row."""
        path = self.path(row.problem, row.seed, METHODS[row.method])
        write_whole(path, sealed(without_nan(asdict(row))))

    def rows(self, problem: str) -> list[Row]:
        """Read all rows of a problem, of this label and of those shared by all labels, whatever code they are of."""
        paths = [p for s in (SHARED, self.label) for p in (self.folder / s / "rows" / problem).glob("*.json")]
        rows = [row for path in paths if (row := _row_in(path)) is not None]
        order = list(METHODS)
        return sorted(rows, key=lambda row: (order.index(row.method), row.seed))


def _row_in(path: Path) -> Row | None:
    """Read a row; None if it is not there, or was damaged, so that it is measured again."""
    try:
        return Row(**with_nan(unsealed(path.read_bytes())))
    except (OSError, ValueError, TypeError):
        return None


def run(
    problems: Sequence[Problem],
    seeds: Sequence[int],
    methods: Sequence[Method],
    root: Path,
    results: Results,
    say: Callable[[str], object] = lambda line: None,
) -> Iterator[Row]:
    """Measure what is not kept yet; every row is written as soon as it is known.

    Args:
        problems: in this order.
        seeds: of each.
        methods: those that a problem allows are measured.
        root: folder of the data sets.
        results: where rows are kept.
        say: told what could not be measured, and why.
    """
    for problem in problems:
        for seed in seeds:
            wanted = [m for m in methods if problem.task in m.tasks and not results.read(problem.name, seed, m)]
            if not wanted:
                continue
            keep = results.folder / "networks" / problem.name
            try:
                bench = Bench(problem.make(seed, root, keep), problem.task, seed, keep)
            except RepulseError as reason:
                say(f"{problem.name}: {reason}")
                break
            for method in wanted:
                if not method.possible(bench):
                    continue
                try:
                    row = _measured(problem, method, bench)
                except (RepulseError, RuntimeError, ValueError) as reason:
                    say(f"{problem.name}, {method.name}, seed {seed}: {type(reason).__name__}: {reason}")
                    continue
                results.write(row)
                yield row


def _measured(problem: Problem, method: Method, bench: Bench) -> Row:
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        judged = method.judge(bench)
    seconds = time.process_time() - start
    values = {**measure(judged, bench.trained), "seconds": seconds}
    told = sorted({str(w.message) for w in caught if issubclass(w.category, repulse.FitWarning)})
    code = code_digest() if method.library else ""
    return Row(problem.name, bench.seed, method.name, values, bench.trained.test.count, code, told)
