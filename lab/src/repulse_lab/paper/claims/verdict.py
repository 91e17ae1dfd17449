"""From differences over seeds to a verdict. This is the one rule by which all claims are judged.

A claim is one statement. Its parts are the places at which it must hold: networks, sets, methods that it is about. A
part says in which range a difference (ours minus theirs) lies: above zero if ours is better, within a tolerance of
zero if both are the same.

Part.   It holds if the 95 % interval of the mean difference (Student's t, paired by seed) is inside the range, fails
        if it is outside, and is open otherwise.
Lone.   A single run of something random has no interval and decides nothing. Where nothing is random on either side
        (published weights), the difference decides if it is larger than a margin: three times the largest gap between
        two numbers that the paper prints for one and the same thing (0.32 points of AUROC, 0.07 of ECE, 0.06 of
        accuracy), and 0.02 nats of NLL, which is our own choice. The same margin is what "the same" means where a
        claim does not say.
Claim.  It is confirmed if all its parts hold, and contradicted if one fails; both at the same level, without correction
        for the number of parts, which is named. Where the paper says "most", more than half of the parts decide; where
        it says "some", one that holds is enough, and only all together contradict.
Open.   Otherwise there were not enough runs: the verdict says how many it would take, at the difference and the spread
        that were seen, to decide the parts that are open. If that is more than a hundred, the difference is at the
        edge of what is claimed, and the claim is undecided.
        Parts for which data, networks or methods are missing do not count, and are named; without parts, a claim is
        not testable here.

Intervals are over what seeds change: networks where these are trained here, heads alone where they are published. Deep
ensembles that leave out one network each share the others: they differ by less than ensembles that are apart would.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repulse_lab.study.claims import CONFIRMED, CONTRADICTED, NOT_ENOUGH, UNDECIDED, UNTESTABLE

LEVEL = 0.95
MOST_RUNS = 100
"""Number of runs beyond which more of them would not decide a claim either."""
FEWEST_RUNS = 3
"""Number of runs that something random needs at least."""
SHOWN, LISTED = 3, 8
"""Maximum number of parts, and of things that are missing, named in a sentence."""


@dataclass(frozen=True)
class Kind:
    """What a metric is.

    Attributes:
        unit: of its differences.
        lower: whether lower is better.
        margin: how far a single run can be trusted.
        digits: to print.
    """

    unit: str
    lower: bool = False
    margin: float = math.inf
    digits: int = 2


def kind(metric: str) -> Kind:
    """Return the kind of a metric, by its name."""
    first = metric.split(" ", maxsplit=1)[0]
    named = {
        "accuracy": Kind("points", margin=0.2),
        "ece": Kind("points", lower=True, margin=0.2),
        "nll": Kind("nats", lower=True, margin=0.02, digits=3),
        "epistemic": Kind("nats", digits=3),
        "aleatoric": Kind("nats", digits=3),
        "std": Kind("", digits=3),
        "final": Kind("points"),
        "parameters": Kind("parameters", lower=True, digits=0),
    }
    other = Kind("points", lower=True) if metric == "ambiguous share" else Kind("points", margin=1.0)
    return named.get(first, other)


def interval(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Compute Student's t interval of a mean, or None for less than two values."""
    if len(differences) < 2:
        return None
    middle = statistics.fmean(differences)
    half = _half_width(len(differences), statistics.stdev(differences), level)
    return middle - half, middle + half


def _half_width(count: int, deviation: float, level: float = LEVEL) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.5 + level / 2)) * deviation / math.sqrt(count)


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes:
        about: both sides and their means, in words.
        differences: ours minus theirs, one per seed.
        low: what the difference is claimed to be above.
        high: what the difference is claimed to be below.
        kind: of the metric.
        lone: whether one side is a single run of something random.
    """

    about: str
    differences: tuple[float, ...]
    low: float
    high: float
    kind: Kind
    lone: bool = False

    @property
    def effect(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.lone else interval(self.differences)

    def _range(self) -> tuple[float, float]:
        """Return the interval or, if nothing is random, what takes its place."""
        return self.interval or (self.effect - self.kind.margin, self.effect + self.kind.margin)

    @property
    def state(self) -> str:
        """Return "holds", "fails" or "open"."""
        low, high = self._range()
        if self.lone:
            return "open"
        if low > self.low and high < self.high:
            return "holds"
        return "fails" if high < self.low or low > self.high else "open"

    @property
    def needed(self) -> int | None:
        """Return how many runs would decide it at this difference and spread; None if more than `MOST_RUNS`."""
        if self.lone:
            return FEWEST_RUNS
        if len(self.differences) < 2:
            return None
        room = min(abs(self.effect - self.low), abs(self.high - self.effect))
        deviation = statistics.stdev(self.differences)
        return next((n for n in range(2, MOST_RUNS + 1) if _half_width(n, deviation) < room), None)

    @property
    def clearance(self) -> float:
        """Return how far the difference is inside its range (or, negative, outside), in half widths of its interval."""
        low, high = self._range()
        return min(self.effect - self.low, self.high - self.effect) / max((high - low) / 2, 1e-9)

    def confidence(self) -> str:
        digits, found = self.kind.digits, self.interval
        if found is None:
            why = "one side is a single run" if self.lone else "nothing is random here"
            return f"{why}, so no interval; difference {self.effect:+.{digits}f}"
        right = sum(self.low < one < self.high for one in self.differences)
        said = f"{right} of {len(self.differences)} seeds; mean difference {self.effect:+.{digits}f}, "
        return said + f"95 % interval {found[0]:+.{digits}f} to {found[1]:+.{digits}f}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        word: one of `repulse_lab.study.claims.VERDICTS`.
        evidence: a sentence or two.
        effect: the difference of the part that decides.
        unit: of the effect.
        interval: its 95 % interval.
        confidence: how sure that is.
    """

    word: str
    evidence: str
    effect: float | None = None
    unit: str = ""
    interval: tuple[float, float] | None = None
    confidence: str = ""


def decide(parts: Sequence[Part], absent: Sequence[str] = (), need: str = "all") -> Verdict:
    """Decide a claim.

    Args:
        parts: that could be tested.
        absent: what others would have needed.
        need: how many parts must hold: "all", "most" or "some".
    """
    lacking = f" Not here: {_listed(list(absent), LISTED)}." if absent else ""
    if not parts:
        return Verdict(UNTESTABLE, lacking.strip() or "Nothing to compare.")
    states = [part.state for part in parts]
    by_state = {state: [p for p, s in zip(parts, states, strict=True) if s == state] for state in set(states)}
    word = _word(by_state, len(parts), need)
    wanted = {CONFIRMED: "holds", CONTRADICTED: "fails"}.get(word, "open")
    deciding = sorted(by_state.get(wanted, parts), key=lambda part: part.clearance)
    chosen = deciding[-1 if need == "some" and word == CONFIRMED else 0]
    evidence = _evidence(word, chosen, by_state, len(parts)) + lacking
    if word == NOT_ENOUGH:
        evidence += f" Runs that it needs: {max(part.needed or 0 for part in by_state['open'])}."
    return Verdict(word, evidence, chosen.effect, chosen.kind.unit, chosen.interval, chosen.confidence())


def _word(by_state: Mapping[str, Sequence[Part]], count: int, need: str) -> str:
    holding, failing = (len(by_state.get(state, ())) for state in ("holds", "fails"))
    holds, fails = {
        "all": (holding == count, failing > 0),
        "most": (2 * holding > count, 2 * failing > count),
        "some": (holding > 0, failing == count),
    }[need]
    if holds or fails:
        return CONFIRMED if holds else CONTRADICTED
    opened = by_state.get("open", ())
    return NOT_ENOUGH if opened and all(part.needed for part in opened) else UNDECIDED


def _evidence(word: str, chosen: Part, by_state: dict[str, list[Part]], count: int) -> str:
    if count == 1:
        return f"{chosen.about}."
    holding = len(by_state.get("holds", []))
    every = "both" if count == 2 else f"all {count}"
    said = f"Holds in {every if holding == count else f'{holding} of {count}'} parts"
    if word == CONFIRMED:
        return f"{said}; the one that decides: {chosen.about}."
    for state in ("fails", "open"):
        found = sorted(by_state.get(state, []), key=lambda part: part.clearance)
        said += f"; {state} for {_listed([part.about for part in found])}" if found else ""
    return said + "."


def _listed(items: list[str], most: int = SHOWN) -> str:
    rest = len(items) - most
    return "; ".join(items[:most]) + (f"; and {rest} more" if rest > 0 else "")
