"""Test martingales: bets against "nothing has changed", whose winnings are evidence that something has.

While a stream is exchangeable its p-values are independent and uniform (`Ranks` makes them so), every bet below is
fair, and the capital M, which starts at 1, ever reaches c with probability at most 1 / c (Ville's inequality). Many
streams can be followed at once, one per row, for simulations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch

Bet = Literal["switching", "mixture", "jumper", "plugin"]

CHUNK = 256
"""Scores that are compared with each other at once."""


class Ranks:
    """Turns scores of a stream into p-values that are uniform and independent, exactly, while nothing changes.

    Each score is ranked among the calibration scores and all earlier scores of the stream, ties broken at random:
    `p = (#{above} + u (1 + #{equal})) / (n + 1)`. Compared with the calibration scores alone, p-values would share the
    chance deviations of that one sample, and any long stream would end in a false alarm. Beyond `capacity` scores, ones
    drawn at random are forgotten, which keeps p-values exact and memory constant.

    Args:
        calibration: scores of data drawn like the stream.
        capacity: most scores that are kept.
    """

    def __init__(self, calibration: np.ndarray, capacity: int) -> None:
        self.known = np.sort(np.asarray(calibration, dtype=np.float64))
        self.capacity = max(capacity, len(self.known))

    def p_values(self, scores: np.ndarray, uniform: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Rank scores one after another, and remember them."""
        found = []
        for start in range(0, len(scores), CHUNK):
            part, u = scores[start : start + CHUNK], uniform[start : start + CHUNK]
            found.append(self._ranked(part, u))
            at = np.sort(part)
            self.known = np.insert(self.known, np.searchsorted(self.known, at), at)
            if len(self.known) > self.capacity:
                kept = torch.randperm(len(self.known), generator=generator)[: self.capacity].sort().values
                self.known = self.known[kept.numpy()]
        return np.concatenate(found) if found else np.empty(0)

    def _ranked(self, scores: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        above = len(self.known) - np.searchsorted(self.known, scores, side="right")
        equal = len(self.known) - np.searchsorted(self.known, scores, side="left") - above
        earlier = np.tri(len(scores), k=-1, dtype=bool)
        above = above + ((scores[None, :] > scores[:, None]) & earlier).sum(axis=1)
        equal = equal + ((scores[None, :] == scores[:, None]) & earlier).sum(axis=1)
        count = len(self.known) + np.arange(len(scores))
        return (above + uniform * (1 + equal)) / (count + 1)


class Martingale(ABC):
    """The capital of one way of betting, for one or several streams.

    Attributes:
        log_value: logarithm of the capital, `(streams,)`.
        log_most: the largest that it ever was.
        seen: number of p-values so far.
    """

    kept: tuple[str, ...] = ("log_value", "log_most")
    """Names of the arrays that make up the state, besides `seen`."""

    def __init__(self, streams: int = 1) -> None:
        self.log_value = np.zeros(streams)
        self.log_most = np.zeros(streams)
        self.seen = 0

    def update(self, p: np.ndarray) -> None:
        """Bet on the next p-value of each stream."""
        self._bet(np.asarray(p, dtype=np.float64))
        self.seen += 1
        np.maximum(self.log_most, self.log_value, out=self.log_most)

    @abstractmethod
    def _bet(self, p: np.ndarray) -> None:
        """Change `log_value`."""


class _Experts(Martingale):
    """Shares the capital among experts, each of which bets by a density of its own; some of it changes hands.

    After each bet a share of the capital is dealt out anew, in the proportions of `prior`: an expert that is wrong
    until a change comes is not ruined by then.
    """

    kept = ("log_value", "log_most", "shares")

    def __init__(self, streams: int, prior: np.ndarray) -> None:
        super().__init__(streams)
        self.prior = prior
        self.shares = np.tile(prior, (streams, 1))

    @abstractmethod
    def densities(self, p: np.ndarray) -> np.ndarray:
        """Return the density of each expert at each p-value, `(streams, experts)`; each integrates to one."""

    @abstractmethod
    def dealt(self) -> float:
        """Return the share of the capital that is dealt out anew."""

    def _bet(self, p: np.ndarray) -> None:
        held = self.shares * self.densities(p)
        total = held.sum(axis=1)
        self.log_value = self.log_value + np.log(total)
        share = self.dealt()
        self.shares = (1 - share) * held / total[:, None] + share * self.prior


class Switching(_Experts):
    """Bets that from some time on a share of the p-values is small, whatever the time, the share and how small.

    Experts bet on `(1 - c) + (c / a) [p <= a]`, a share c of inputs whose p-values lie below a; one holds cash, one
    bets on large p-values, `1/2 + p`. At time t a share `1 / (t + 100)` is dealt out anew, so that even after a million
    quiet inputs a change costs only about 2 log t.
    """

    ENDS = (0.003, 0.01, 0.03, 0.1, 0.3)
    SHARES = (0.01, 0.05, 0.2, 0.6)

    def __init__(self, streams: int = 1) -> None:
        pairs = [(a, c) for a in self.ENDS for c in self.SHARES]
        self.a, self.c = (np.array(column) for column in zip(*pairs, strict=True))
        super().__init__(streams, np.array([0.5, *[0.5 / (len(pairs) + 1)] * (len(pairs) + 1)]))

    def densities(self, p: np.ndarray) -> np.ndarray:
        """Return those of cash, of large p-values, and of small ones."""
        p = p[:, None]
        return np.concatenate([np.ones_like(p), 0.5 + p, 1 - self.c + self.c / self.a * (p <= self.a)], axis=1)

    def dealt(self) -> float:
        """Return `1 / (t + 100)`."""
        return 1 / (self.seen + 100)


class Jumper(_Experts):
    """Bets by `1 + e (p - 1/2)` with e of -1, 0, 1: the simple jumper of Vovk, which jumps with probability 0.01."""

    SLOPES = np.array([-1.0, 0.0, 1.0])

    def __init__(self, streams: int = 1) -> None:
        super().__init__(streams, np.full(3, 1 / 3))

    def densities(self, p: np.ndarray) -> np.ndarray:
        """Return one line per slope."""
        return 1 + self.SLOPES * (p[:, None] - 0.5)

    def dealt(self) -> float:
        """Return 0.01."""
        return 0.01


class PowerMixture(Martingale):
    """Averages `prod_s e p_s^(e - 1)` over 39 values of e from 0.05 to 1, in place of the integral."""

    kept = ("log_value", "log_most", "log_p")
    POWERS = np.linspace(0.05, 1, 39)

    def __init__(self, streams: int = 1) -> None:
        super().__init__(streams)
        self.log_p = np.zeros(streams)

    def _bet(self, p: np.ndarray) -> None:
        self.log_p = self.log_p + np.log(p)
        each = (self.seen + 1) * np.log(self.POWERS) + (self.POWERS - 1) * self.log_p[:, None]
        most = each.max(axis=1)
        self.log_value = most + np.log(np.exp(each - most[:, None]).mean(axis=1))


class PlugIn(Martingale):
    """Bets by a histogram of all earlier p-values, with finer bins near zero, that starts out flat."""

    kept = ("log_value", "log_most", "counts")
    EDGES = np.array([0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    WEIGHT = 100
    """Number of uniform p-values that the histogram starts with."""

    def __init__(self, streams: int = 1) -> None:
        super().__init__(streams)
        self.counts = np.zeros((streams, len(self.EDGES) - 1))

    def _bet(self, p: np.ndarray) -> None:
        at = np.clip(np.searchsorted(self.EDGES, p, side="left") - 1, 0, None)
        rows, widths = np.arange(len(p)), np.diff(self.EDGES)
        mass = (self.counts[rows, at] + self.WEIGHT * widths[at]) / (self.seen + self.WEIGHT)
        self.log_value = self.log_value + np.log(mass / widths[at])
        self.counts[rows, at] += 1


BETS: dict[str, type[Switching | PowerMixture | Jumper | PlugIn]] = {
    "switching": Switching,
    "mixture": PowerMixture,
    "jumper": Jumper,
    "plugin": PlugIn,
}
"""Ways of betting, by name."""


def threshold_for(false_alarm: float, number: int = 1) -> float:
    """Return the log capital at which one of `number` martingales may alarm: `log(number / false_alarm)`.

    By the union bound at least one of them alarms, ever, with probability at most `false_alarm`, however they depend on
    each other.
    """
    return math.log(number / false_alarm)
