"""What gates promise, over many draws of calibration data from one pool.

The pool is the population: calibration samples are drawn from it with replacement, and each gate is judged on all of
it. Its rates are then known exactly, and a promise is broken or it is not; judged on a sample of test data, a rate just
below what was promised would be found above it every other time.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from repulse import Promise
from repulse.decide.calibration import Thresholds
from repulse_lab.decisions.pools import Rows, as_calibration

SIZES = (100, 1000, 5000)
PROMISES = {
    "cifar10": Promise(risk=0.05),
    "clinc150": Promise(risk=0.02),
    "power-plant": Promise(risk=0.05, tolerance=0.5, sets="normalised"),
}
"""Tolerance in standard deviations of the target; a risk of 2 % for CLINC150, as 10 % held without abstaining."""


@dataclass(frozen=True)
class Draws:
    """What gates did over draws; shares of the samples of a pool.

    Attributes:
        size: calibration samples.
        false_alarms: mean share called foreign.
        error: mean error rate among the accepted.
        broken: share of draws in which that rate is above the risk.
        coverage: mean share accepted.
        nothing: share of draws in which no threshold could be shown to hold the risk.
        missed: for each kind of set, mean share of targets outside.
    """

    size: int
    false_alarms: float
    error: float
    broken: float
    coverage: float
    nothing: float
    missed: dict[str, float]


def over_draws(pool: Rows, promise: Promise, size: int, draws: int) -> Draws:
    """Calibrate gates on draws from a pool, and measure each on all of it."""
    kinds = [kind for kind in ("lac", "aps", "raps", "normalised", "cqr") if kind in pool]
    rows = {kind: as_calibration(pool, kind) for kind in kinds}
    first, found = rows[kinds[0]], []
    for seed in range(draws):
        inside = torch.randint(len(first), (size,), generator=torch.Generator().manual_seed(seed))
        held = Thresholds(promise, first[inside])
        p_value = held.p_values(first.score, first.predicted)
        foreign, accepted = p_value <= promise.false_alarms, held.accepts(first.score, first.doubt, p_value)
        wrong = (first.error > (promise.tolerance or 0))[accepted]
        error = float(wrong.double().mean()) if len(wrong) else 0.0
        limits = {kind: Thresholds(promise, rows[kind][inside]).set_limit for kind in kinds}
        missed = [float((rows[kind].set_score > limits[kind]).double().mean()) for kind in kinds]
        shares = (float(foreign.double().mean()), error, float(error > (promise.risk or 1)))
        found.append((*shares, float(accepted.double().mean()), float(held.chosen is None), *missed))
    means = [statistics.fmean(column) for column in zip(*found, strict=True)]
    false_alarms, error, broken, coverage, nothing = means[:5]
    return Draws(size, false_alarms, error, broken, coverage, nothing, dict(zip(kinds, means[5:], strict=True)))


def markdown(title: str, promise: Promise, every: list[Draws]) -> list[str]:
    """Return one row per size: promised and realised."""
    rows = []
    for one in every:
        missed = ", ".join(f"{kind} {100 * share:.2f}" for kind, share in one.missed.items())
        rows.append(
            f"| {title} | {one.size:,} | {100 * one.false_alarms:.2f} | {100 * one.error:.2f} (at most "
            f"{100 * (promise.risk or 1):g}) | {100 * one.broken:.1f} | {100 * one.coverage:.1f} | "
            f"{100 * one.nothing:.1f} | {missed} |"
        )
    return rows


HEAD = [
    "| pool | calibration samples | called foreign (at most 5) | errors among accepted | draws above the risk (at most "
    "5) | accepted | draws without a threshold | targets outside their set (at most 10) |",
    "|" + " --- |" * 8,
]
