"""Child processes for tests that kill: a server that imports torch once, and forks a child for every task.

A child ticks: before each pass of its network, and before each thing it does to a file of its folder (as the audit
events of Python tell), it says so through a pipe and then dawdles for a moment. A test that kills it at a tick, or a
part of a tick later, can so kill it between any two steps, however busy the machine is.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import repulse
from repulse.backbone import split
from repulse.backbone.features import Features, compute_features
from repulse.backbone.fingerprint import digest_of
from repulse.repulsion import UniformBox

TICK = 0.002
"""Seconds that a child waits at a tick."""

LONG = 60
"""Seconds that it stays to be killed."""

BATCHES, ROWS, WIDTH = 8, 16, 8
SOURCE = UniformBox(-3, 3)
NOBODY = 65534


class Children:
    """The server, seen from the tests."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", __file__]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, task: str, *, linger: bool = False, stall: int = 0, **arguments: Any) -> int:
        """Fork a child for a task of this file.

        It stays to be killed: with `linger` after it is done, and with `stall` at that tick.
        """
        return self._ask(do="start", task=task, linger=linger, stall=stall, arguments=arguments)["child"]

    def end(self, child: int, tick: int | None = None, later: float = 0.0) -> dict[str, Any]:
        """Wait for a child, or kill it at a tick: what it answered, how often it ticked, and which signal ended it."""
        return self._ask(do="end", child=child, tick=tick, later=later)

    def run(self, task: str, *, tick: int | None = None, later: float = 0.0, **arguments: Any) -> dict[str, Any]:
        return self.end(self.start(task, linger=tick is not None, **arguments), tick, later)

    def close(self) -> None:
        self.server.communicate(timeout=60)

    def _ask(self, **question: Any) -> dict[str, Any]:
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


def network() -> nn.Module:
    """The same small classifier in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))


def batches(rows: int = ROWS) -> list[tuple[Tensor, Tensor]]:
    """The same data in every process."""
    x = torch.randn(rows * BATCHES, 4, generator=torch.Generator().manual_seed(1))
    return list(zip(x.split(rows), (torch.arange(len(x)) % 3).split(rows), strict=True))


def computed(rows: int = ROWS, **settings: Any) -> tuple[Features, int]:
    """Features of that network, data and source, and how many passes of the network they took."""
    model, data = network(), batches(rows)
    backbone = split(model, data[0][0])
    passes = counting(model)
    settings = {"samples": rows * BATCHES, **settings}  # one pass per batch
    return compute_features(backbone, data, SOURCE, progress=False, **settings), len(passes)


def counting(model: nn.Module) -> list[int]:
    """A list that grows by the size of its batch at each pass of a model."""
    passes: list[int] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        tick()
        passes.append(len(output))

    model.register_forward_hook(hook)
    return passes


def tick() -> None:
    """Say so, and wait; nothing in a process that is no child."""
    if _ticking.pipe is None:
        return
    os.write(_ticking.pipe, b".")
    _ticking.count += 1
    time.sleep(LONG if _ticking.count == _ticking.stall else TICK)


@dataclass
class _Ticking:
    pipe: int | None = None
    stall: int = 0
    count: int = 0


_ticking = _Ticking()


def build(folder: str, rows: int = ROWS) -> dict[str, Any]:
    """Keep features in a folder, dawdling."""
    _tick_in(folder)
    features, passes = computed(rows, cache=folder)
    return {"passes": passes, "digest": digest_of(features.train, features.targets, features.repulsion)}


def build_in_little_room(folder: str, rows: int, room: int) -> dict[str, Any]:
    """Keep features where no file can be longer than `room` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    computed(rows, cache=folder)
    return {}


def spill_in_little_room(folder: str, rows: int, room: int) -> dict[str, Any]:
    """Compute features without a cache, but beyond the memory limit, where no file can be longer than `room` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    tempfile.tempdir = folder
    computed(rows, memory_limit=0)
    return {}


def use_while_mended(folder: str) -> dict[str, Any]:
    """Read features that were had from a folder while that folder, since damaged, is filled anew."""
    model, data = network(), batches(1000)
    backbone = split(model, data[0][0])
    features = compute_features(backbone, data, None, cache=folder, progress=False)
    before = digest_of(features.train)
    with open(f"{folder}/train.features", "r+b") as file:
        file.write(b"damage")
    kept: list[bool] = []
    model.register_forward_hook(lambda *_: kept.append(digest_of(features.train[1000:]) == after))
    after = digest_of(features.train[1000:])
    compute_features(backbone, data, None, cache=folder, progress=False)
    return {"kept": kept, "same": before == digest_of(compute_features(backbone, data, None, progress=False).train)}


class Noisy(Dataset):
    """Inputs that are different each time, by all three random states there are."""

    def __init__(self, size: float) -> None:
        self.x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
        self.size = size

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        shift = torch.randn(4) + random.random() + np.random.random()  # noqa: NPY002
        return self.x[i] + self.size * shift, i % 3


class Ending(DataLoader):
    """A loader that breaks after so many batches in all."""

    left = 1000

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            if not self.left:
                raise EOFError("no more batches")
            self.left -= 1
            yield batch


def augment(
    folder: str | None, passes: int, seed: int = 0, shuffle: bool = False, size: float = 0.1, left: int = 1000
) -> dict[str, Any]:
    """Features of data that is augmented at random: here and not in the tests, where beartype draws numbers too."""
    model = network()
    generator = torch.Generator().manual_seed(5) if shuffle else None
    data = Ending(Noisy(size), batch_size=8, shuffle=shuffle, generator=generator)
    data.left = left
    backbone, counted = split(model, data.dataset.x), counting(model)
    random.seed()
    torch.seed()

    def states() -> list[Any]:
        own = None if generator is None else generator.get_state().tolist()
        return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()), own]  # noqa: NPY002

    before = states()
    said: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            settings = {"samples": 24 * passes, "augmentations": passes, "seed": seed, "cache": folder}
            found = compute_features(backbone, data, SOURCE, progress=False, **settings)
            said["features"], said["targets"] = found.train.tolist(), found.targets.tolist()
            said["digest"] = digest_of(found.train, found.targets, found.repulsion)
        except EOFError:
            said["broke"] = True
    said["states kept"] = states() == before
    return {**said, "passes": len(counted), "warned": [str(warning.message) for warning in warned]}


def build_as_nobody(folder: str) -> dict[str, Any]:
    """Keep features, or use those that are kept, as somebody who may not write there."""
    _become_nobody()
    features, passes = computed(cache=folder)
    return {"passes": passes, "digest": digest_of(features.train, features.targets, features.repulsion)}


def save(folder: str, source: str) -> dict[str, Any]:
    """Save the ensemble of another folder, dawdling."""
    ensemble = repulse.load(source, network())
    _tick_in(folder)
    ensemble.save(folder)
    return {}


def save_as_nobody(folder: str, source: str) -> dict[str, Any]:
    """Save an ensemble as somebody who may not write there."""
    ensemble = repulse.load(source, network())
    _become_nobody()
    ensemble.save(folder)
    return {}


def save_in_little_room(folder: str, source: str, room: int) -> dict[str, Any]:
    """Save an ensemble where no file can be longer than `room` bytes."""
    ensemble = repulse.load(source, network())
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    ensemble.save(folder)
    return {}


def _become_nobody() -> None:
    if os.geteuid() == 0:  # root may write everywhere
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)


def _tick_in(folder: str) -> None:
    """Tick before everything that is done to the files of a folder, and after each is opened."""

    def inside(path: object) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(folder)

    def opening(call: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, *settings: Any, **named: Any) -> Any:
            file = call(path, *settings, **named)
            if inside(path):
                tick()
            return file

        return opened

    def syncing(call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(file: int) -> None:
            tick()
            call(file)

        return synced

    builtins.open = io.open = opening(io.open)
    os.open, os.fsync = opening(os.open), syncing(os.fsync)
    sys.addaudithook(lambda event, details: tick() if details and inside(details[0]) else None)


def _child(task: str, linger: bool, stall: int, arguments: dict[str, Any], ticks: int, answer: int) -> None:
    _ticking.pipe, _ticking.stall = ticks, stall
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = io.StringIO()
    try:
        said = TASKS[task](**arguments)
    except Exception as reason:
        said = {"error": type(reason).__name__, "words": str(reason)}
    os.write(answer, json.dumps({**said, "stderr": sys.stderr.getvalue()}).encode())
    os.write(ticks, b"!")
    if linger:
        time.sleep(LONG)


def _serve() -> None:
    torch.set_num_threads(1)
    running: dict[int, tuple[int, int]] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "start":
            ticks, ticking = os.pipe()
            answer, answering = os.pipe()
            child = os.fork()
            if not child:
                try:
                    _child(
                        question["task"],
                        question["linger"],
                        question["stall"],
                        question["arguments"],
                        ticking,
                        answering,
                    )
                finally:
                    os._exit(0)
            os.close(ticking)
            os.close(answering)
            running[child] = (ticks, answer)
            reply = {"child": child}
        else:
            reply = _end(question["child"], *running.pop(question["child"]), question["tick"], question["later"])
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    for child in running:
        os.kill(child, signal.SIGKILL)


def _end(child: int, ticks: int, answer: int, at: int | None, later: float) -> dict[str, Any]:
    count = 0
    while at is None or count < at:
        if os.read(ticks, 1) != b".":
            break  # it is done
        count += 1
    if at is not None:
        time.sleep(later * TICK)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(answer, "rb") as file:
        said = json.loads(file.read() or b"{}")
    os.close(ticks)
    return {**said, "ticks": count, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


TASKS = {
    task.__name__: task
    for task in (
        build,
        build_in_little_room,
        spill_in_little_room,
        augment,
        use_while_mended,
        build_as_nobody,
        save,
        save_as_nobody,
        save_in_little_room,
    )
}

if __name__ == "__main__":
    _serve()
