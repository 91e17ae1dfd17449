"""Get real data from its publishers, when asked: `python -m repulse_lab.data.fetch FOLDER [NAME ...]`.

Without names, every set is fetched whose download is not large. What is there stays as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from repulse.errors import DataError, RecipeError
from repulse_lab.data.download import fetch, missing
from repulse_lab.data.registry import Entry, about, find, names
from repulse_lab.data.remotes import CATALOGUE, WEIGHTS, Remote

__all__ = ["REMOTES", "Remote", "fetch", "main", "missing"]

LARGE = 500
"""Megabytes from which a set is fetched only by its name."""

OFFERED = [name for name, known in CATALOGUE.items() if known["remotes"]]
REMOTES = tuple({remote.url: remote for name in OFFERED for remote in CATALOGUE[name]["remotes"]}.values()) + WEIGHTS
"""Everything that can be fetched."""

Row = tuple[str, str, str]
"""State, name and a note."""


def main() -> None:
    """Fetch into the folder named on the command line, and say what is there, missing and left to do by hand."""
    parser = argparse.ArgumentParser(prog="python -m repulse_lab.data.fetch", description="Fetch data sets.")
    parser.add_argument("folder", nargs="?", default="data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(OFFERED)}")
    given = parser.parse_args()
    try:
        chosen = [about(name) for name in given.names or names()]
    except RecipeError as error:
        parser.error(str(error))
    real = [entry for entry in chosen if all(entry.layouts(entry.splits[0]))]
    rows = [_have(entry, given.folder, bool(given.names)) for entry in real]
    if not given.names:
        failed = _get(WEIGHTS, given.folder)
        rows.append(("missing" if failed else "there", "weights", failed or "published networks for CIFAR-10"))
    width = max((len(name) for _, name, _ in rows), default=0)
    for state, name, note in rows:
        print(f"{state:<7}  {name:<{width}}  {note}")
    print(f"\nexport REPULSE_DATA={given.folder.resolve()}")
    sys.exit(any(state == "missing" for state, _, _ in rows))


def _have(entry: Entry, root: Path, asked: bool) -> Row:
    """Fetch a set if it is not there, and say how things stand."""
    size = sum(remote.megabytes for remote in entry.remotes)
    why = entry.by_hand
    if not all(_there(entry, root)) and entry.remotes:
        why = _get(entry.remotes, root) if asked or size < LARGE else f"{size} MB: fetched only by its name"
    there = _there(entry, root)
    if all(there):
        return "there", entry.name, entry.title
    if any(there):
        return "partly", entry.name, f"{sum(there)} of {len(there)} splits; {why}"
    if entry.remotes and not asked and size >= LARGE:
        return "large", entry.name, why
    if entry.remotes:
        return "missing", entry.name, why
    return "by hand", entry.name, f"{why}; {entry.homepage}"


def _there(entry: Entry, root: Path) -> list[bool]:
    return [find(root, entry.layouts(split)) is not None for split in entry.splits]


def _get(remotes: tuple[Remote, ...], root: Path) -> str:
    """Fetch all, and say what failed first."""
    failures = []
    for remote in remotes:
        try:
            fetch(remote, root)
        except DataError as error:
            failures.append(str(error))
    rest = f" ({len(failures) - 1} more failed)" if failures[1:] else ""
    return failures[0] + rest if failures else ""


if __name__ == "__main__":
    main()
