"""What all experiments found, to be asked by label: values by seed, and what is not there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from repulse.errors import DataError, expected
from repulse_lab.paper.printed import STANDS_IN
from repulse_lab.study.experiment import Outcome
from repulse_lab.study.output import FILE, Findings, read

Seed = str | int | None
PLACES = ("network", "task", "collection")
"""Labels that say on what a method was run, so that methods are compared only where these agree."""


@dataclass(frozen=True, eq=False)
class Picked:
    """Outcomes that differ by their seeds."""

    outcomes: Sequence[Outcome]

    def values(self, metric: str) -> dict[Seed, float]:
        """Return values by seed; outcomes of the same seed are averaged, and what is not finite is left out."""
        found: dict[Seed, list[float]] = {}
        for outcome in self.outcomes:
            value = next((outcome.figures[name] for name in _really(metric) if name in outcome.figures), math.nan)
            if math.isfinite(value):
                found.setdefault(outcome.labels.get("seed"), []).append(value)
        return {seed: statistics.fmean(values) for seed, values in found.items()}


@dataclass(frozen=True, eq=False)
class Results:
    """The findings of experiments."""

    findings: Sequence[Findings]

    @staticmethod
    def read(folder: Path) -> Results:
        """Read all that is in the folder of a preset."""
        if not folder.is_dir():
            raise DataError(expected("folder", "a folder with the results of experiments", str(folder)))
        return Results([read(path.parent) for path in sorted(folder.glob(f"*/{FILE}"))])

    @property
    def preset(self) -> str:
        """Return how experiments were run."""
        return self.findings[0].preset if self.findings else ""

    @cached_property
    def _outcomes(self) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for one in self.findings:
            own = [
                outcome for outcome in one.outcomes if not outcome.labels.get("beyond")
            ]  # of which it claims nothing
            found.setdefault(one.name, []).extend(own)
        return found

    def outcomes(self, experiment: str) -> list[Outcome]:
        return self._outcomes.get(experiment, [])

    def pick(self, experiment: str, **labels: str | None) -> Picked:
        """Return outcomes with these labels, in which a star stands for anything.

        A method without a repulsion set is one that has none, and without layers one on the last. Where the set that
        another stands in for is there, it is taken.
        """
        found = self.outcomes(experiment)
        # The method comes first, since it leaves the fewest.
        fixed = {label: wanted for label, wanted in labels.items() if label != "repulsion"}
        for label, wanted in ({"method": "*"} | fixed | {"layers": fixed.get("layers", "last")}).items():
            found = [one for one in found if _fits(one, label, wanted)] if wanted != "*" else found
        for repulsion in _really(labels.get("repulsion")):
            repelled = [one for one in found if _fits(one, "repulsion", repulsion)]
            if repelled:
                return Picked(repelled)
        return Picked([])

    def places(self, experiment: str) -> list[dict[str, str]]:
        """Return on what methods were run, in order: network and, where there are any, task and collection."""
        return self._places.get(experiment, [])

    @cached_property
    def _places(self) -> dict[str, list[dict[str, str]]]:
        found: dict[str, dict[tuple[tuple[str, str], ...], None]] = {name: {} for name in self._outcomes}
        for name, outcomes in self._outcomes.items():
            for one in outcomes:
                place = [(label, str(one.labels[label])) for label in PLACES if one.labels.get(label) is not None]
                found[name][tuple(place)] = None
        return {name: [dict(place) for place in places] for name, places in found.items()}

    def metrics(self, experiment: str, pattern: str) -> list[str]:
        """Return names of metrics that a pattern fits; means over severities are no corruptions of their own."""
        names = {name: None for outcome in self.outcomes(experiment) for name in outcome.figures}
        return [name for name in names if fnmatchcase(name, pattern) and "severity" not in name]

    def lacking(self, experiment: str, labels: Mapping[str, str | None], metric: str) -> str:
        """Say why there is no such value: the first thing that is not there."""
        if not self.outcomes(experiment):
            said = " ".join(one for found in self.findings if found.name == experiment for one in found.missing)
            return f"results of {experiment}" + (f" ({said.rstrip('.')})" if said else "")
        asked: dict[str, str | None] = {"repulsion": "*", "layers": "*"}
        for label in (*PLACES, "method", "repulsion"):
            if label in labels:
                asked[label] = labels[label]
                if not self.pick(experiment, **asked).outcomes:
                    return _said(label, labels)
        return metric


def _fits(outcome: Outcome, label: str, wanted: str | None) -> bool:
    value = outcome.labels.get(label) or ("last" if label == "layers" else None)
    if wanted == "*" or value is None or wanted is None:
        return wanted == "*" or value is wanted
    return fnmatchcase(str(value), wanted) if "*" in wanted else value == wanted


def _really(name: str | None) -> list[str | None]:
    """Return a name with the set that another stands in for, if one does, and then as it is."""
    swapped = name
    for real, other in STANDS_IN.items():
        swapped = swapped and swapped.replace(other, real)
    return [swapped, name]


def _said(label: str, labels: Mapping[str, str | None]) -> str:
    if label == "repulsion":
        return f"{labels['method']} repelled on {labels['repulsion']}"
    return str(labels[label]).replace("DE-*", "a deep ensemble")


def common(sides: Iterable[Mapping[Seed, float]]) -> list[Seed]:
    """Return the seeds that all sides have, in order."""
    first, *others = sides
    return [seed for seed in first if all(seed in other for other in others)]
