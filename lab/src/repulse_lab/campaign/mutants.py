"""Mutation testing, a sample: change the code in one place at a time, and see whether the tests notice.

A change is one operator, comparison, sign, `and`, `or` or `not`, at a place drawn at random from `particles/`,
`metrics/` and the files of predictions. Of the tests of these rooms, those that reach the changed line are run,
quickest first; one of them must fail. A mutant with which all pass survives, and is listed.
"""

from __future__ import annotations

import ast
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repulse_lab.campaign.page import put_in
from repulse_lab.campaign.reach import Reach, Suite, changed

PARTS = ("particles/**/*.py", "metrics/*.py", "prediction/*.py")
"""What is changed."""

TESTS = (
    *("closed_form", "particles", "metrics", "test_several_outputs.py", "test_positions.py"),
    *("test_validation.py", "test_properties.py", "test_bad_input.py", "test_pictures.py"),
)
"""Tests that answer for it; of each mutant only those that reach it."""

MOST_SECONDS = 60.0
"""Of tests per mutant, as long as they took without a change."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult},
    **{ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
EQUIVALENT: dict[tuple[str, str], str] = {
    ("particles/view.py", "`self.shift is None or self.axes is None` to `self.shift is None and self.axes is None`"): (
        "changes nothing: either both are there or none"
    ),
    ("particles/loop.py", "`nll + repulsion` to `nll - repulsion`"): (
        "changes nothing: it is only asked whether it is finite, and neither is unless both are"
    ),
    ("particles/noise.py", "`2 * width` to `2 / width`"): "changes nothing: of 1/4, 1 and 4 each has its inverse",
}
"""Survivors that no test can kill, by file and change, and why."""

BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"


@dataclass(frozen=True)
class Mutant:
    """A file with one change.

    Attributes:
        file: relative to the library.
        lines: of the expression that is changed.
        change: in words.
        source: all of the file, changed.
    """

    file: str
    lines: range
    change: str
    source: str

    def __str__(self) -> str:
        return f"`{self.file}`, line {self.lines[0]}: {self.change}"


def mutants_of(file: Path, library: Path) -> Iterator[Mutant]:
    """Make every mutant of a file."""
    for number in range(places_in(file)):
        yield mutant_of(file, library, number)


def places_in(file: Path) -> int:
    """Count the places of a file that can be changed."""
    return len(_places(file)[1])


def mutant_of(file: Path, library: Path, number: int) -> Mutant:
    """Change the place of this number, counted from 0."""
    tree, places = _places(file)
    node = places[number]
    lines, before = range(node.lineno, node.end_lineno + 1), ast.unparse(node)
    _change(node)
    change = f"`{before}` to `{ast.unparse(node)}`"
    return Mutant(file.relative_to(library).as_posix(), lines, change, ast.unparse(tree))


def _places(file: Path) -> tuple[ast.Module, list[Any]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return tree, [node for node in ast.walk(tree) if _can_change(node)]


def _can_change(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in SWAPS
    if isinstance(node, ast.BoolOp):
        return True
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in SWAPS
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not)


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()  # pyright: ignore
    elif isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])]()]  # pyright: ignore
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)


def is_killed(mutant: Mutant, suite: Suite, reach: Reach) -> bool:
    """Run the tests that reach a change; return whether one fails. Without such a test, it survives."""
    tests = reach.of(mutant.file, mutant.lines, MOST_SECONDS)
    if not tests:
        return False
    module = "repulse." + mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    limit = 20 + 3 * sum(reach.seconds[name] for name in tests)  # 20 to import it all
    with changed(suite.library / mutant.file, mutant.source):
        return suite.fails(tests, module, limit)


def main(count: int, seed: int, root: Path, page: Path) -> int:
    """Try so many mutants, and write the page; return 1 if fewer than 90 % are killed."""
    library = root / "src" / "repulse"
    files = sorted({file for part in PARTS for file in library.glob(part)})
    everything = [(file, number) for file in files for number in range(places_in(file))]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    tried = [mutant_of(file, library, number) for file, number in chosen]
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        suite = Suite(root, Path(name))
        reach = suite.reach([f"tests/{where}" for where in TESTS])
        print(
            f"{len(reach.seconds)} tests in {sum(reach.seconds.values()):.0f} s; {len(everything)} mutants", flush=True
        )
        for number, mutant in enumerate(tried, start=1):
            killed = is_killed(mutant, suite, reach)
            survivors += [] if killed else [mutant]
            print(f"{number} of {len(tried)}: {'killed' if killed else 'SURVIVED'}: {mutant}", flush=True)
    killed = len(tried) - len(survivors)
    rows = ["| mutants | tried | killed | survived |", "| --- | --- | --- | --- |"]
    rows.append(
        f"| of {len(everything):,} possible | {len(tried)} | {killed} ({killed / len(tried):.0%}) | {len(survivors)} |"
    )
    lines = [f"- {mutant}{_why(mutant)}" for mutant in survivors] or ["No mutant survived."]
    made = f"By `make mutants COUNT={count} SEED={seed}`."
    put_in(page, "\n".join([*rows, "", made, "", *lines]), BEGIN, END)
    return int(killed < 0.9 * len(tried))


def _why(mutant: Mutant) -> str:
    why = EQUIVALENT.get((mutant.file, mutant.change))
    return "" if why is None else f" ({why})"
