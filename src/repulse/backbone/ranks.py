"""Several processes that compute the features of one data set together, as `torchrun` starts them.

Every process reads all batches, and runs the network on every W-th of them. After each round of W batches they exchange
what they computed, so that all hold the same rows in the order in which one process would compute them. Of a folder
that keeps features, the first process is the only one to read and write; the others are told what it finds, and map its
files in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from repulse._mapped import map_file
from repulse.backbone.store import CachedStore, Store, explaining_disk_errors
from repulse.errors import CacheError, DataError, RepulseError, expected

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_WORK = 2
"""Maximum number of pieces of work per batch: its own features, and those of repulsion samples drawn from it."""

FAILED = -1

T = TypeVar("T")


@dataclass(frozen=True)
class _Work:
    """Features that one process computes, and where all of them put the rows."""

    owner: int
    store: AnyStore
    key: str
    compute: Callable[[], Tensor] | None
    rows: int
    others: tuple[Tensor, ...]


def is_first() -> bool:
    """Check whether this is the first process, which prints for all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


class Ranks:
    """The processes that work together: all of `torch.distributed` if it was initialised, or this one alone.

    Args:
        device: where features are.
        width: how many there are of a sample.

    Attributes:
        rank: number of this process.
        size: W, how many there are.
    """

    def __init__(self, device: torch.device, width: int) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.device, self.width = device, width
        self.link = torch.device("cpu") if together and dist.get_backend() == "gloo" else device
        self.round: list[_Work] = []

    def share(
        self, i: int, store: AnyStore, key: str, compute: Callable[[], Tensor], rows: int, *others: Tensor
    ) -> None:
        """Have one process compute features of batch i; all append the rows to the store, with `others`."""
        if self.size == 1:
            store.append(key, compute(), *others)
        else:
            owner = i % self.size
            self.round.append(_Work(owner, store, key, compute if owner == self.rank else None, rows, others))

    def waiting(self, store: AnyStore) -> int:
        """Return how many rows this round will append to a store."""
        return sum(work.rows for work in self.round if work.store is store)

    def exchange(self) -> None:
        """End a round: compute what is ours, tell the others, and append everything in order."""
        if not self.round:
            return
        mine, failure = [], None
        try:
            mine = [work.compute() for work in self.round if work.compute is not None]
        except BaseException as error:  # the others must not wait for ever
            failure = error
        lengths = [*map(len, mine), 0, 0][:MAX_WORK]
        from_first_process = self._gathered(
            [FAILED if failure else DTYPES.index(mine[0].dtype) if mine else 0, *lengths]
        )
        self._check(failure, [r for r, (state, *_) in enumerate(from_first_process) if state == FAILED])
        rows = torch.zeros(
            max(sum(sizes) for _, *sizes in from_first_process),
            self.width,
            dtype=DTYPES[max(t[0] for t in from_first_process)],
            device=self.link,
        )
        if mine:
            rows[: sum(lengths)] = torch.cat(mine)
        found = [torch.empty_like(rows) for _ in from_first_process]
        dist.all_gather(found, rows)
        parts = [list(found[r][: sum(sizes)].split(sizes)) for r, (_, *sizes) in enumerate(from_first_process)]
        for work in self.round:
            work.store.append(work.key, parts[work.owner].pop(0).to(self.device), *work.others)
        self.round.clear()

    def from_first_process(self, find: Callable[[], int]) -> int:
        """Return in all processes what the first one finds."""
        if self.size == 1:
            return find()
        answer, failure = [0, 0], None
        if self.rank == 0:
            try:
                answer[1] = find()
            except BaseException as error:
                answer[0], failure = FAILED, error
        message = torch.tensor(answer, device=self.link)
        dist.broadcast(message, 0)
        state, found = message.tolist()
        self._check(failure, [0] if state == FAILED else [])
        return found

    def agree(self, compute: Callable[[], T]) -> T:
        """Compute in every process, and return in all of them what the first one computed.

        All compute, although one result counts, because a wait of minutes for the first would end in a timeout. The
        result must be picklable and on the CPU; processes of one kind differ by rounding only.
        """
        if self.size == 1:
            return compute()
        result, failure = [None], None
        try:
            result = [compute()]
        except BaseException as error:  # the others must not wait for ever
            failure = error
        self.all_done(failure)
        dist.broadcast_object_list(result, 0, device=self.link)
        return result[0]  # pyright: ignore[reportReturnType]

    def all_done(self, failure: BaseException | None) -> None:
        """Wait until all have come as far; raise what went wrong here, or say where it did."""
        from_first_process = self._gathered([FAILED if failure else 0])
        self._check(failure, [r for r, (state,) in enumerate(from_first_process) if state == FAILED])

    def check_same(self, mark: str, batches: int | None, name: str = "data") -> None:
        """Refuse data of which processes see other batches, given a mark of the first."""
        if self.size == 1:
            return
        from_first_process = self._gathered([int(mark[:14], 16), -1 if batches is None else batches])
        if any(other != from_first_process[0] for other in from_first_process):
            got = "different ones; leave out a DistributedSampler, the work is shared out here"
            raise DataError(expected(name, f"the same batches in all {self.size} processes", got))

    def _gathered(self, numbers: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(numbers, device=self.link)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine)
        return [numbers.tolist() for numbers in found]

    def _check(self, failure: BaseException | None, failed: Sequence[int]) -> None:
        if failure is not None:
            raise failure
        if failed:
            raise RepulseError(expected(f"process {failed[0]}", "done with its work", "an error, which it reports"))


class SharedStore:
    """A `CachedStore` of the first process as all of them see it.

    Args:
        ranks: the processes.
        folder: where it is; all must see the same one.
        name: of this part of the data.
        make: makes it, in the first process.
        like: a few rows of each column.
    """

    def __init__(
        self, ranks: Ranks, folder: Path, name: str, make: Callable[[], CachedStore], like: Sequence[Tensor]
    ) -> None:
        self.ranks = ranks
        self.store: CachedStore | None = None
        self.files = [folder / f"{name}.{kind}" for kind in ("features", "targets")[: len(like)]]
        self.like = like
        self.rows = 0
        self.behind = True  # whether the next batch may be there already

        def begin() -> int:
            self.store = make()
            return int(self.store.complete)

        self.complete = bool(ranks.from_first_process(begin))

    def covers(self, key: str) -> bool:
        def rows_then() -> int:
            assert self.store is not None
            return self.store.rows if self.store.covers(key) else 0

        if self.behind:
            found = self.ranks.from_first_process(rows_then)
            self.rows, self.behind = found or self.rows, found > 0
        return self.behind

    def append(self, key: str, *columns: Tensor) -> None:
        if self.store is not None:
            self.store.append(key, *columns)
        self.rows += len(columns[0])

    def finish(self) -> list[Tensor]:
        columns: list[Tensor] = []

        def end() -> int:
            assert self.store is not None
            columns.extend(self.store.finish())
            return len(columns[0])

        rows, failure = self.ranks.from_first_process(end), None
        try:
            columns = columns or [self._mapped(*one) for one in zip(self.files, [rows] * 2, self.like, strict=False)]
        except CacheError as error:
            failure = error
        self.ranks.all_done(failure)  # before the first process lets another job replace the files
        return columns

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def _mapped(self, path: Path, rows: int, like: Tensor) -> Tensor:
        shape = like.shape[1:]
        with explaining_disk_errors(path.parent):
            if path.exists() and path.stat().st_size == rows * shape.numel() * like.itemsize:
                return map_file(path, rows, shape, like.dtype)
        got = f"{path.parent}, which process {self.ranks.rank} does not see as the first one does"
        raise CacheError(expected("cache", f"a folder that all {self.ranks.size} processes share", got))


AnyStore = Store | CachedStore | SharedStore
