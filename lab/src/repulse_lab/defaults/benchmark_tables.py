"""Tables of classes of the R package mlbench, which nothing was chosen on: what a user with a table may expect."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from repulse_lab import data
from repulse_lab.data.tables import MLBENCH
from repulse_lab.defaults.problem import Problem, Samples
from repulse_lab.defaults.tables import LARGE, SMALL, classes

MOST_ROWS = 10_000
"""Rows of a table, at most."""

LEFT_OUT = {"vehicle": 1, "vowel": 2, "satellite": 1, "glass": 1, "letter": 3}
"""Number of classes that the network does not know."""


def _load(name: str, root: Path) -> Any:
    contents = data.load(f"mlbench-{name}", "all", root)
    rows = Samples(contents.inputs, contents.targets).at_most(MOST_ROWS)  # pyright: ignore[reportArgumentType]
    assert rows.targets is not None
    return rows.inputs.numpy(), rows.targets.numpy()  # pyright: ignore[reportAttributeAccessIssue]


def _left_out(name: str, seed: int) -> tuple[int, ...]:
    """Return classes that differ from seed to seed."""
    return tuple((seed + 7 * i) % MLBENCH[name].classes for i in range(LEFT_OUT.get(name, 0)))


def _title(name: str) -> str:
    unknown = LEFT_OUT.get(name, 0)
    return f"{MLBENCH[name].title}, {f'{unknown} of ' if unknown else ''}{MLBENCH[name].classes} classes" + (
        " unknown, MLP" if unknown else ", MLP"
    )


PROBLEMS = tuple(
    Problem(
        name,
        _title(name),
        f"mlbench-{name}",
        "reporting",
        partial(
            classes,
            partial(_load, name),
            partial(_left_out, name),
            LARGE if name in ("letter", "satellite", "shuttle") else SMALL,
        ),
    )
    for name in MLBENCH
)
"""All problems on these tables."""
