"""Attack the library, and write the counts to docs/reliability.md: `make campaign`.

python benchmarks/campaign.py --share 1          25 minutes
python benchmarks/campaign.py --only calls       make the rows of one campaign again
python benchmarks/campaign.py --mutants 60       change the code in 60 places, and see which tests notice
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the tries of the long form")
    parser.add_argument("--only", default="", help="names of campaigns, separated by commas, whose rows to make again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=0, help="change the code in this many places instead")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.mutants:
        from repulse_lab.campaign.mutants import main

        sys.exit(main(given.mutants, given.seed, ROOT, given.page))
    from repulse_lab.campaign.run import main

    sys.exit(min(main(given.share, given.seed, given.page, [name for name in given.only.split(",") if name]), 1))
