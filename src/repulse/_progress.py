"""Progress bars that leave nothing behind, in a terminal or in a saved notebook."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

DELAY = 2.0
"""Seconds that something must take before it gets a bar."""


def progress_bar(
    data: Iterable[Any] | None = None, name: str = "", *, total: int | None = None, unit: str, show: bool
) -> tqdm:
    """Return a bar over batches (or, without any, one to update by hand) that appears after two seconds.

    A terminal gets the usual line. In a notebook the same line is one output that is replaced as it grows and is empty
    at the end: there, a line that is overwritten would be saved in every state it had. Neither needs widgets.
    """
    kind = _NotebookBar if _in_notebook() else tqdm
    return kind(data, desc=name, total=total, unit=unit, delay=DELAY, disable=not show, leave=False)


def _in_notebook() -> bool:
    """Check whether the code runs in a kernel, whose outputs can be replaced."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return hasattr(shell, "kernel")


class _NotebookBar(tqdm):
    """The same bar as one output of a cell."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._output: Any = None
        super().__init__(*arguments, **options, file=io.StringIO(), ncols=80)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Replace the output by the line as it is now; by nothing, if the message is empty."""
        from IPython.display import HTML, display

        line = str(self) if msg is None else msg
        content = HTML(f"<pre>{html.escape(line)}</pre>" if line.strip() else "")
        if self._output is None:
            self._output = display(content, display_id=True)
        else:
            self._output.update(content)
