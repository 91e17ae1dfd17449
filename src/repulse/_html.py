"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table as HTML, with a line of text below it.

    Examples:
        >>> table(["a"], [["<1"]])
        '<table><tr><th>a</th></tr><tr><td>&lt;1</td></tr></table>'
    """
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    whole = f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{lines}</table>"
    return whole + (f"<p>{escape(note)}</p>" if note else "")
