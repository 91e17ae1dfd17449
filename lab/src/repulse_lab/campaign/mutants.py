"""Mutation testing, a sample: change the code in one place at a time, and see whether the tests notice.

A change is one operator, comparison, number or `not`, at a place drawn at random from `particles/`, `prediction.py` and
`metrics/`. The tests of the room must fail; a mutant with which they pass survives, and is listed.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repulse_lab.campaign.run import put_in

TESTS = {
    "particles": ["tests/closed_form", "tests/particles"],
    "prediction.py": ["tests/closed_form/test_prediction.py", "tests/particles/test_fit.py"],
    "metrics": ["tests/metrics"],
}
"""The tests that answer for each part."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult},
    **{ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: Path
    line: int
    change: str
    source: str


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Make every mutant of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    spots = [node for node in ast.walk(tree) if _can_change(node)]
    for i in range(len(spots)):
        changed = copy.deepcopy(tree)
        node = [other for other in ast.walk(changed) if _can_change(other)][i]
        before = ast.unparse(node)
        _change(node)
        yield Mutant(file, getattr(node, "lineno", 0), f"`{before}` to `{ast.unparse(node)}`", ast.unparse(changed))


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


def is_killed(mutant: Mutant, root: Path, tests: list[str]) -> bool:
    """Run the tests against a copy of the library with the change; return whether they fail."""
    with tempfile.TemporaryDirectory() as name:
        copied = Path(name) / "src" / "repulse"
        shutil.copytree(root / "src" / "repulse", copied)
        (copied / mutant.file.relative_to(root / "src" / "repulse")).write_text(mutant.source, encoding="utf-8")
        places = [str(copied.parent), str(root / "lab" / "src"), str(root / "tests")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        try:
            ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=900, check=False)
        except subprocess.TimeoutExpired:
            return True
        return ended.returncode != 0


def main(count: int, seed: int, root: Path, page: Path) -> int:
    """Try so many mutants, and write the page; return 1 if fewer than 90 % are killed."""
    library = root / "src" / "repulse"
    everything = [
        (part, mutant)
        for part in TESTS
        for file in sorted((library / part).rglob("*.py") if (library / part).is_dir() else [library / part])
        for mutant in mutants_of(file)
    ]
    survivors, tried = [], random.Random(seed).sample(everything, min(count, len(everything)))
    for number, (part, mutant) in enumerate(tried, start=1):
        if not is_killed(mutant, root, TESTS[part]):
            survivors.append(mutant)
        where = f"{mutant.file.relative_to(library)}:{mutant.line}"
        print(f"{number} of {len(tried)}, {len(survivors)} survived: {where} {mutant.change}", flush=True)
    killed = len(tried) - len(survivors)
    rows = ["| mutants | tried | killed | survived |", "| --- | --- | --- | --- |"]
    rows.append(
        f"| of {len(everything):,} possible | {len(tried)} | {killed} ({killed / len(tried):.0%}) | {len(survivors)} |"
    )
    lines = [f"- `{m.file.relative_to(library)}`, line {m.line}: {m.change}" for m in survivors] or [
        "No mutant survived."
    ]
    put_in(page, "\n".join([*rows, "", *lines]), BEGIN, END)
    return int(killed < 0.9 * len(tried))
