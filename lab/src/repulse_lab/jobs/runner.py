"""Do many jobs: each once, those that depend on others after them, several at a time, on one machine or on many.

Jobs go through dask.distributed, which knows about dependencies, runs on one machine as on many, and is told of a new
worker with one command; torchrun starts a fixed group of equal processes for one computation, which these are not.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from repulse.errors import RepulseError
from repulse_lab.jobs.job import Job, Place, execute


@dataclass
class Tally:
    """The result of a run.

    Attributes:
        done: jobs that were done in it.
        seconds: of work.
        failed: jobs that failed, and why.
        skipped: jobs that needed one that failed.
    """

    done: int = 0
    seconds: float = 0.0
    failed: list[tuple[Job, str]] = field(default_factory=list)
    skipped: list[Job] = field(default_factory=list)


def in_order(jobs: Iterable[Job], skip: Callable[[Job], bool] = lambda job: False) -> list[Job]:
    """Return jobs and all they need, each once and after what it needs, without those to skip and what these need."""
    ordered: dict[str, Job] = {}

    def visit(job: Job) -> None:
        if job.key not in ordered and not skip(job):
            for need in job.needs:
                visit(need)
            ordered[job.key] = job

    for job in jobs:
        visit(job)
    return list(ordered.values())


def missing(jobs: Iterable[Job], place: Place) -> list[Job]:
    """Return the jobs that are still to be done, in order, without what only finished jobs need."""
    return in_order(jobs, lambda job: job.done(place))


def run(
    jobs: Sequence[Job], place: Place, *, workers: int = 0, scheduler: str | None = None, progress: bool = True
) -> Tally:
    """Do the jobs that are not done yet.

    A job that fails does not stop the others. Whenever this is interrupted, what was finished is kept, and the next
    run goes on from there.

    Args:
        jobs: what to do; what they need is done first.
        place: where.
        workers: processes on this machine; 0 does one job after another in this process.
        scheduler: address of a dask scheduler whose workers see the same folders, instead of workers here.
        progress: show a bar with the time left.
    """
    todo = missing(jobs, place)
    tally = Tally()
    if not todo:
        return tally
    with _bar(todo, max(workers, 1), progress) as bar:
        if workers or scheduler:
            _run_apart(todo, place, workers, scheduler, tally, bar)
        else:
            _run_here(todo, place, tally, bar)
    return tally


def _run_here(todo: Sequence[Job], place: Place, tally: Tally, bar: _Bar) -> None:
    bad: set[str] = set()
    for job in todo:
        if any(need.key in bad for need in job.needs):
            bad.add(job.key)
            tally.skipped.append(job)
            bar.add(job)
            continue
        bar.say(job)
        try:
            seconds = execute(job, place)
        except Exception as reason:
            bad.add(job.key)
            tally.failed.append((job, describe(reason)))
            bar.add(job)
        else:
            tally.done += 1
            tally.seconds += seconds
            bar.add(job, seconds)


def _run_apart(todo: Sequence[Job], place: Place, workers: int, scheduler: str | None, tally: Tally, bar: _Bar) -> None:
    with _client(workers, scheduler) as client:
        from distributed import as_completed

        bar.workers = max(sum(client.nthreads().values()), 1)
        futures: dict[str, Any] = {}
        jobs = {f"{job.key}-{place.keep}": job for job in todo}
        for priority, job in enumerate(todo):
            needs = [futures[need.key] for need in job.needs if need.key in futures]
            name = f"{job.key}-{place.keep}"  # those of others on this scheduler may have the same key
            futures[job.key] = client.submit(
                _after, job, job.key, place, needs, key=name, priority=-priority, pure=False
            )
        bad: set[str] = set()
        for future in as_completed(list(futures.values())):
            job = jobs[future.key]
            if future.status == "finished":
                seconds = future.result()
                tally.done += 1
                tally.seconds += seconds
                bar.add(job, seconds)
            elif any(need.key in bad for need in job.needs):
                bad.add(job.key)
                tally.skipped.append(job)
                bar.add(job)
            else:
                bad.add(job.key)
                tally.failed.append((job, describe(future.exception())))
                bar.add(job)


def _after(job: Job, key: str, place: Place, needs: Sequence[float]) -> float:
    """Do a job once the results of `needs` are there, and only if its key here is that of the sender."""
    if job.key != key:
        raise RepulseError("The code of repulse on a worker is not that of the one who sent the job: install the same.")
    return execute(job, place)


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    try:
        from dask import config
        from distributed import Client, LocalCluster
    except ImportError as reason:
        raise RepulseError(
            "More than one worker needs dask: `pip install dask distributed`, or run with `--workers 0`."
        ) from reason
    quiet = {"distributed.worker.memory.terminate": False, "distributed.admin.tick.limit": "1h"}
    # Memory that a network gives back it will want again at once; to return it to the system costs half of the time.
    memory = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**30, "OMP_NUM_THREADS": 1}
    quiet |= {"distributed.comm.timeouts.connect": "60s", "distributed.nanny.pre-spawn-environ": memory}
    with config.set(quiet):
        if scheduler:
            with Client(scheduler) as client:
                yield client
            return
        local = {"threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
        with _ignore_interrupts():
            cluster = LocalCluster(n_workers=workers, processes=True, silence_logs=logging.CRITICAL, **local)
        with cluster, Client(cluster) as client:
            yield client


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: the parent handles it and ends them in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def describe(reason: BaseException | None) -> str:
    """Return an error as one line."""
    return f"{type(reason).__name__}: {reason}" if not isinstance(reason, RepulseError) else str(reason)


class _Bar:
    """Progress over jobs, with the time left estimated from what jobs were expected to take and what they took."""

    def __init__(self, bar: tqdm, todo: Sequence[Job], workers: int) -> None:
        self.bar, self.left, self.workers = bar, sum(job.seconds for job in todo), workers
        self.expected = self.took = 30.0  # so that the first short jobs do not say much

    def say(self, job: Job) -> None:
        self.bar.set_description_str(name_of(job))

    def add(self, job: Job, seconds: float = 0.0) -> None:
        """Count a finished job; its time is 0 if it failed or another process did it."""
        self.left -= job.seconds
        if seconds:
            self.expected += job.seconds
            self.took += seconds
        ratio = min(max(self.took / self.expected, 1 / 3), 3.0)  # a few jobs say little about the rest
        minutes = self.left * ratio / self.workers / 60
        self.bar.set_description_str(name_of(job), refresh=False)
        self.bar.set_postfix_str(f"about {minutes:.0f} min left", refresh=False)
        self.bar.update()


@contextmanager
def _bar(todo: Sequence[Job], workers: int, progress: bool) -> Iterator[_Bar]:
    shape = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed} {postfix}"
    with tqdm(total=len(todo), desc=name_of(todo[0]), disable=not progress, bar_format=shape) as bar:
        yield _Bar(bar, todo, workers)


def name_of(job: Job) -> str:
    """Return a short description of a job.

    Examples:
        >>> name_of(Job(name_of, {"network": {"name": "lenet"}, "method": "LL-E", "seed": 3}))
        'name of lenet LL-E seed 3'
    """
    about = job.about
    words = [job.function.__name__.replace("_", " ")]
    for key in ("problem", "network", "method", "repulsion", "what"):
        value = about.get(key)
        words += [str(value["name"] if isinstance(value, dict) else value)] if value else []
    return " ".join(words + ([f"seed {about['seed']}"] if "seed" in about else []))[:70]


def minutes(jobs: Sequence[Job], workers: int) -> float:
    """Estimate how long jobs take: the work divided by the workers, or the longest chain of dependencies."""
    longest: dict[str, float] = {}
    for job in in_order(jobs):
        longest[job.key] = job.seconds + max((longest[need.key] for need in job.needs), default=0.0)
    total = sum(job.seconds for job in in_order(jobs))
    return max([total / max(workers, 1), *longest.values()]) / 60 if longest else 0.0
