"""Read `claims.toml`, in which every claim is written down with the comparison that decides it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from repulse.errors import RecipeError, expected
from repulse_lab.paper.claims.relations import RELATIONS, Case, Claim, Side

FILE = Path(__file__).with_name("claims.toml")
LOWEST = "lowest"
SAME = "same"
"""On the right of a comparison: the row that is on its left."""


def read_claims(path: Path = FILE) -> tuple[Claim, ...]:
    """Return every claim of the file, in its order."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(claim_of(name, about, content["names"]) for name, about in content["claims"].items())


def read_settings(path: Path = FILE) -> dict[str, str]:
    """Return, by experiment, how its cpu preset differs from the paper's setting."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["settings"]


def claim_of(name: str, about: Mapping[str, Any], names: Mapping[str, str]) -> Claim:
    """Return one claim as the file has it."""
    about, lines = dict(about), about["holds"]
    del about["holds"]
    lines = [line.format_map(names) for line in ([lines] if isinstance(lines, str) else lines)]
    relations = {relation for relation in RELATIONS for line in lines if f" {relation} " in line}
    if len(relations) != 1:
        raise RecipeError(expected(f"the claim {name!r}", f"one of the relations {', '.join(RELATIONS)}", lines))
    (relation,) = relations
    found = [case for line in lines for case in cases(*line.split(f" {relation} "))]
    experiments = tuple(about.pop("experiments"))
    return Claim(name, experiments=experiments, relation=relation, cases=tuple(found), **about)


def cases(left: str, right: str) -> list[Case]:
    """Pair each row on the left with each on the right, in each metric and place; the right has the left's by default.

    Examples:
        >>> [(ours.row, theirs.row, ours.metric) for ours, theirs in cases("LL-E : ece | nll", "MAP")]
        [('LL-E', 'MAP', 'ece'), ('LL-E', 'MAP', 'nll')]
    """
    rows, metrics, places = _parsed(left)
    others, other_metrics, other_places = _parsed(right)
    found = []
    for row, other, metric, place in product(rows, others, metrics, places or [""]):
        theirs = Side(
            row if other == SAME else other, (other_metrics or [metric])[0], *_at((other_places or [place])[0])
        )
        ours = Side(row, metric, *_at(place))
        found += [(ours, theirs)] if ours != theirs else []
    return found


def _parsed(side: str) -> tuple[list[str], list[str], list[str]]:
    """Split "rows : metrics @ places"."""
    rest, _, places = side.partition(" @ ")
    rows, _, metrics = rest.partition(" : ")
    return (
        rows.strip().split(" | "),
        metrics.strip().split(" | ") if metrics else [],
        places.strip().split(" | ") if places else [],
    )


def _at(place: str) -> tuple[dict[str, str], bool]:
    """Return what is fixed of a place, and whether it is the worst network."""
    if place in ("", LOWEST):
        return {}, place == LOWEST
    label = "collection" if place.endswith("-C") else "task" if place.endswith(" start") else "network"
    return {label: place}, False
