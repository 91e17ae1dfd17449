"""Measure the tables of the README anew and put them in their places.

Needs the real data (REPULSE_DATA) for the tables of CIFAR-10 and CLINC150; leaves them alone without.

    python benchmarks/tables.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from repulse._files import write_whole
from repulse.demo import run as demo

ROOT = Path(__file__).parent.parent


def insert(page: Path, name: str, text: str) -> None:
    """Put text between the comments `name` and `end of name` of a Markdown page."""
    old = page.read_text()
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not between.search(old):
        sys.exit(f"{page} has no place for the table {name!r}")
    write_whole(page, between.sub(lambda match: f"{match[1]}\n{text.strip()}\n\n{match[2]}", old))


def main() -> None:
    readme = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as scratch:
        table, _ = demo.run(Path(scratch))
        insert(readme, "demo", table.markdown())
        if os.environ.get("REPULSE_DATA"):
            for name, script in (("cifar", "cifar10_resnet20.py"), ("clinc", "clinc150_minilm.py")):
                markdown = Path(scratch) / f"{name}.md"
                command = [sys.executable, str(ROOT / "examples" / script), "--markdown", str(markdown)]
                subprocess.run(command, check=True)
                insert(readme, name, markdown.read_text())


if __name__ == "__main__":
    main()
