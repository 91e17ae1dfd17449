"""Read a data set from its start: with random states of its own, and ahead of the network where that runs on a GPU."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from repulse._progress import progress_bar
from repulse.errors import DataError, expected

_GLOBAL_STATES = threading.RLock()
"""Held while global random states are borrowed: of two threads, the second would give back what the first has set."""


def first_batch(data: Iterable[Any], seed: int, name: str = "data") -> Any:
    """Return the first batch of the data, as the pass will see it."""
    with fixed_random_state(data, seed):
        for batch in data:
            return batch
    raise DataError(expected(name, "at least one batch", "none"))


def passes(data: Iterable[Any], times: int, seed: int, device: torch.device) -> Generator[Any]:
    """Iterate over all batches, several times over, for a network on a device."""
    for number in range(times):
        with fixed_random_state(data, seed + number):
            yield from read_ahead(data, device)


@contextmanager
def fixed_random_state(data: Iterable[Any], seed: int) -> Iterator[None]:
    """Make loaders shuffle and augment as the seed says inside; outside, all random states are as before.

    One thread at a time: others wait until the states are theirs.
    """
    with _GLOBAL_STATES:
        yield from _borrowed(data, seed)


def _borrowed(data: Iterable[Any], seed: int) -> Iterator[None]:
    parts = [data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)]
    parts.append(getattr(parts[-1], "sampler", None))
    borrowed = [getattr(part, "generator", None) for part in parts]
    generators = [torch.default_generator, *(g for g in borrowed if isinstance(g, torch.Generator))]
    states = [generator.get_state() for generator in generators]
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        for generator in generators:
            generator.manual_seed(derived_seed(seed, -1))
        random.seed(derived_seed(seed, -1))
        np.random.seed(derived_seed(seed, -1) % 2**32)  # noqa: NPY002
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002


def shuffles(data: Any) -> bool:
    """Check whether a loader is known to draw its samples at random."""
    if not isinstance(data, DataLoader):
        return False
    sampler = getattr(data.batch_sampler, "sampler", data.sampler)
    return isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)


def derived_seed(seed: int, i: int) -> int:
    """Return a seed for batch i."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=7).digest(), "big")


def length_of(data: Iterable[Any]) -> int | None:
    """Return the number of batches, if the data knows it."""
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def all_of(batches: Iterable[Any], total: int | None, name: str, error: type[DataError] = DataError) -> Generator[Any]:
    """Iterate over batches, of which there must be as many as the data says: a part is not taken for all of it."""
    count = 0
    for batch in batches:
        count += 1
        yield batch
    if total is not None and count < total:
        raise error(expected(name, f"{total} batches, as its `len` says", f"{count}; the rest is missing"))


def bar(data: Iterable[Any], name: str, total: int | None, progress: bool) -> Iterable[Any]:
    """Show a progress bar over batches if they take more than two seconds."""
    return progress_bar(data, name, total=total, unit="batch", show=progress)


def read_ahead(batches: Iterable[Any], device: torch.device) -> Generator[Any]:
    """Iterate over batches, and read the next one while a GPU computes.

    Where the network runs on the CPU that gains nothing: it keeps all cores busy, and reading would only take them
    away. Loaders with workers read ahead anyway.
    """
    if device.type != "cuda" or getattr(batches, "num_workers", 0):
        yield from batches
    else:
        yield from in_background(batches, pinned)


def in_background(batches: Iterable[Any], prepare: Callable[[Any], Any]) -> Generator[Any]:
    """Iterate over batches that another thread reads and prepares, one ahead; it ends when this does, in any way.

    What reading raises is raised here, at the batch where it was. Random numbers are drawn by the reader alone, in the
    order in which it reads, so batches are those that one would read without it.
    """
    read: Queue[tuple[str, Any]] = Queue(maxsize=1)
    unwanted = threading.Event()

    def read_all(differentiable: bool) -> None:
        try:
            with torch.set_grad_enabled(differentiable):  # a thread has its own
                for batch in batches:
                    read.put(("batch", prepare(batch)))
                    if unwanted.is_set():
                        return
            read.put(("end", None))
        except BaseException as error:  # of the loader, about which this thread can do nothing
            read.put(("error", error))

    reader = threading.Thread(target=read_all, args=(torch.is_grad_enabled(),), name="repulse reads", daemon=True)
    reader.start()
    try:
        while True:
            kind, what = read.get()
            if kind == "error":
                raise what
            if kind == "end":
                return
            yield what
    finally:
        unwanted.set()
        with suppress(Empty):
            read.get_nowait()  # makes room for a reader that waits to hand over its last one
        reader.join()  # before anybody puts random states back


def pinned(batch: Any) -> Any:
    """Copy a batch to pinned memory, from which a GPU can copy by itself."""
    if isinstance(batch, Tensor):
        return batch.pin_memory() if batch.device.type == "cpu" else batch
    if isinstance(batch, Mapping):
        return {key: pinned(value) for key, value in batch.items()}
    return tuple(map(pinned, batch)) if isinstance(batch, tuple | list) else batch
