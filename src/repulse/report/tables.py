"""A table of results over seeds, that can be printed, pasted into Markdown or put on a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from repulse.errors import DataError, expected


@dataclass(frozen=True)
class Column:
    """One figure of merit.

    Attributes:
        name: short heading.
        digits: digits after the point.
        better: "higher", "lower", or "" for columns without a best.
        help: what it is, in one sentence, for the page.
    """

    name: str
    digits: int = 1
    better: str = ""
    help: str = ""

    @property
    def heading(self) -> str:
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[self.better]
        return self.name + arrow


@dataclass
class Table:
    """Rows of results, each with one list of values a seed.

    Examples:
        >>> table = Table("method", [Column("acc"), Column("ece", better="lower")])
        >>> table.add("network", [[97.0, 5.0], [98.0, 6.0]])
        >>> table.add("ensemble", [[97.0, 2.0], [98.0, 2.0]])
        >>> print(table.text())
        method      acc         ece ↓
        network     97.5 ± 0.7  5.5 ± 0.7
        ensemble    97.5 ± 0.7  2.0 ± 0.0 *
    """

    label: str
    columns: Sequence[Column]
    rows: list[tuple[str, list[list[float]]]] = field(default_factory=list)

    def add(self, name: str, seeds: Sequence[Sequence[float]]) -> None:
        """Add a row: for every seed, one value a column."""
        if not seeds:
            raise DataError(expected(f"row {name!r}", "values of at least one seed", "none"))
        for values in seeds:
            if len(values) != len(self.columns):
                raise DataError(expected(f"row {name!r}", f"{len(self.columns)} values a seed", len(values)))
        self.rows.append((name, [list(values) for values in seeds]))

    def mean(self, row: int, column: int) -> float:
        return statistics.fmean(values[column] for values in self.rows[row][1])

    def cell(self, row: int, column: int) -> str:
        """Mean and, from two seeds on, the standard deviation over seeds."""
        digits = self.columns[column].digits
        values = [values[column] for values in self.rows[row][1]]
        if not all(map(math.isfinite, values)):
            return "–"
        text = f"{statistics.fmean(values):.{digits}f}"
        return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.{digits}f}"

    def is_best(self, row: int, column: int) -> bool:
        """Whether no other row is better, as printed; nobody is best where all are equal."""
        spec = self.columns[column]
        sign = {"higher": 1, "lower": -1, "": 0}[spec.better]
        means = [round(sign * self.mean(i, column), spec.digits) for i in range(len(self.rows))]
        finite = [m for m in means if math.isfinite(m)]
        return bool(sign) and len(set(finite)) > 1 and means[row] == max(finite)

    def text(self) -> str:
        """Aligned plain text; a star marks the best of a column."""
        marked = [
            [name, *(self.cell(i, j) + (" *" if self.is_best(i, j) else "") for j in range(len(self.columns)))]
            for i, (name, _) in enumerate(self.rows)
        ]
        lines = [[self.label, *(column.heading for column in self.columns)], *marked]
        widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
        widths[0] += 2
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        """A Markdown table; the best of a column in bold."""
        lines = [[self.label, *(column.heading for column in self.columns)], ["---"] * (len(self.columns) + 1)]
        for i, (name, _) in enumerate(self.rows):
            cells = [self.cell(i, j) for j in range(len(self.columns))]
            lines.append(
                [name.replace("|", "\\|"), *(f"**{c}**" if self.is_best(i, j) else c for j, c in enumerate(cells))]
            )
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def html(self) -> str:
        """A table for the page; headings explain themselves on hover."""
        head = "".join(f'<th scope="col" title="{escape(c.help)}">{escape(c.heading)}</th>' for c in self.columns)
        body = ""
        for i, (name, _) in enumerate(self.rows):
            cells = "".join(
                f"<td{' class=best' if self.is_best(i, j) else ''}>{escape(self.cell(i, j))}</td>"
                for j in range(len(self.columns))
            )
            body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>\n'
        corner = f'<th scope="col">{escape(self.label)}</th>'
        return f"<table><thead><tr>{corner}{head}</tr></thead><tbody>\n{body}</tbody></table>"
