"""Every data set by its name: what it is, where its files lie, and how they are read.

A set is one `Entry`; `register` adds one. Files are looked for in the user's folder, in each layout that the entry
knows, the publisher's own first; they are downloaded only when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from repulse.errors import DataError, RecipeError, RepulseError, check_choice, expected
from repulse_lab.data.dataset import Contents, DataSet
from repulse_lab.data.download import fetch
from repulse_lab.data.remotes import Remote

Layouts = Sequence[Sequence[str]]
"""Ways to lay out a split: the paths of each way below the data folder, files or folders; of files also with `.gz`."""


@dataclass(frozen=True)
class Found:
    """What a reader is given.

    Attributes:
        root: the data folder.
        paths: those of the first layout that is all there.
        split: which part to read.
        progress: whether to show a bar if it takes long.
    """

    root: Path
    paths: tuple[Path, ...]
    split: str
    progress: bool = True


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded by its name.

    Attributes:
        name: what to call it.
        title: what it is, in a line.
        splits: its parts.
        read: from files to contents.
        layouts: of a split, where its files may lie; `(("a", "b"), ("c",))` is "a and b, or c", `((),)` needs no file.
        shape: of one input; None for texts.
        classes: names of the classes, or how many; 0 for regression and for what has none.
        licence: under which the publisher offers it.
        homepage: of the publisher.
        citation: of the paper, in a line.
        remotes: what the publisher offers for download.
        by_hand: what else to do to have it, where a download cannot.
    """

    name: str
    title: str
    splits: tuple[str, ...]
    read: Callable[[Found], Contents]
    layouts: Callable[[str], Layouts]
    shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] | int = 0
    licence: str = ""
    homepage: str = ""
    citation: str = ""
    remotes: tuple[Remote, ...] = ()
    by_hand: str = ""


_entries: dict[str, Entry] = {}


def register(entry: Entry) -> Entry:
    """Make a data set known by its name."""
    if entry.name in _entries:
        raise RecipeError(expected("name", "that of no other data set", repr(entry.name)))
    _entries[entry.name] = entry
    return entry


def names() -> list[str]:
    """Return the names of all data sets."""
    return sorted(_entries)


def about(name: str) -> Entry:
    """Return what is known of a data set without reading it."""
    check_choice("name", name, names())
    return _entries[name]


def load(
    name: str, split: str = "train", root: str | Path | None = None, *, download: bool = False, progress: bool = True
) -> DataSet:
    """Read one split of a data set.

    Args:
        name: one of `names()`.
        split: one of `about(name).splits`.
        root: folder of all data sets; without it, the one that the environment variable REPULSE_DATA names.
        download: whether to get from the publisher what is missing.
        progress: whether to show bars for what takes long.
    """
    entry = about(name)
    check_choice("split", split, entry.splits)
    layouts = entry.layouts(split)
    folder = data_root(root) if all(layouts) else Path()
    paths = find(folder, layouts)
    if paths is None and download:
        for remote in entry.remotes:
            fetch(remote, folder, progress)
        paths = find(folder, layouts)
    if paths is None:
        raise DataError(_missing(entry, split, folder, layouts))
    contents = _read(entry, Found(folder, paths, split, progress))
    named = contents.classes or (entry.classes if isinstance(entry.classes, tuple) else ())
    return DataSet(name, split, contents.inputs, contents.targets, named, paths, contents.soft)


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of all data sets: the one given, or the one that the environment names."""
    named = root or os.environ.get("REPULSE_DATA")
    if not named:
        raise DataError("Expected a folder of data sets: pass `root`, or set the environment variable REPULSE_DATA.")
    return Path(named)


def find(root: Path, layouts: Layouts) -> tuple[Path, ...] | None:
    """Return the paths of the first layout that is all there."""
    for layout in layouts:
        paths = [_there(root, path) for path in layout]
        if None not in paths:
            return tuple(path for path in paths if path)
    return None


def _there(root: Path, path: str) -> Path | None:
    return next((p for p in (root / path, root / f"{path}.gz") if p.exists()), None)


def _read(entry: Entry, found: Found) -> Contents:
    try:
        contents = entry.read(found)
    except (RepulseError, ImportError, MemoryError):
        raise
    except Exception as reason:  # a damaged file fails in as many ways as there are formats
        where = ", ".join(str(path) for path in found.paths)
        got = f"{type(reason).__name__} ({reason}) from {where}"
        raise DataError(expected(f"the files of {entry.name}", "whole and in their format", got)) from reason
    inputs, targets = contents.inputs, contents.targets
    if entry.shape and isinstance(inputs, Tensor) and tuple(inputs.shape[1:]) != entry.shape:
        got = f"{tuple(inputs.shape[1:])} in {', '.join(str(path) for path in found.paths)}"
        raise DataError(expected(f"each input of {entry.name}", f"of shape {entry.shape}", got))
    count = entry.classes if isinstance(entry.classes, int) else len(entry.classes)
    if count and targets is not None and len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < count:
        got = f"{int(targets.min())} to {int(targets.max())}"
        raise DataError(expected(f"the labels of {entry.name}", f"from 0 to {count - 1}", got))
    return contents


def _missing(entry: Entry, split: str, folder: Path, layouts: Layouts) -> str:
    absent = [[path for path in layout if not _there(folder, path)] for layout in layouts]
    looked = "; or ".join(
        ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if paths[4:] else "") for paths in absent
    )
    ways = (
        [f"pass download=True, or run `python -m repulse_lab.data.fetch {folder} {entry.name}`"]
        if entry.remotes
        else []
    )
    ways += [f"by hand: {entry.by_hand}"] if entry.by_hand else []
    message = f"Expected {entry.title} (split {split!r}) in {folder}, but these are not there: {looked}."
    message += f" To have it, {'; or '.join(ways)}." if ways else ""
    return message + (f" Its home is {entry.homepage}" if entry.homepage else "")
