"""Ways to say that one thing is better than another, or the same, wherever both were run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product

from repulse.baselines import METHODS
from repulse_lab.paper.claims.results import Results, Seed, common
from repulse_lab.paper.claims.verdict import Kind, Part, Verdict, decide, kind
from repulse_lab.study.claims import JudgedClaim
from repulse_lab.study.presets import PUBLISHED


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        row: a method, with its repulsion set after a plus; a star stands for anything.
        metric: name of the figure; with a star, all that fit it.
        at: labels that are fixed, such as the network.
        lowest: whether it is about the lowest value over all networks.
    """

    row: str
    metric: str
    at: Mapping[str, str] = field(default_factory=dict)
    lowest: bool = False

    @property
    def labels(self) -> dict[str, str | None]:
        method, _, repulsion = self.row.partition(" + ")
        return {"method": method, "repulsion": repulsion or None, **self.at}

    def values(self, results: Results, experiment: str, place: Mapping[str, str]) -> dict[Seed, float]:
        """Return the values by seed."""
        if not self.lowest:
            return results.pick(experiment, **{**place, **self.labels}).values(self.metric)
        found = [
            results.pick(experiment, **{**p, **self.labels}).values(self.metric) for p in results.places(experiment)
        ]
        return {seed: min(one[seed] for one in found) for seed in common(found)} if len(found) > 1 else {}

    def words(self, other: Side) -> str:
        """Return the row, and what of it differs from the other side."""
        said = [_plain(self.row), *([self.metric] if self.metric != other.metric else [])]
        return ", ".join([*said, *(self.at.values() if self.at != other.at else [])])


Case = tuple[Side, Side]
Bounds = Callable[[Kind, float | None], tuple[float, float]]


def bounds_of_better(kind: Kind, within: float | None = None) -> tuple[float, float]:
    """Return where a difference lies if ours is better: higher, or lower where lower is better."""
    return (-math.inf, 0.0) if kind.lower else (0.0, math.inf)


def _bounds_of_no_worse(kind: Kind, within: float | None) -> tuple[float, float]:
    """Return where a difference lies if ours is worse by at most `within`."""
    most = within or 0.0
    return (-math.inf, most) if kind.lower else (-most, math.inf)


def _bounds_of_same(kind: Kind, within: float | None) -> tuple[float, float]:
    """Return where a difference lies if both differ by at most `within`, or else by what a single run may be off."""
    most = kind.margin if within is None else within
    return -most, most


RELATIONS: dict[str, Bounds] = {">": bounds_of_better, ">=": _bounds_of_no_worse, "~": _bounds_of_same}


@dataclass(frozen=True, eq=False)
class Claim:
    """Something the paper says.

    Attributes:
        id: short name.
        text: the claim, in our words.
        source: where the paper makes it.
        experiments: that can test it.
        relation: one of `RELATIONS`, which holds between both sides of each case.
        cases: what is compared.
        within: of the relation.
        need: how many comparisons must hold; see `decide`.
    """

    id: str
    text: str
    source: str
    experiments: tuple[str, ...]
    relation: str
    cases: tuple[Case, ...]
    within: float | None = None
    need: str = "all"

    def test(self, results: Results) -> Verdict:
        """Return what results say to it."""
        parts: list[Part] = []
        run = [one for one in self.experiments if results.outcomes(one)]
        absent = {results.lacking(one, {}, ""): None for one in self.experiments if one not in run}
        for case in self.cases:
            # What two experiments share counts once, though sums come out differently on other processors.
            found = {
                (part.about, len(part.differences)): part
                for one in run
                for each in _expanded(results, one, case)
                for part in parts_of(results, one, each, RELATIONS[self.relation], self.within)
            }
            parts += found.values()
            absent |= {} if found else {_absent(results, one, case): None for one in run}
        return decide(parts, list(absent), self.need)

    def judged(self, results: Results, settings: Mapping[str, str]) -> JudgedClaim:
        """Return the claim with its verdict, as it is kept.

        Args:
            results: of the experiments.
            settings: by experiment, how it differs from the paper's.
        """
        found = self.test(results)
        run = [one for one in self.experiments if results.outcomes(one)]
        setting = "; ".join(f"{one}: {settings[one]}" for one in run if one in settings)
        return JudgedClaim(
            *(self.id, self.text, self.source, found.word, found.evidence, found.effect, found.unit),
            *(found.interval, found.confidence, self.experiments, setting),
        )


def _expanded(results: Results, experiment: str, case: Case) -> list[Case]:
    """Return a case for each metric that a pattern fits."""
    ours, theirs = case
    if "*" not in ours.metric:
        return [case]
    names = results.metrics(experiment, ours.metric) or [ours.metric]
    return [(Side(ours.row, name, ours.at), Side(theirs.row, name, theirs.at)) for name in names]


def parts_of(results: Results, experiment: str, case: Case, bounds: Bounds, within: float | None = None) -> list[Part]:
    """Return a part for each place at which both sides were run."""
    ours, theirs = case
    fixed = set(ours.at) & set(theirs.at)
    free = [{k: v for k, v in place.items() if k not in fixed} for place in results.places(experiment)]
    places = [{}] if ours.lowest else [place for i, place in enumerate(free) if place not in free[:i]]
    found = []
    for place in places:
        left, right = (side.values(results, experiment, place) for side in case)
        pairs, lone = _paired(left, right, case, place)
        if pairs:
            words = _words(ours, theirs, pairs, list(place.values()))
            of = kind(ours.metric)
            found.append(Part(words, tuple(a - b for a, b in pairs), *bounds(of, within), of, lone))
    return found


def _paired(
    left: dict[Seed, float], right: dict[Seed, float], case: Case, place: Mapping[str, str]
) -> tuple[list[tuple[float, float]], bool]:
    """Pair values of both sides by seed; also return whether one of them is a lone run of something random.

    What is not random is run once, and compared with every run of the other side.
    """
    if min(len(left), len(right)) != 1:
        return [(left[seed], right[seed]) for seed in common([left, right])], False
    sides = zip((left, right), case, strict=True)
    lone = any(len(values) == 1 and not _is_certain(side, place) for values, side in sides)
    return list(product(left.values(), right.values())), lone


def _is_certain(side: Side, place: Mapping[str, str]) -> bool:
    """Check whether nothing about a row is random: neither its fit nor, where weights are published, its networks."""
    published = {**place, **side.at}.get("network") in {one.label for one in PUBLISHED.networks}
    if side.row.startswith("DE-"):
        return published or side.metric == "parameters"
    return side.row in METHODS and not METHODS[side.row].random


def _words(ours: Side, theirs: Side, pairs: list[tuple[float, float]], where: list[str]) -> str:
    digits = kind(ours.metric).digits
    mine, other = (f"{statistics.fmean(values):.{digits}f}" for values in zip(*pairs, strict=True))
    metric = [] if theirs.metric != ours.metric else [ours.metric]
    shared = list(ours.at.values()) if theirs.at == ours.at else []
    where = [*metric, *shared, *where]
    said = f"{ours.words(theirs)} {mine} against {theirs.words(ours)} {other}"
    return said + (f" ({', '.join(where)})" if where else "")


def _absent(results: Results, experiment: str, case: Case) -> str:
    """Return what a case would have needed."""
    for side in case:
        if not side.values(results, experiment, {}):
            return results.lacking(experiment, side.labels, side.metric)
    rows = " and ".join(_plain(side.row) for side in case)
    return f"{rows} with the same network and seed"


def _plain(row: str) -> str:
    """Return a row without its stars."""
    return row.removesuffix(" + *").replace("-*", "").replace("*", "")
