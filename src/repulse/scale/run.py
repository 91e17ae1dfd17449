"""The one call: list the files, skip those that are done, let an engine score the others."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from tqdm import tqdm

from repulse.errors import DataError, RepulseError, check_choice, check_positive_integer, expected, in_one_line
from repulse.files.columns import Columns
from repulse.files.opening import Opening
from repulse.files.samples import need
from repulse.scale.tasks import SUFFIXES, Settings, Task, sweep_strays, tasks_of
from repulse.scale.worker import Outcome

Engine = Literal["processes", "ray", "spark", "dask"]
ENGINES = get_args(Engine)

ATTEMPTS = 3
"""How often in a row an engine may fail without one file done before that is an error."""


@dataclass(frozen=True)
class Scored:
    """What a run did.

    Attributes:
        files: output files, all of which are complete.
        skipped: how many of them were done before.
        rows: number of samples that this run scored.
        seconds: that it took.
    """

    files: tuple[Path, ...]
    skipped: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        before = f", {self.skipped} of them before" if self.skipped else ""
        pace = f" ({self.rows / self.seconds:,.0f} per second)" if self.rows else ""
        files = f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}"
        return f"{files} done{before}; {self.rows:,} samples in {self.seconds:,.1f} s{pace}"


def score(
    source: str | Path,
    out: str | Path,
    heads: str | Path,
    *,
    engine: Engine = "processes",
    workers: int | None = None,
    threads: int | None = None,
    batch_size: int | None = None,
    columns: Columns | None = None,
    probs: bool = False,
    model: str | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> Scored:
    """Score all files of a source with heads that `repulse fit` wrote; run it again after a kill, and it goes on.

    Each input file becomes one output file: the key of each sample, the prediction, its confidence (or mean and
    standard deviation), and its aleatoric, epistemic and total uncertainty. It is written aside and renamed when it is
    complete. Files that are complete, from the same heads, are skipped. All engines write the same bytes.

    Args:
        source: a Parquet, CSV, `.npz` or `.tar` file, a folder of such files, or a folder of images.
        out: folder of the output files; for a single file or a folder of images, it may be a `.parquet` or `.csv`.
        heads: folder that `repulse fit` wrote.
        engine: who runs the workers. Ray, Spark and Dask are used as they are connected, or started on this machine;
            on several machines all must see the files under the same paths.
        workers: number of workers that are started here; one per processor if not given.
        threads: threads of each; the processors divided by the workers if not given. Another number of threads may
            change the last bit.
        batch_size: number of samples at once; as at the fit if not given.
        columns: what the columns of tables are, where it is not as at the fit.
        probs: also write the probability of every class.
        model: name of the network, if it is elsewhere than at the fit.
        checkpoint: file of its weights, if it is elsewhere than at the fit.
        progress: show a bar with the time left.
    """
    check_choice("engine", engine, ENGINES)
    need("pyarrow", "scoring files", "files")
    started = time.perf_counter()
    source, out = Path(source).resolve(), Path(out).resolve()
    heads = Path(heads).resolve()
    Opening.read(heads)
    for name, number in (("workers", workers), ("threads", threads), ("batch_size", batch_size)):
        if number is not None:
            check_positive_integer(name, number)
    where = None if checkpoint is None else str(Path(checkpoint).resolve())
    settings = Settings(str(heads), model, where, columns or Columns(), probs, batch_size)
    tasks = tasks_of(source, out, settings)
    cores = os.cpu_count() or 1
    workers = min(workers or cores, len(tasks))
    settings = replace(settings, threads=threads or max(cores // workers, 1))
    tasks = [replace(task, settings=settings) for task in tasks]
    with _alone(out):
        sweep_strays(tasks)
        left = [task for task in tasks if not task.is_done()]
        rows = _run(left, engine, workers, progress) if left else 0
    files = tuple(Path(task.out) for task in tasks)
    return Scored(files, len(tasks) - len(left), rows, time.perf_counter() - started)


def _run(tasks: list[Task], engine: Engine, workers: int, progress: bool) -> int:
    """Let an engine score the files; return the number of samples, or say which file failed first and why."""
    inside = engine == "processes" and workers == 1 and len(tasks) == 1
    unit = "sample" if inside else "file"
    rows, failed = 0, []
    with tqdm(
        total=None if inside else len(tasks), desc="scoring", unit=unit, disable=not progress, leave=False
    ) as bar:
        told = {"on_batch": partial(_advance, bar)} if inside else {}
        for outcome in _outcomes(tasks, engine, workers, **told):
            rows += outcome.rows
            failed += [outcome] if outcome.error else []
            if not inside:
                bar.update()
    if failed:
        more = f" {len(failed) - 1} other files failed too." if len(failed) > 1 else ""
        raise DataError(failed[0].error + more)
    return rows


def _outcomes(tasks: list[Task], engine: Engine, workers: int, **told: Any) -> Iterator[Outcome]:
    """Let an engine score the files; start it again with those that are left if it fails."""
    run: Callable[..., Iterator[Outcome]] = importlib.import_module(f"repulse.scale.engines.{engine}").run
    left, attempts = {task.out: task for task in tasks}, 0
    while left:
        before = len(left)
        try:
            for outcome in run(list(left.values()), workers, **told):
                if left.pop(outcome.out, None):
                    yield outcome
            if left:
                raise RuntimeError(f"it ended without {len(left)} of {before} files")
        except RepulseError:
            raise
        except Exception as reason:  # its workers were killed, or it did not come up on a busy machine
            attempts = 0 if len(left) < before else attempts + 1
            if attempts == ATTEMPTS:
                again = f"in {ATTEMPTS} attempts no file was done; is there memory? Call it again to go on."
                raise DataError(f"Scoring with {engine} gave up ({in_one_line(reason)}): {again}") from reason


def _advance(bar: tqdm, done: int, total: int) -> None:
    bar.total = total
    bar.update(done - bar.n)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Allow one run at a time into one output."""
    folder = out.parent if out.suffix.lower() in SUFFIXES and not out.is_dir() else out
    path = folder / f".{out.name}.lock"
    lock = FileLock(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as reason:
        raise DataError(expected("--out", "written to by one run at a time", f"{out}, where another runs")) from reason
    except OSError as reason:
        got = f"{out}, where {reason.strerror or reason}"
        raise DataError(expected("--out", "where files can be written", got)) from reason
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()
        lock.release()
