"""A step of `mkdocs build`: put the tests beside the pages, which lead to them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_post_build(config: Any) -> None:
    """Copy all tests into the site, under the paths that the links of the pages have."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        copy = Path(config["site_dir"]) / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
