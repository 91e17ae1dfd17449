"""Features larger than memory: files that are mapped and walked part by part.

Pages of a mapped file count as memory of the process from the first look at them, so whoever has walked over a part
gives its pages back; the system still has them at hand as long as it has room. Blocks of rows are read rather than
looked at, because a look at one page may bring many others along.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor

from repulse.errors import CacheError

MAX_ROWS, MAX_ELEMENTS = 65_536, 2**22
"""Maximum number of rows, and of elements in them (16 MB), processed at once."""


class _Mapping(mmap.mmap):
    file: FileIO


_MAPPED: WeakValueDictionary[int, _Mapping] = WeakValueDictionary()  # by address


@torch.inference_mode(False)  # whose tensors do not know whether they were written to
def map_file(path: Path, rows: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the first rows in a file as a tensor whose pages are read on first access.

    What torch writes to it stays in memory, and the file as it was; writing by other ways, such as `.numpy()` or
    `.data`, goes unnoticed and may be lost.
    """
    size = rows * torch.Size(shape).numel() * dtype.itemsize
    file = FileIO(path)
    mapping = _Mapping(file.fileno(), size, access=mmap.ACCESS_COPY)
    mapping.file = file
    finalize(mapping, file.close)
    values = torch.frombuffer(mapping, dtype=dtype).view(rows, *shape)
    _MAPPED[values.data_ptr()] = mapping
    return values


def release_pages(values: Tensor) -> None:
    """Release the memory of a mapped file that was read, unless it was written to; other tensors are left alone."""
    mapping = _unwritten(values)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _unwritten(values: Tensor) -> _Mapping | None:
    mapping = _MAPPED.get(values.untyped_storage().data_ptr())
    return mapping if mapping is not None and values._version == 0 else None


def read_blocks(values: Tensor, begins: Sequence[int], rows: int) -> Tensor:
    """Return blocks of `rows` consecutive rows, one after the other; those of a mapped file are read from it."""
    blocks = [values[begin : begin + rows] for begin in begins]
    mapping = _unwritten(values)
    if mapping is None or not values.is_contiguous() or not hasattr(os, "preadv"):
        return torch.cat(blocks)
    read = values.new_empty(sum(map(len, blocks)), *values.shape[1:])
    parts = read.split([len(block) for block in blocks])
    for block, part in zip(blocks, parts, strict=True):
        begin, room = int(block.storage_offset()) * block.itemsize, part.flatten().view(torch.uint8).numpy().data
        while len(room):
            got = os.preadv(mapping.file.fileno(), [room], begin)  # needs no place in the file, which threads share
            if not got:
                raise CacheError(f"{mapping.file.name} has become shorter since its features were mapped.")
            begin, room = begin + got, room[got:]
    return read


def row_chunks(values: Tensor, most: int = MAX_ROWS) -> Iterator[Tensor]:
    """Iterate over all rows in order, at most `most` at once; a part must not be used after the next was requested."""
    for part in values.split(min(most, max(MAX_ELEMENTS // max(values[:1].numel(), 1), 1))):
        yield part
        release_pages(values)
