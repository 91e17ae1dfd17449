"""Rows of features, appended batch by batch and read back as one tensor: in memory, or in a folder that survives.

`Store` keeps rows in memory up to a limit and in a temporary file beyond it. `CachedStore` keeps them in a folder:

    train.json       the fingerprint of what computes them, and the type and shape of a row
    train.features   the numbers, row after row; train.targets likewise
    train.journal    a line of JSON a batch, written after its rows: how many, and digests of inputs and rows; at last
                     a line that says it is complete

A build that was killed goes on after the last batch in the journal, if its rows still have their digest and the batch
still has the inputs it had. A build from another network, other weights or other data is not continued, and no build
that is not complete is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from repulse import _locks
from repulse._files import read_regular, sealed, sweep, unsealed, write_whole
from repulse._mapped import map_file
from repulse.backbone.fingerprint import as_bytes
from repulse.errors import CacheError, CacheWarning, DataError, expected

MEMORY_LIMIT = 4 * 2**30
"""Maximum number of bytes of features kept in memory; more go to a temporary file."""

FORMAT = 2
REASONS = {
    "weights": "the weights of the network have changed",
    "layers": "other layers of the network are read",
    "data": "the data, or how it is drawn, has changed",
    "columns": "the features have another type or shape",
    "format": "another version of repulse wrote it",
}


class Store:
    """Rows in memory, or in a temporary file beyond `limit` bytes.

    Attributes:
        rows: how many there are.
        complete: whether all rows of all batches are there already.
    """

    complete = False

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.rows = 0
        self.limit = limit
        self.parts: list[tuple[Tensor, ...]] = []
        self.bytes = 0
        self.spilled: CachedStore | None = None

    def covers(self, key: str) -> bool:
        """Check whether the next batch is there already; if so, go on to the one after it."""
        return False

    def append(self, key: str, *columns: Tensor) -> None:
        """Add the rows of one batch: features, and perhaps targets."""
        for column, before in zip(columns, self.parts[0] if self.parts else (), strict=False):
            if column.shape[1:] != before.shape[1:]:
                got = f"{tuple(before.shape[1:])} and then {tuple(column.shape[1:])}"
                raise DataError(expected("features and targets", "of one shape in every batch", got))
        self.rows += len(columns[0])
        self.bytes += sum(column.nbytes for column in columns)
        if self.spilled is None and self.bytes > self.limit:
            folder = Path(tempfile.mkdtemp(prefix="repulse-"))
            try:
                self.spilled = CachedStore(folder, "features", {}, columns)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            for part in self.parts:
                self.spilled.append("", *part)
            self.parts.clear()
        if self.spilled is None:
            self.parts.append(columns)
        else:
            self.spilled.append(key, *columns)

    def finish(self) -> list[Tensor]:
        """Return all rows of each column."""
        if self.spilled is None:
            return [torch.cat(column) for column in zip(*self.parts, strict=True)]
        columns = self.spilled.finish()
        self.close()  # what is mapped stays readable
        return columns

    def close(self) -> None:
        """Leave nothing behind."""
        if self.spilled is not None:
            self.spilled.close()
            shutil.rmtree(self.spilled.folder, ignore_errors=True)


class CachedStore:
    """Rows in files of a folder; see the top of this file.

    Args:
        folder: where; it must be locked by the caller.
        name: of this part of the data.
        fingerprint: of everything that decides the rows.
        like: a few rows of each column.
    """

    def __init__(self, folder: Path, name: str, fingerprint: Mapping[str, Any], like: Sequence[Tensor]) -> None:
        self.folder, self.name = folder, name
        self.kinds = [(column.dtype, tuple(column.shape[1:])) for column in like]
        self.files = [folder / f"{name}.{kind}" for kind in ("features", "targets")[: len(like)]]
        self.journal = folder / f"{name}.journal"
        self.lines: list[dict[str, Any]] = []
        self.rows = self.cursor = 0
        self.complete = self.shared = False
        self.open: list[IO[bytes]] = []
        written = {
            "format": FORMAT,
            "columns": [[str(dtype), list(shape)] for dtype, shape in self.kinds],
            **fingerprint,
        }
        with self._explaining():
            self._check_fingerprint(json.loads(json.dumps(written)))
            self._read_journal()
            self._truncate(len(self.lines))

    def covers(self, key: str) -> bool:
        if self.cursor < len(self.lines):
            if self.lines[self.cursor]["inputs"] == key:
                self.rows += self.lines[self.cursor]["rows"]
                self.cursor += 1
                return True
            self._warn_recomputed(f"its batch {self.cursor} is of other data")
            with self._explaining():
                self._truncate(self.cursor)
        return False

    def append(self, key: str, *columns: Tensor) -> None:
        with self._explaining():
            digest = hashlib.blake2b(digest_size=16)
            for file, column, (dtype, shape) in zip(self.open, columns, self.kinds, strict=True):
                if tuple(column.shape[1:]) != shape:
                    wanted = f"of shape {shape} in every batch"
                    raise CacheError(expected("features and targets", wanted, tuple(column.shape[1:])))
                if column.dtype != dtype:
                    raise CacheError(expected("features and targets", f"{dtype} in every batch", column.dtype))
                numbers = as_bytes(column)
                digest.update(numbers)
                file.write(numbers)
                file.flush()
            line = {"rows": len(columns[0]), "inputs": key, "stored": digest.hexdigest()}
            self._log(line)
            self.lines.append(line)
            self.rows += len(columns[0])
            self.cursor += 1

    def finish(self) -> list[Tensor]:
        with self._explaining():
            if not self.complete:
                self._truncate(self.cursor)  # what an earlier, longer build may have left
                self._log({"complete": len(self.lines)})
                self.complete = True
            rows = sum(line["rows"] for line in self.lines)
            kinds = zip(self.files, self.kinds, strict=True)
            return [map_file(path, rows, shape, dtype) for path, (dtype, shape) in kinds]

    def close(self) -> None:
        for file in self.open:
            with suppress(OSError):  # rows that found no room, of which the journal knows nothing
                file.close()

    def _check_fingerprint(self, written: dict[str, Any]) -> None:
        """Continue a build that has the same fingerprint; otherwise start over, and say why."""
        path = self.folder / f"{self.name}.json"
        for file in (path, self.journal):
            sweep(file)
        found = None
        if path.exists():
            try:
                found = unsealed(read_regular(path))
            except ValueError:
                found = {}
            if not isinstance(found.get("model", {}), dict):
                found = {}
        if found == written:
            return
        if found:
            if "model" in written and found.get("model") not in (None, written["model"]):
                got = f"a folder with features of another one, {found['model'].get('class')}; choose another folder"
                raise CacheError(expected("cache", f"features of this {written['model']['class']}", got))
            changed = [reason for key, reason in REASONS.items() if found.get(key) != written.get(key)]
            if not changed and "function" in found:
                changed = ["the network makes something else of the first batch"]
            self._warn_recomputed(" and ".join(changed) or "its fingerprint is unreadable")
        elif found is not None:
            self._warn_recomputed("its fingerprint is unreadable")
        for stale in (path, self.journal, *self.files):  # unlinked, not overwritten: others may be reading them
            stale.unlink(missing_ok=True)
        write_whole(path, sealed(written))

    def _read_journal(self) -> None:
        """Read which batches are in the files as the journal says, up to the first that is not."""
        if not self.journal.exists() or not all(path.exists() for path in self.files):
            return
        text = read_regular(self.journal).decode(errors="replace")
        self.shared = '{"complete"' in text
        sizes = [dtype.itemsize * _product(shape) for dtype, shape in self.kinds]
        files = [path.open("rb") for path in self.files]
        try:
            for part in text.splitlines():
                try:
                    line = json.loads(part)
                    if "complete" in line:
                        self.complete = line["complete"] == len(self.lines) > 0
                        return
                    digest = hashlib.blake2b(digest_size=16)
                    for file, size in zip(files, sizes, strict=True):
                        digest.update(file.read(line["rows"] * size))
                    good = digest.hexdigest() == line["stored"] and isinstance(line["inputs"], str)
                except (ValueError, KeyError, TypeError):
                    return  # a line cut short by a kill
                if not good:
                    self._warn_recomputed(f"what it holds of batch {len(self.lines)} is damaged")
                    return
                self.lines.append(line)
        finally:
            for file in files:
                file.close()

    def _truncate(self, batches: int) -> None:
        """Forget all but the first batches, on disk too, and be ready to append."""
        self.close()
        self.open = []
        if self.complete and batches == len(self.lines):
            self.rows = sum(line["rows"] for line in self.lines)
            return
        self.complete = False
        del self.lines[batches:]
        rows = sum(line["rows"] for line in self.lines)
        write_whole(self.journal, "".join(_json_line(line) for line in self.lines))
        for path, (dtype, shape) in zip(self.files, self.kinds, strict=True):
            path.touch()
            size = rows * dtype.itemsize * _product(shape)
            if self.shared and path.stat().st_size > size:  # others may be reading it: leave them what they have
                with path.open("rb") as whole:
                    write_whole(path, whole.read(size))
            file = path.open("r+b")
            file.truncate(size)
            file.seek(0, 2)
            self.open.append(file)

    def _log(self, line: dict[str, Any]) -> None:
        with self.journal.open("a") as journal:
            journal.write(_json_line(line))

    def _warn_recomputed(self, why: str) -> None:
        where = f"{self.folder / self.name}"
        warnings.warn(f"The features kept in {where} are recomputed: {why}.", CacheWarning, stacklevel=2)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        with explaining_disk_errors(self.folder):
            yield


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Lock a folder for this process, and make it if needed; waits for a process that has it.

    A folder that nobody may write to needs no lock: what is complete in it can be read, and nothing else is.
    """
    with ExitStack() as stack:
        with explaining_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(_locks.locked(folder / "lock", f"is filling {folder}"))
            except OSError as reason:
                if reason.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
        yield folder


@contextmanager
def explaining_disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system raises inside into an error that names the folder."""
    try:
        yield
    except CacheError:
        raise
    except OSError as reason:
        got = f"{folder}, where {reason.strerror or reason}"
        raise CacheError(
            expected("cache", "a folder that can be written to, with room for the features", got)
        ) from reason


def _json_line(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True) + "\n"


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
