"""Run tests in copies of this process against a changed library, and know beforehand which tests reach which line."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WAITING = 30.0
READY = ("torch", "numpy", "jaxtyping", "beartype", "hypothesis", "safetensors.torch", "sklearn.metrics")
"""What tests import, if it is there, imported once for all of them; never the library."""


@dataclass
class Reach:
    """Which tests reach a line of the library, and how long they take.

    Attributes:
        seconds: of each test that passed.
        tests: names of the tests, by file (relative to the library) and line; line 0 for all of a file.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    def of(self, file: str, lines: range, most: float) -> list[str]:
        """Return the tests that reach any of these lines, quickest first, of at most so many seconds altogether."""
        known = self.tests.get(file, {})
        names = set().union(*(known.get(line, set()) for line in lines)) or known.get(0, set())
        chosen, total = [], 0.0
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            total += self.seconds[name]
            if chosen and total > most:
                break
            chosen.append(name)
        return chosen


class Suite:
    """A copy of the library, and its tests.

    Args:
        root: of the repository.
        copied: folder for the copy.
    """

    def __init__(self, root: Path, copied: Path) -> None:
        self.root, self.library = root, copied / "repulse"
        shutil.copytree(root / "src" / "repulse", self.library)
        for name in READY:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        if "repulse._version" in sys.modules:
            raise RuntimeError("Mutants need a process that has not imported the library.")

    def reach(self, tests: Sequence[str]) -> Reach:
        """Run tests on the library as it is, and find out what those that pass reach."""
        with tempfile.TemporaryDirectory() as name:
            kept = Path(name) / "reach"
            code = _in_copy(lambda: self._measure(tests, kept), None)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                raise RuntimeError(f"The tests do not run without a change already (code {code}).")
            return pickle.loads(kept.read_bytes())

    def fails(self, tests: Sequence[str], module: str, most: float) -> bool:
        """Return whether some of these tests fail, or take more than so many seconds of the processor.

        Args:
            tests: their names.
            module: whose shapes are checked, which the tests do for all modules.
            most: seconds.
        """
        return _in_copy(lambda: self._run(tests, module), most) != 0

    def _run(self, tests: Sequence[str], module: str) -> int:
        from jaxtyping import install_import_hook

        sys.path.insert(0, str(self.root / "tests"))
        with install_import_hook(module, "shapes.check"):
            return self._pytest(["-x", *sorted({name.partition("::")[0] for name in tests})], [_Only(tests)])

    def _measure(self, tests: Sequence[str], kept: Path) -> int:
        import coverage

        measured = coverage.Coverage(source=[str(self.library)], data_file=None, messages=False)
        measured.start()
        found = Reach()
        timed = _Timed(measured, found)
        code = self._pytest(tests, [timed])
        measured.stop()
        for name in timed.failed:
            found.seconds.pop(name, None)
        data = measured.get_data()
        for file in data.measured_files():
            lines = found.tests[str(Path(file).relative_to(self.library))]
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[line] |= {name for name in contexts if name in found.seconds}
            lines[0] = set().union(*lines.values())
        plain = Reach(found.seconds, {file: dict(lines) for file, lines in found.tests.items()})
        kept.write_bytes(pickle.dumps(plain))
        return code

    def _pytest(self, where: Sequence[str], plugins: list[Any]) -> int:
        import torch

        torch.set_num_threads(1)
        os.chdir(self.root)
        sys.path.insert(0, str(self.library.parent))
        sys.dont_write_bytecode = True  # files change within a second
        told = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported already
        quiet = ["-q", "--noconftest", "-p", "no:cacheprovider", "-m", "not data", "--hypothesis-seed=0"]
        return int(pytest.main([*told, *quiet, *where], plugins=plugins))


class _Timed:
    """A plugin that tells coverage which test runs, and remembers how long each took."""

    def __init__(self, measured: Any, found: Reach) -> None:
        self.measured, self.found, self.failed = measured, found, set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.measured.switch_context(item.nodeid)
        start = time.process_time()  # which other work on the machine does not lengthen
        result = yield
        self.found.seconds[item.nodeid] = time.process_time() - start
        self.measured.switch_context("")
        return result


class _Only:
    """A plugin that leaves some tests, in their order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.order = {name: number for number, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])


@contextmanager
def changed(file: Path, source: str) -> Iterator[None]:
    """Have another source in a file inside."""
    before = file.read_text(encoding="utf-8")
    file.write_text(source, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before, encoding="utf-8")


def _in_copy(run: Callable[[], int], most: float | None) -> int:
    """Run something in a copy of this process, without its output; return its code, or minus the signal that ended it.

    Seconds are those of the processor, so that other work on the machine ends nothing; what only waits is ended after
    `WAITING` times as many by the clock.
    """
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            if most is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(most), math.ceil(most)))
            quiet = os.open(os.environ.get("REPULSE_MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = None if most is None else time.monotonic() + WAITING * most
    while end is None or time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG if end is not None else 0)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL
