"""Measure on real data whether gates and watches hold what they promise, and put the tables in docs/deploy.md.

200 draws of calibration data for each size, 1,000 quiet streams of 10,000 inputs, and 100 streams for each change.
Predictions are kept in a folder, so that a second run of the same version of the library only draws; figures of each
problem are kept in docs/results/decisions.json, so that problems can be measured one at a time. Takes a quarter of an
hour on one core. Needs the data folder (REPULSE_DATA) and,
for clinc150, `repulse-lab[text]`.

    python benchmarks/decisions.py [power-plant clinc150 cifar10] [--draws 200] [--streams 1000] [--changed 100]
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repulse._files import write_whole
from repulse_lab.data.corruptions import KINDS
from repulse_lab.decisions import gates, watches
from repulse_lab.decisions.pools import PROBLEMS, TITLES, Pools, pools_of
from repulse_lab.defaults.run import code_digest
from tables import ROOT, insert

SHARES = (0.01, 0.05, 0.2)
FALSE_ALARM, LENGTH, CALIBRATION = 0.05, 10_000, 1000
ALONE, WINDOWS = "switching, ranked among calibration scores alone", "sliding windows"
KEPT = ROOT / "docs" / "results" / "decisions.json"

Figures = dict[str, dict[str, float]]
"""By row and column."""


def of_gates(problem: str, pools: Pools, draws: int) -> list[dict[str, Any]]:
    """Return the means over draws of one problem, for each number of calibration samples."""
    promise = gates.PROMISES[problem]
    return [gates.over_draws(pools["pool"], promise, size, draws).means(promise) for size in gates.SIZES]


def of_watches(pools: Pools, streams: int, changed: int) -> tuple[dict[str, float], Figures]:
    """Return false alarms and median delays of each bet, of p-values of calibration data alone, and of windows."""
    pool = pools["pool"]
    quiet = watches.drawn(pool, pool, 0, streams, LENGTH, CALIBRATION, 0)
    p = watches.p_values(quiet)
    false = {bet: _share(watches.alarms(p, bet, FALSE_ALARM)) for bet in watches.BETS}
    false[ALONE] = _share(watches.alarms(watches.p_values(quiet, fixed=True), "switching", FALSE_ALARM))
    bars = watches.windowed_bars(quiet, FALSE_ALARM)
    false[WINDOWS] = _share(watches.windowed_alarms(bars, quiet))
    delays = {}
    for name, rows in pools.items():
        for share in () if name == "pool" else (1.0,) if name in KINDS else SHARES:
            one = watches.drawn(pool, rows, share, changed, LENGTH, CALIBRATION, 1)
            p = watches.p_values(one)
            found = {bet: watches.delay(watches.alarms(p, bet, FALSE_ALARM)) for bet in watches.BETS}
            found[WINDOWS] = watches.delay(watches.windowed_alarms(bars, one))
            delays[f"{share:.0%} {name}"] = found
    return false, delays


def _share(alarms: np.ndarray) -> float:
    return float(np.isfinite(alarms).mean())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows))


def _delay(value: float | None) -> str:
    return "not found" if value is None else f"{value:,.0f}"


def show(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the tables of all problems that were measured, and put them in the page."""
    known = [name for name in PROBLEMS if name in kept]
    bets = [*watches.BETS, WINDOWS]
    rows = (row for name in known for row in gates.markdown(TITLES[name], gates.PROMISES[name], kept[name]["gates"]))
    tables = {
        "guarantees": "\n".join([*gates.HEAD, *rows]),
        "alarms": _table(
            ["streams without a change", *bets, ALONE],
            (
                [TITLES[name], *(f"{100 * kept[name]['false alarms'][column]:.1f} %" for column in (*bets, ALONE))]
                for name in known
            ),
        ),
        "delays": _table(
            ["change", *bets],
            (
                [f"{TITLES[name].split(',')[0]}: {change}", *(_delay(found[column]) for column in bets)]
                for name in known
                for change, found in kept[name]["delays"].items()
            ),
        ),
    }
    for name, text in tables.items():
        print(f"\n{text}", flush=True)
        insert(ROOT / "docs" / "deploy.md", name, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--changed", type=int, default=100, help="streams for each change")
    parser.add_argument("--folder", type=Path, default=Path("bench/decisions"))
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the figures")
    told = parser.parse_args()
    kept = json.loads(told.kept.read_text(encoding="utf-8")) if told.kept.exists() else {}
    for name in told.problems:
        pools = pools_of(name, Path(os.environ["REPULSE_DATA"]), told.folder)
        false, delays = of_watches(pools, told.streams, told.changed)
        kept[name] = {
            "code": code_digest(),
            "gates": of_gates(name, pools, told.draws),
            "false alarms": false,
            "delays": {
                change: {column: None if math.isinf(value) else value for column, value in found.items()}
                for change, found in delays.items()
            },
        }
        write_whole(told.kept, json.dumps(kept, indent=1, ensure_ascii=False).encode())
        show(kept)


if __name__ == "__main__":
    main()
