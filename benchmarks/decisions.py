"""Measure on real data whether gates and watches hold what they promise, and print the tables.

200 draws of calibration and test data for each size, 1,000 quiet streams of 10,000 inputs, and 100 streams for each
change. Predictions are kept in a folder, so that a second run only draws. Needs the data folder (REPULSE_DATA) and, for
clinc150, `repulse-lab[text]`.

    python benchmarks/decisions.py [power-plant clinc150 cifar10] [--draws 200] [--streams 1000] [--changed 100]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from repulse_lab.data.corruptions import KINDS
from repulse_lab.decisions import gates, watches
from repulse_lab.decisions.pools import PROBLEMS, TITLES, Pools, pools_of

SHARES = (0.01, 0.05, 0.2)
FALSE_ALARM, LENGTH, CALIBRATION = 0.05, 10_000, 1000


def of_gates(problem: str, pools: Pools, draws: int) -> list[str]:
    promise, pool = gates.PROMISES[problem], pools["pool"]
    sizes = [size for size in gates.SIZES if size < len(pool["score"])]
    every = [gates.over_draws(pool, promise, size, draws) for size in sizes]
    return gates.markdown(TITLES[problem], promise, every)


def of_watches(pools: Pools, streams: int, changed: int) -> list[str]:
    """Return false alarms and delays of each bet, of p-values of calibration data alone, and of windows."""
    pool = pools["pool"]["score"].numpy()
    quiet = watches.drawn(pool, pool, 0, streams, LENGTH, CALIBRATION, 0)
    p = watches.p_values(quiet)
    changes = {
        (name, share): rows["score"].numpy()
        for name, rows in pools.items()
        for share in ((1.0,) if name in KINDS else SHARES)
        if name != "pool"
    }
    drawn = {key: watches.drawn(pool, v, key[1], changed, LENGTH, CALIBRATION, 1) for key, v in changes.items()}
    ranked = {key: watches.p_values(one) for key, one in drawn.items()}
    columns = {bet: [f"{np.isfinite(watches.alarms(p, bet, FALSE_ALARM)).mean():.1%}"] for bet in watches.BETS}
    for bet, cells in columns.items():
        cells += [watches.delay(watches.alarms(one, bet, FALSE_ALARM)) for one in ranked.values()]
    few = watches.Streams(quiet.calibration[:200], quiet.scores[:200])
    alone = watches.alarms(watches.p_values(few, fixed=True), "switching", FALSE_ALARM)
    columns["switching, calibration scores alone"] = [f"{np.isfinite(alone).mean():.1%}", *["-"] * len(drawn)]
    delays = [watches.delay(watches.windowed_alarms(few, one, FALSE_ALARM)) for one in drawn.values()]
    columns["windows (Cramér-von Mises)"] = [f"{FALSE_ALARM:.1%} (set)", *delays]
    head = ["watch", "false alarms", *(f"{share:.0%} {name}" for name, share in drawn)]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in columns.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--changed", type=int, default=100, help="streams for each change")
    parser.add_argument("--folder", type=Path, default=Path("bench/decisions"))
    told = parser.parse_args()
    root = Path(os.environ["REPULSE_DATA"])
    pools = {name: pools_of(name, root, told.folder) for name in told.problems}
    for row in (*gates.HEAD, *(row for name, found in pools.items() for row in of_gates(name, found, told.draws))):
        print(row)
    for name, found in pools.items():
        print("\n".join(["", f"{TITLES[name]}:", "", *of_watches(found, told.streams, told.changed)]))


if __name__ == "__main__":
    main()
