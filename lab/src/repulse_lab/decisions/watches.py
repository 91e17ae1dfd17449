"""How often watches raise a false alarm, and how fast they find a change, over many streams drawn from pools.

A watch follows two scores of each input, its epistemic and its total uncertainty, and alarms when either of two
martingales does. The online detector to compare with is that of alibi-detect for single numbers: the Cramér-von Mises
distance between calibration scores and sliding windows of the stream, here of both scores, with thresholds from
simulated streams: such that it raises exactly as many false alarms, over quiet streams as long, as the watch promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repulse.decide.conformal import randomised_p_values
from repulse.decide.martingales import BETS, Ranks, threshold_for
from repulse.decide.watch import REMEMBERED

KINDS = ("score", "total")
"""Columns of a pool that a watch follows: epistemic and total uncertainty."""
QUIET = 1000
"""Inputs before a change."""
WINDOWS, STEP = (50, 200), 10
"""Windows of the detector to compare with, and inputs between two looks of it."""


@dataclass(frozen=True)
class Streams:
    """Streams of both scores, and their calibration data.

    Attributes:
        calibration: `(kinds, streams, m)`.
        scores: `(kinds, streams, length)`.
    """

    calibration: np.ndarray
    scores: np.ndarray


def drawn(
    pool: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    share: float,
    count: int,
    length: int,
    calibration: int,
    seed: int,
) -> Streams:
    """Draw streams from a pool, with replacement; after `QUIET` inputs a share of them comes from elsewhere."""
    made = np.random.default_rng(seed)
    usual, strange = (np.stack([rows[kind].double().numpy() for kind in KINDS]) for rows in (pool, other))
    scores = usual[:, made.integers(usual.shape[1], size=(count, length))]
    if share:
        foreign = (made.random((count, length)) < share) & (np.arange(length) >= QUIET)
        scores[:, foreign] = strange[:, made.integers(strange.shape[1], size=int(foreign.sum()))]
    return Streams(usual[:, made.integers(usual.shape[1], size=(count, calibration))], scores)


def p_values(streams: Streams, *, fixed: bool = False) -> np.ndarray:
    """Rank each stream among its calibration data and its past; among the calibration data alone if `fixed`."""
    made, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    uniform = 1 - made.random(streams.scores.shape)
    found = np.empty_like(streams.scores)
    for at in np.ndindex(streams.scores.shape[:2]):
        calibration, scores = streams.calibration[at], streams.scores[at]
        if fixed:
            known, new = torch.from_numpy(calibration), torch.from_numpy(scores)
            found[at] = randomised_p_values(new, known, torch.from_numpy(uniform[at])).numpy()
        else:
            found[at] = Ranks(calibration, REMEMBERED).p_values(scores, uniform[at], generator)
    return found


def alarms(p: np.ndarray, bet: str, false_alarm: float) -> np.ndarray:
    """Return when each stream raises an alarm, `(streams,)`: the number of inputs by then, or infinity."""
    bar = threshold_for(false_alarm, len(p))
    found = np.full(p.shape[1], np.inf)
    for one in p:
        made = BETS[bet](len(found))
        for i, row in enumerate(np.ascontiguousarray(one.T)):
            made.update(row)
            reached = made.log_value >= bar
            found[reached] = np.minimum(found[reached], i + 1)
    return found


def distances(streams: Streams, window: int) -> np.ndarray:
    """Compute the Cramér-von Mises distance of each window from the calibration scores, `(kinds, streams, looks)`."""
    steps = (2 * np.arange(1, window + 1) - 1) / (2 * window)
    found = []
    for at in np.ndindex(streams.scores.shape[:2]):
        calibration = np.sort(streams.calibration[at])
        u = np.searchsorted(calibration, streams.scores[at], side="right") / len(calibration)
        windows = np.sort(np.lib.stride_tricks.sliding_window_view(u.astype(np.float32), window)[::STEP], axis=1)
        found.append(((windows - steps) ** 2).sum(axis=1))
    return np.array(found).reshape(*streams.scores.shape[:2], -1)


def windowed_bars(quiet: Streams, false_alarm: float) -> dict[int, np.ndarray]:
    """Return the bar of each window and kind: equally rare for all, and together as frequent as may be."""
    most = {window: distances(quiet, window).max(axis=2) for window in WINDOWS}
    rows = np.concatenate(list(most.values()))
    ranks = rows.argsort(axis=1).argsort(axis=1).max(axis=0)  # of the strangest of all windows of a stream
    level = int(np.quantile(ranks, 1 - false_alarm, method="higher"))
    return {window: np.sort(each, axis=1)[:, level] for window, each in most.items()}


def windowed_alarms(bars: Mapping[int, np.ndarray], changed: Streams) -> np.ndarray:
    """Return when the detector to compare with raises an alarm."""
    first: np.ndarray = np.full(changed.scores.shape[1], np.inf)
    for window, bar in bars.items():
        beyond: np.ndarray = np.any(distances(changed, window) > bar[:, None, None], axis=0)
        when = np.where(beyond.any(axis=1), beyond.argmax(axis=1) * STEP + window, np.inf)
        first = np.minimum(first, when)
    return first


def delay(found: np.ndarray) -> float:
    """Return the median number of inputs from the change to the alarm; false alarms before it do not count."""
    late = found[found > QUIET] - QUIET
    return float(np.median(late)) if len(late) else float("inf")
