"""What gates promise, over many draws of calibration data from one pool.

The pool is the population: calibration samples are drawn from it with replacement, and each gate is judged on all of
it. Its rates are then known exactly, and a promise is broken or it is not; judged on a sample of test data, a rate just
below what was promised would be found above it every other time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repulse import Promise
from repulse.decide.calibration import Thresholds
from repulse.decide.conformal import threshold
from repulse_lab.decisions.pools import Rows, as_calibration

SIZES = (100, 1000, 5000)
PROMISES = {
    "cifar10": Promise(risk=0.05),
    "clinc150": Promise(risk=0.02),
    "power-plant": Promise(risk=0.05, tolerance=0.5, sets="normalised"),
}
"""Tolerance in standard deviations of the target; a risk of 2 % for CLINC150, as 10 % held without abstaining."""


@dataclass(frozen=True, eq=False)
class Draws:
    """What gates did over draws, one entry for each; shares of the samples of a pool.

    Attributes:
        size: calibration samples.
        false_alarms: share called foreign, `(draws,)`.
        error: error rate among the accepted, `(draws,)`; zero if nothing is accepted.
        coverage: share accepted, `(draws,)`.
        held: whether a threshold was shown to hold the risk, `(draws,)`.
        missed: for each kind of set, share of targets outside, `(draws,)`.
    """

    size: int
    false_alarms: Tensor
    error: Tensor
    coverage: Tensor
    held: Tensor
    missed: dict[str, Tensor]

    def means(self, promise: Promise) -> dict[str, Any]:
        """Return means over draws, with the share of draws that break the risk, as plain numbers."""
        columns = {name: getattr(self, name) for name in ("false_alarms", "error", "coverage", "held")}
        columns["broken"] = self.error > (promise.risk or 1)
        found: dict[str, Any] = {name: float(column.double().mean()) for name, column in columns.items()}
        return {"size": self.size, **found, "missed": {kind: float(each.mean()) for kind, each in self.missed.items()}}


def over_draws(pool: Rows, promise: Promise, size: int, draws: int) -> Draws:
    """Calibrate gates on draws from a pool, and measure each on all of it."""
    kinds = [kind for kind in ("lac", "aps", "raps", "normalised", "cqr") if kind in pool]
    rows = as_calibration(pool, kinds[0])
    columns = ("false_alarms", "error", "coverage", "held", *kinds)
    found = torch.empty(len(columns), draws, dtype=torch.float64)
    for seed in range(draws):
        inside = torch.randint(len(rows), (size,), generator=torch.Generator().manual_seed(seed))
        gate = Thresholds(promise, rows[inside])
        p_value = gate.p_values(rows.score, rows.predicted)
        accepted = gate.accepts(rows.score, rows.doubt, p_value)
        wrong = (rows.error > (promise.tolerance or 0))[accepted]
        limits = [threshold(pool[kind][inside], promise.alpha) for kind in kinds]
        shares = [p_value <= promise.false_alarms, wrong, accepted, torch.tensor([gate.chosen is not None])]
        shares += [pool[kind] > limit for kind, limit in zip(kinds, limits, strict=True)]
        found[:, seed] = torch.stack([each.double().mean() if len(each) else each.sum() for each in shares])
    measured = dict(zip(columns, found, strict=True))
    missed = {kind: measured.pop(kind) for kind in kinds}
    return Draws(size, **{**measured, "held": measured["held"] > 0}, missed=missed)


def markdown(title: str, promise: Promise, every: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one row per size: promised and realised, in percent."""
    rows = []
    for one in every:
        missed = ", ".join(f"{kind} {100 * share:.2f}" for kind, share in one["missed"].items())
        cells = [title, f"{one['size']:,}", f"{100 * one['false_alarms']:.2f}"]
        cells += [f"{100 * one['error']:.2f} (at most {100 * (promise.risk or 1):g})", f"{100 * one['broken']:.1f}"]
        cells += [f"{100 * one['coverage']:.1f}", f"{100 * (1 - one['held']):.1f}", missed]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


HEAD = [
    "| pool | calibration samples | called foreign (at most 5) | errors among accepted | draws above the risk (at most "
    "5) | accepted | draws without a threshold | targets outside their set (at most 10) |",
    "|" + " --- |" * 8,
]
