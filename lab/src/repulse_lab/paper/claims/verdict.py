"""From differences over seeds to a verdict. This is the one rule by which all claims are judged.

A claim is one or more parts; a part says in which range a difference (ours minus theirs) lies: above zero if ours is
better, within a tolerance of zero if both are the same.

Part.   It holds if the 95 % interval of the mean difference (Student's t, paired by seed) is inside the range, fails
        if it is outside, and is open otherwise.
Single. Where one side is a single run and the other several (one deep ensemble takes all networks), the single run is
        taken to vary as much as the others do, and at least by the margin of a lone run, which widens the interval.
Lone.   Where both are single runs there is no interval. The difference, widened by a margin, takes its place: three
        times the largest gap between two numbers that the paper prints for one and the same thing (0.32 points of
        AUROC, 0.07 of ECE, 0.06 of accuracy), and 0.02 nats of NLL, which is our own choice; for other metrics
        nothing is decided. The same margin is what "the same" means where a claim does not say.
Claim.  It is confirmed if all its parts hold, and contradicted if one fails at a level that is divided among the
        parts, so that many parts do not make a failure likely. For "most", more than half of the parts decide; for
        "some", one that holds is enough, and only all together contradict. Otherwise it is undecided.
        Parts for which data, networks or methods are missing do not count, and are named; without parts, a claim is
        not testable here.

Intervals are over what seeds change: networks where these are trained here, heads alone where they are published.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from repulse_lab.study.claims import CONFIRMED, CONTRADICTED, UNDECIDED, UNTESTABLE

LEVEL = 0.95
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


def interval(differences: Sequence[float], level: float = LEVEL, single: bool = False) -> tuple[float, float] | None:
    """Compute Student's t interval of a mean, or None for less than two values.

    Args:
        differences: one per seed.
        level: how often such intervals hold what they are of.
        single: whether all are differences from one run, which is itself as random as they are.
    """
    from scipy.special import stdtrit

    count = len(differences)
    if count < 2:
        return None
    middle, spread = statistics.fmean(differences), statistics.stdev(differences)
    half = float(stdtrit(count - 1, 0.5 + level / 2)) * spread * math.sqrt(1 / count + single)
    return middle - half, middle + half


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes:
        about: both sides and their means, in words.
        differences: ours minus theirs, one per seed.
        low: what the difference is claimed to be above.
        high: what the difference is claimed to be below.
        kind: of the metric.
        single: whether one side is a single run.
    """

    about: str
    differences: tuple[float, ...]
    low: float
    high: float
    kind: Kind
    single: bool = False

    @property
    def effect(self) -> float:
        return statistics.fmean(self.differences)

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        found = interval(self.differences, level, self.single)
        if found is None or not self.single or math.isinf(self.kind.margin):
            return found
        half = max((found[1] - found[0]) / 2, self.kind.margin)
        return self.effect - half, self.effect + half

    def _range(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval or, of a lone run, what takes its place."""
        return self.interval(level) or (self.effect - self.kind.margin, self.effect + self.kind.margin)

    def state(self, level: float = LEVEL) -> str:
        """Return "holds", "fails" or "open"."""
        low, high = self._range(level)
        if low > self.low and high < self.high:
            return "holds"
        return "fails" if high < self.low or low > self.high else "open"

    @property
    def clearance(self) -> float:
        """Return how far the difference is inside its range (or, negative, outside), in half widths of its interval."""
        low, high = self._range()
        return min(self.effect - self.low, self.high - self.effect) / max((high - low) / 2, 1e-9)

    def confidence(self) -> str:
        digits, found = self.kind.digits, self.interval()
        if found is None:
            return f"one seed, so no interval; difference {self.effect:+.{digits}f}"
        right = sum(self.low < one < self.high for one in self.differences)
        said = f"{right} of {len(self.differences)} seeds; mean difference {self.effect:+.{digits}f}, "
        said += f"95 % interval {found[0]:+.{digits}f} to {found[1]:+.{digits}f}"
        return said + (", one side being a single run" if self.single else "")


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
    states = [part.state() for part in parts]
    word = _word(parts, states, need)
    by_state = {state: [p for p, s in zip(parts, states, strict=True) if s == state] for state in set(states)}
    wanted = {CONFIRMED: ["holds"], CONTRADICTED: ["fails"], UNDECIDED: ["open", "fails"]}[word]
    deciding = sorted((p for state in wanted for p in by_state.get(state, [])), key=lambda part: part.clearance)
    chosen = (deciding or list(parts))[-1 if need == "some" and word == CONFIRMED else 0]
    evidence = _evidence(word, chosen, by_state, len(parts)) + lacking
    return Verdict(word, evidence, chosen.effect, chosen.kind.unit, chosen.interval(), chosen.confidence())


def _word(parts: Sequence[Part], states: Sequence[str], need: str) -> str:
    count = len(parts)
    strict = [part.state(1 - (1 - LEVEL) / count) for part in parts]
    holds, fails = {
        "all": (states.count("holds") == count, "fails" in strict),
        "most": (2 * states.count("holds") > count, 2 * states.count("fails") > count),
        "some": ("holds" in strict, states.count("fails") == count),
    }[need]
    return CONFIRMED if holds else CONTRADICTED if fails else UNDECIDED


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
