"""Pieces of work that are kept under a digest of everything their results depend on: done once, never again.

A job is a function of this package, its arguments as plain JSON, and the jobs that must be done before. Its key is a
digest of all three and of the code it runs: the function, what it uses of its own module, and the modules it names.
After a change of an argument or a line of that code, what depends on it is recomputed, and nothing else. Comments,
docstrings and the layout of the code do not count.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import symtable
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from repulse._files import explaining_writes, read_regular, sealed, sweep, unsealed, write_whole
from repulse._locks import locked
from repulse._version import __version__
from repulse.errors import CheckpointError, FitWarning, expected

Result = dict[str, Any]
"""What a job finds, as plain JSON; "figures" holds numbers by name."""


@dataclass(frozen=True)
class Place:
    """Where work is done.

    Attributes:
        data: folder of the data sets.
        keep: folder in which results, networks and features are kept.
        progress: show bars.
    """

    data: Path
    keep: Path
    progress: bool = False


Work = Callable[[Mapping[str, Any], Place], Result]


def work(*code: str, seconds: Callable[[Mapping[str, Any]], float] = lambda about: 10.0) -> Callable[[Work], Work]:
    """Mark a function as the work of a job.

    Args:
        code: modules or packages that its results depend on, beside what it uses of its own module.
        seconds: from its arguments, about how long it takes on one core.
    """

    def mark(function: Work) -> Work:
        function.code = code  # pyright: ignore[reportFunctionMemberAccess]
        function.seconds = seconds  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return mark


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work.

    Attributes:
        function: a function marked by `work`.
        about: its arguments, plain JSON.
        needs: jobs that must be done before.
        code: modules or packages that these arguments make it depend on, beyond those of the function.
    """

    function: Work
    about: Mapping[str, Any]
    needs: tuple[Job, ...] = ()
    code: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return a digest of the function, its code, its arguments, and the keys of what it needs."""
        if "_key" not in self.__dict__:
            needs = sorted(job.key for job in self.needs)
            parts = [self.function.__module__, self.function.__qualname__, self.digests, self.about, needs]
            text = json.dumps(parts, sort_keys=True, allow_nan=False)
            self.__dict__["_key"] = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self.__dict__["_key"]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the key: another process may have other code."""
        return {name: value for name, value in self.__dict__.items() if name != "_key"}

    @property
    def digests(self) -> dict[str, str]:
        """Return digests of all code that decides its result."""
        function, modules = self.function, (*self.function.code, *self.code)  # pyright: ignore[reportFunctionMemberAccess]
        own = {f"{function.__module__}:{function.__qualname__}": digest_of_function(function)}
        return own | {module: digest_of_code(module) for module in modules}

    @property
    def seconds(self) -> float:
        """Return about how long it takes on one core."""
        return self.function.seconds(self.about)  # pyright: ignore[reportFunctionMemberAccess]

    def path(self, place: Place) -> Path:
        """Return where its result is kept."""
        return place.keep / "cells" / f"{self.key}.json"

    def done(self, place: Place) -> bool:
        """Return whether its result is there, and as it was written: what was damaged is done again."""
        try:
            result(self, place)
        except CheckpointError:
            return False
        return True


@cache
def digest_of_code(name: str) -> str:
    """Return a digest of what a module, or all modules of a package, do."""
    path = _file(name)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return _digest(_bare(ast.parse(file.read_text(encoding="utf-8"))) for file in files)


@cache
def digest_of_function(function: Work) -> str:
    """Return a digest of what a function does, and of all that it uses of its own module, directly or not."""
    source = _file(function.__module__).read_text(encoding="utf-8")
    scopes = {scope.get_name(): scope for scope in symtable.symtable(source, "", "exec").get_children()}
    known: dict[str, ast.stmt] = {}
    for statement in _bare(ast.parse(source)).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            statement.decorator_list = [mark for mark in statement.decorator_list if "'work'" not in ast.dump(mark)]
            known[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            known |= dict.fromkeys(_names(statement, ast.Store), statement)
    used, ahead = {}, [function.__name__]
    while ahead:
        name = ahead.pop()
        if name in known and name not in used:
            used[name] = known[name]
            ahead += _globals(scopes[name], known[name]) if name in scopes else _names(known[name], ast.Load)
    return _digest(used[name] for name in sorted(used))


def _names(tree: ast.AST, context: type[ast.expr_context]) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)]


def _globals(scope: symtable.SymbolTable, tree: ast.stmt) -> list[str]:
    """Return the names of its module that a function or class uses: in its body, at any depth, or in its head."""
    body = [symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()]
    body += [name for child in scope.get_children() for name in _globals(child, ast.Pass())]
    head = [getattr(tree, part, []) for part in ("decorator_list", "bases", "keywords")]
    arguments = getattr(tree, "args", None)
    head += [arguments.defaults, arguments.kw_defaults] if arguments else []
    return body + [name for part in head for node in part if node for name in _names(node, ast.Load)]


def _file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin)


def _digest(trees: Iterable[ast.AST]) -> str:
    return hashlib.sha256("\n".join(map(ast.dump, trees)).encode()).hexdigest()[:16]


def _bare(tree: ast.Module) -> ast.Module:
    """Return the tree without docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [x for x in body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]
            node.body = kept  # pyright: ignore[reportAttributeAccessIssue]
    return tree


def result(job: Job, place: Place) -> Result:
    """Return what a finished job found."""
    path = job.path(place)
    try:
        return unsealed(read_regular(path))["result"]
    except (OSError, ValueError, KeyError, RecursionError) as reason:
        raise CheckpointError(expected(f"the file {path}", "the result of a job", str(reason))) from reason


def execute(job: Job, place: Place) -> float:
    """Do a job, unless it is done, in one thread, so that its numbers are those of any machine's worker.

    Returns:
        How many seconds it took; 0 if it was done already.
    """
    path = job.path(place)
    locks = place.keep / "locks"
    with explaining_writes(locks, "the folder of results"):
        locks.mkdir(parents=True, exist_ok=True)
    with locked(locks / job.key, "does the same job"):
        if job.done(place):
            return 0.0
        sweep(path)
        start = time.perf_counter()
        with one_thread(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", FitWarning)
            found = job.function(job.about, place)
        seconds = time.perf_counter() - start
        said = [str(one.message) for one in warned]
        text = sealed(_record(job, found, seconds, said))
        with explaining_writes(path, "the folder of results"):
            write_whole(path, text)
    return seconds


def _record(job: Job, found: Result, seconds: float, said: list[str]) -> dict[str, Any]:
    """Return everything that is needed to repeat a job, and its warnings."""
    return {
        "function": f"{job.function.__module__}:{job.function.__qualname__}",
        "about": dict(job.about),
        "needs": [need.key for need in job.needs],
        "code": job.digests,
        "versions": {"repulse": __version__, "torch": torch.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(seconds, 2),
        "warnings": said,
        "result": found,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread: sums come out alike wherever they are computed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
