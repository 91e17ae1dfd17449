"""Put what `repulse bench` measured in docs/speed.md, and its plot beside it.

repulse bench && python benchmarks/speed.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from repulse.errors import RepulseError
from repulse.report.plots import save_picture
from repulse.speed import report
from tables import ROOT, insert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("bench"), help="folder that was written to")
    try:
        findings = report.read(parser.parse_args().results)
    except RepulseError as reason:
        sys.exit(f"{reason} Run `repulse bench` first.")
    quick = [found.group for found in findings if found.quick]
    if quick:
        sys.exit(f"Measured with --quick, which is no result: {', '.join(quick)}. Run `repulse bench` without.")
    page = ROOT / "docs" / "speed.md"
    insert(page, "speed-table", report.table_of(findings).markdown())
    insert(page, "speed-machine", report.machine_of(findings))
    plot = report.plot_of(findings)
    if plot is not None:
        save_picture(plot, ROOT / "docs" / "images" / "speed.png")
        insert(page, "speed-plot", "![Cost of a step, of a fit and of memory against their sizes](images/speed.png)")


if __name__ == "__main__":
    main()
