"""Ways to say that one thing is better than another, or the same, wherever both were run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from repulse.baselines import METHODS
from repulse_lab.paper.claims.results import Results, Seed, common
from repulse_lab.paper.claims.verdict import Kind, Part, Verdict, decide, kind
from repulse_lab.study.claims import JudgedClaim


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

    def words(self, other: Side | float) -> str:
        """Return the row, and what of it differs from the other side."""
        said = [_plain(self.row)]
        if isinstance(other, Side):
            said += [self.metric] if self.metric != other.metric else []
            said += list(self.at.values()) if self.at != other.at else []
        return ", ".join(said)


Case = tuple[Side, Side | float]
Bounds = Callable[[Kind], tuple[float, float]]
Check = Callable[[Results, Sequence[str]], Verdict]


@dataclass(frozen=True, eq=False)
class Claim:
    """Something the paper says.

    Attributes:
        id: short name.
        text: the claim, in our words.
        source: where the paper makes it.
        experiments: that can test it.
        check: from results and experiments to a verdict.
    """

    id: str
    text: str
    source: str
    experiments: tuple[str, ...]
    check: Check

    def test(self, results: Results) -> Verdict:
        """Return what results say to it."""
        return self.check(results, self.experiments)

    def judged(self, results: Results) -> JudgedClaim:
        """Return the claim with its verdict, as it is kept."""
        found = self.test(results)
        return JudgedClaim(
            *(self.id, self.text, self.source, found.word, found.evidence, found.effect, found.unit),
            *(found.interval, found.confidence, self.experiments),
        )


def cases(
    rows: str | Sequence[str], others: str | Sequence[str], metrics: str | Sequence[str], **at: str
) -> list[Case]:
    """Pair each row with each other one, in each metric."""
    every = product(_many(rows), _many(others), _many(metrics))
    return [(Side(row, metric, at), Side(other, metric, at)) for row, other, metric in every if row != other]


def better(what: Iterable[Case], need: str = "all") -> Check:
    """Check that ours is better: higher, or lower where lower is better."""
    return _check(what, bounds_of_better, need)


def bounds_of_better(kind: Kind) -> tuple[float, float]:
    """Return where a difference lies if ours is better."""
    return (-math.inf, 0.0) if kind.lower else (0.0, math.inf)


def no_worse(what: Iterable[Case], within: float, need: str = "all") -> Check:
    """Check that ours is worse by at most `within`."""
    return _check(what, lambda kind: (-math.inf, within) if kind.lower else (-within, math.inf), need)


def same(what: Iterable[Case], within: float | None = None, need: str = "all") -> Check:
    """Check that ours differs by at most `within`, or else by what a single run may be off."""

    def bounds(kind: Kind) -> tuple[float, float]:
        most = kind.margin if within is None else within
        return -most, most

    return _check(what, bounds, need)


def _check(what: Iterable[Case], bounds: Bounds, need: str) -> Check:
    what = list(what)

    def check(results: Results, experiments: Sequence[str]) -> Verdict:
        parts: list[Part] = []
        absent = {results.lacking(one, {}, ""): None for one in experiments if not results.outcomes(one)}
        run = [one for one in experiments if results.outcomes(one)]
        for case in what:
            # What two experiments share counts once.
            found = {
                (part.about, part.differences): part
                for one in run
                for each in _expanded(results, one, case)
                for part in parts_of(results, one, each, bounds)
            }
            parts += found.values()
            absent |= {} if found else {_absent(results, one, case): None for one in run}
        return decide(parts, list(absent), need)

    return check


def _expanded(results: Results, experiment: str, case: Case) -> list[Case]:
    """Return a case for each metric that a pattern fits."""
    ours, theirs = case
    if "*" not in ours.metric or not isinstance(theirs, Side):
        return [case]
    names = results.metrics(experiment, ours.metric) or [ours.metric]
    return [(Side(ours.row, name, ours.at), Side(theirs.row, name, theirs.at)) for name in names]


def parts_of(results: Results, experiment: str, case: Case, bounds: Bounds) -> list[Part]:
    """Return a part for each place at which both sides were run."""
    ours, theirs = case
    fixed = set(ours.at) & (set(theirs.at) if isinstance(theirs, Side) else set(ours.at))
    free = [{k: v for k, v in place.items() if k not in fixed} for place in results.places(experiment)]
    places = [{}] if ours.lowest else [place for i, place in enumerate(free) if place not in free[:i]]
    found = []
    for place in places:
        left = ours.values(results, experiment, place)
        right = theirs.values(results, experiment, place) if isinstance(theirs, Side) else {}
        pairs, single = _paired(left, right, ours, theirs)
        if pairs:
            words = _words(ours, theirs, pairs, list(place.values()))
            of = kind(ours.metric)
            found.append(Part(words, tuple(a - b for a, b in pairs), *bounds(of), of, single))
    return found


def _paired(
    left: dict[Seed, float], right: dict[Seed, float], ours: Side, theirs: Side | float
) -> tuple[list[tuple[float, float]], bool]:
    """Pair values of both sides by seed; also return whether one of them is a single run against several.

    What is run once is compared with every run of the other side.
    """
    if not isinstance(theirs, Side):
        return [(value, float(theirs)) for value in left.values()], False
    if min(len(left), len(right)) != 1:
        return [(left[seed], right[seed]) for seed in common([left, right])], False
    sides = ((left, ours), (right, theirs))
    certain = any(len(values) == 1 and _is_deterministic(side.row) for values, side in sides)
    return list(product(left.values(), right.values())), not certain


def _is_deterministic(row: str) -> bool:
    return row in METHODS and not METHODS[row].random


def _words(ours: Side, theirs: Side | float, pairs: list[tuple[float, float]], where: list[str]) -> str:
    digits = kind(ours.metric).digits
    mine, other = (f"{statistics.fmean(values):.{digits}f}" for values in zip(*pairs, strict=True))
    their = f"{theirs.words(ours)} {other}" if isinstance(theirs, Side) else other
    metric = [] if isinstance(theirs, Side) and theirs.metric != ours.metric else [ours.metric]
    shared = list(ours.at.values()) if not isinstance(theirs, Side) or theirs.at == ours.at else []
    where = [*metric, *shared, *where]
    return f"{ours.words(theirs)} {mine} against {their}" + (f" ({', '.join(where)})" if where else "")


def _absent(results: Results, experiment: str, case: Case) -> str:
    """Return what a case would have needed."""
    for side in case:
        if isinstance(side, Side) and not side.values(results, experiment, {}):
            return results.lacking(experiment, side.labels, side.metric)
    rows = " and ".join(_plain(side.row) for side in case if isinstance(side, Side))
    return f"{rows} with the same network and seed"


def _plain(row: str) -> str:
    """Return a row without its stars."""
    return row.removesuffix(" + *").replace("-*", "").replace("*", "")


def _many(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names
