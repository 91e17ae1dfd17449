"""Put what `repulse-lab bench` measured in docs/speed.md, and its plot beside it.

repulse-lab bench && python benchmarks/speed.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from repulse.errors import RepulseError
from repulse.evaluation.plots import save_picture
from repulse.evaluation.table import Column, Table
from repulse_lab.speed import report
from repulse_lab.speed.measurement import BenchmarkResult, Measurement
from tables import ROOT, insert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("bench"), help="folder that was written to")
    try:
        findings = report.read(parser.parse_args().results)
    except RepulseError as reason:
        sys.exit(f"{reason} Run `repulse-lab bench` first.")
    quick = [found.group for found in findings if found.quick]
    if quick:
        sys.exit(f"Measured with --quick, which is no result: {', '.join(quick)}. Run `repulse-lab bench` without.")
    page = ROOT / "docs" / "speed.md"
    apart = {name: [found for found in findings if found.group == name] for name in ("profile", "deploy")}
    rows = [found for found in findings if found.group not in apart]
    if rows:
        insert(page, "speed-goals", report.table_of(some(rows, lambda row: row.about.goal is not None)).markdown())
        insert(page, "speed-others", report.table_of(some(rows, lambda row: row.about.goal is None), False).markdown())
    if apart["profile"]:
        insert(page, "speed-profile", parts_of(apart["profile"]).markdown())
    if apart["deploy"]:
        table = f"{report.table_of(apart['deploy']).markdown()}\n\n{report.machine_of(apart['deploy'])}"
        insert(page, "speed-deploy", table)
    if not rows:
        return
    insert(page, "speed-machine", report.machine_of(findings))
    plot = report.plot_of(findings)
    if plot is not None:
        save_picture(plot, ROOT / "docs" / "images" / "speed.png")
        insert(page, "speed-plot", "![Cost of a step, of a fit and of memory against their sizes](images/speed.png)")


def some(findings: Sequence[BenchmarkResult], wanted: Callable[[Measurement], bool]) -> list[BenchmarkResult]:
    """The rows that are wanted."""
    return [replace(found, rows=[row for row in found.rows if wanted(row)]) for found in findings]


def parts_of(findings: Sequence[BenchmarkResult]) -> Table:
    """Parts of a step down, sizes across."""
    rows = [row for found in findings for row in found.rows]
    sizes = list(dict.fromkeys(row.about.size for row in rows))
    table = Table("part / two products", [Column(size, 2) for size in sizes])
    for part in dict.fromkeys(row.about.thing for row in rows):
        found = {row.about.size: row.ratio for row in rows if row.about.thing == part}
        table.add(part.removeprefix("fs-RLL-E: "), [[found.get(size) for size in sizes]])
    return table


if __name__ == "__main__":
    main()
