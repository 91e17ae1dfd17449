"""Replace what stands between two marks of a page."""

from __future__ import annotations

import re
from pathlib import Path


def put_in(page: Path, content: str, begin: str, end: str) -> None:
    """Replace what stands between two marks of a page."""
    text = page.read_text(encoding="utf-8")
    changed, times = re.subn(
        f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{content}\n\n{end}", text
    )
    if times != 1:
        raise ValueError(f"{page} has {times} places between {begin} and {end}.")
    page.write_text(changed, encoding="utf-8")
