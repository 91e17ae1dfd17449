"""How often watches raise a false alarm, and how fast they find a change, over many streams drawn from pools.

The online detector to compare with is that of alibi-detect for one number: the Cramér-von Mises distance between
calibration scores and sliding windows of the stream, with thresholds from simulated streams. Its thresholds are set so
that it raises as many false alarms, over streams as long, as the watch promises.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from repulse.decide.conformal import randomised_p_values
from repulse.decide.martingales import BETS, Ranks, threshold_for
from repulse.decide.watch import REMEMBERED

QUIET = 1000
"""Inputs before a change."""
WINDOWS, STEP = (50, 200), 10
"""Windows of the detector to compare with, and inputs between two looks of it."""


@dataclass(frozen=True)
class Streams:
    """Streams of scores, and their calibration data.

    Attributes:
        calibration: `(streams, m)`.
        scores: `(streams, length)`.
    """

    calibration: np.ndarray
    scores: np.ndarray


def drawn(
    pool: np.ndarray, other: np.ndarray, share: float, count: int, length: int, calibration: int, seed: int
) -> Streams:
    """Draw streams from a pool, with replacement; after `QUIET` inputs a share of them comes from elsewhere."""
    made = np.random.default_rng(seed)
    scores = made.choice(pool, (count, length))
    foreign = (made.random((count, length)) < share) & (np.arange(length) >= QUIET)
    scores = np.where(foreign, made.choice(other, (count, length)), scores) if share else scores
    return Streams(made.choice(pool, (count, calibration)), scores)


def p_values(streams: Streams, *, fixed: bool = False) -> np.ndarray:
    """Rank each stream among its calibration data and its past; among the calibration data alone if `fixed`."""
    made, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    uniform = 1 - made.random(streams.scores.shape)
    found = np.empty_like(streams.scores)
    for i, (calibration, scores) in enumerate(zip(streams.calibration, streams.scores, strict=True)):
        if fixed:
            known, new = torch.from_numpy(calibration), torch.from_numpy(scores)
            found[i] = randomised_p_values(new, known, torch.from_numpy(uniform[i])).numpy()
        else:
            found[i] = Ranks(calibration, REMEMBERED).p_values(scores, uniform[i], generator)
    return found


def alarms(p: np.ndarray, bet: str, false_alarm: float) -> np.ndarray:
    """Return when each stream raises an alarm: the number of inputs by then, or infinity."""
    made, bar = BETS[bet](len(p)), threshold_for(false_alarm)
    found = np.full(len(p), np.inf)
    for i, row in enumerate(p.T):
        made.update(row)
        found[np.isinf(found) & (made.log_value >= bar)] = i + 1
    return found


def distances(streams: Streams, window: int) -> np.ndarray:
    """Compute the Cramér-von Mises distance of each window of each stream from the calibration scores."""
    found = []
    for calibration, scores in zip(streams.calibration, streams.scores, strict=True):
        u = np.searchsorted(np.sort(calibration), scores, side="right") / len(calibration)
        windows = np.sort(np.lib.stride_tricks.sliding_window_view(u, window)[::STEP], axis=1)
        steps = (2 * np.arange(1, window + 1) - 1) / (2 * window)
        found.append(((windows - steps) ** 2).sum(axis=1))
    return np.array(found)


def windowed_alarms(quiet: Streams, changed: Streams, false_alarm: float) -> np.ndarray:
    """Return when the detector to compare with raises an alarm, with thresholds from the quiet streams."""
    first = np.full(len(changed.scores), np.inf)
    for window in WINDOWS:
        bar = np.quantile(distances(quiet, window).max(axis=1), 1 - false_alarm / len(WINDOWS))
        beyond = distances(changed, window) > bar
        when = np.where(beyond.any(axis=1), beyond.argmax(axis=1) * STEP + window, np.inf)
        first = np.minimum(first, when)
    return first


def delay(found: np.ndarray) -> str:
    """Return the median number of inputs from the change to the alarm; false alarms before it do not count."""
    late = found[found > QUIET] - QUIET
    middle = np.median(late) if len(late) else np.inf
    return "not found" if np.isinf(middle) else f"{middle:,.0f}"
