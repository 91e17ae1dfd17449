"""A table of results over seeds, as plain text, Markdown, LaTeX, HTML or JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from repulse.errors import CheckpointError, DataError, expected


@dataclass(frozen=True)
class Column:
    """One metric of a table.

    Attributes:
        name: short heading.
        digits: digits after the point.
        better: "higher", "lower", or "" for columns without a best.
        help: explanation in one sentence, for the page.
    """

    name: str
    digits: int = 1
    better: str = ""
    help: str = ""

    @property
    def heading(self) -> str:
        """The name, with an arrow in the direction that is better."""
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[self.better]
        return self.name + arrow


@dataclass
class Table:
    """Rows of results, each with one list of values per seed.

    Examples:
        >>> table = Table("method", [Column("acc"), Column("ece", better="lower")])
        >>> table.add("network", [[97.0, 5.0], [98.0, 6.0]])
        >>> table.add("ensemble", [[97.0, 2.0], [98.0, 2.0]])
        >>> print(table.text())
        method      acc         ece ↓
        network     97.5 ± 0.7  5.5 ± 0.7
        ensemble    97.5 ± 0.7  2.0 ± 0.0 *

    Attributes:
        label: heading of the first column.
        columns: the others.
        rows: name, and for every seed one value per column; None if the seed was not run, NaN if it found no value.
        footnote: line below the table.
        marks: cells, as (row, column), that carry a dagger and are never the best.
        title: line above the table.
        across: whether methods are columns, so that the best of a row is marked instead of that of a column.
        printed: for cells, as (row, column), the value that the paper prints.
    """

    label: str
    columns: Sequence[Column]
    rows: list[tuple[str, list[list[float | None]]]] = field(default_factory=list)
    footnote: str = ""
    marks: set[tuple[int, int]] = field(default_factory=set)
    title: str = ""
    across: bool = False
    printed: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(
        self,
        name: str,
        seeds: Sequence[Sequence[float | None]],
        marked: Iterable[int] = (),
        printed: Sequence[float | None] = (),
    ) -> None:
        """Add a row.

        Args:
            name: name of the row.
            seeds: for every seed, one value per column.
            marked: columns that are marked with a dagger.
            printed: for each column the value that the paper prints, or None.
        """
        if not seeds:
            raise DataError(expected(f"row {name!r}", "values of at least one seed", "none"))
        for values in seeds:
            if len(values) != len(self.columns):
                raise DataError(expected(f"row {name!r}", f"{len(self.columns)} values per seed", len(values)))
        row = len(self.rows)
        self.marks |= {(row, column) for column in marked}
        self.printed |= {(row, column): value for column, value in enumerate(printed) if value is not None}
        self.rows.append((name, [list(values) for values in seeds]))

    def values(self, row: int, column: int) -> list[float]:
        """Return one value for each seed that was run."""
        return [value for values in self.rows[row][1] if (value := values[column]) is not None]

    def mean(self, row: int, column: int) -> float:
        """Return the mean over seeds; NaN if there are none."""
        return statistics.fmean(self.values(row, column) or [math.nan])

    def cell(self, row: int, column: int) -> str:
        """Format the mean and, of two seeds or more, the standard deviation."""
        digits = self.columns[column].digits
        values = self.values(row, column)
        if not values or not all(map(math.isfinite, values)):
            return "–"
        text = f"{statistics.fmean(values):.{digits}f}"
        text += "" if len(values) < 2 else f" ± {statistics.stdev(values):.{digits}f}"
        return f"{text} †" if (row, column) in self.marks else text

    def place(self, row: int, column: int) -> int | None:
        """Return 0 for the best of a column (or row) as printed, 1 for the second, else None; None if all are equal."""
        spec = self.columns[column]
        sign = {"higher": 1, "lower": -1, "": 0}[spec.better]
        rivals = [(row, j) for j in range(len(self.columns))] if self.across else []
        rivals = rivals or [(i, column) for i in range(len(self.rows))]
        means = {place: round(sign * self.mean(*place), spec.digits) for place in rivals if place not in self.marks}
        ranked = sorted({mean for mean in means.values() if math.isfinite(mean)}, reverse=True)
        own = means.get((row, column), math.nan)
        return ranked.index(own) if sign and len(ranked) > 1 and own in ranked[:2] else None

    def is_best(self, row: int, column: int) -> bool:
        """Check whether no other row (or column) is better, as printed; no one is the best if all are equal."""
        return self.place(row, column) == 0

    def text(self) -> str:
        """Format as aligned plain text; a star marks the best of a column."""
        marked = [
            [name, *(self.cell(i, j) + (" *" if self.is_best(i, j) else "") for j in range(len(self.columns)))]
            for i, (name, _) in enumerate(self.rows)
        ]
        lines = [[self.label, *(column.heading for column in self.columns)], *marked]
        widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
        widths[0] += 2
        rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        head = [self.title] if self.title else []
        return "\n".join([*head, *rows, *([self.footnote] if self.footnote else [])])

    def markdown(self, second: bool = False) -> str:
        """Format as Markdown: the best of a column in bold and, if `second`, the second underlined."""
        lines = [[self.label, *(column.heading for column in self.columns)], ["---"] * (len(self.columns) + 1)]
        styles = {0: "**{}**", 1: "<u>{}</u>" if second else "{}", None: "{}"}
        for i, (name, _) in enumerate(self.rows):
            cells = [styles[self.place(i, j)].format(self.cell(i, j)) for j in range(len(self.columns))]
            lines.append([name.replace("|", "\\|"), *cells])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{table}\n\n{self.footnote}" if self.footnote else table

    def latex(self) -> str:
        """Format as LaTeX with the booktabs package: the best of a column in bold, the second underlined."""
        styles: dict[int | None, Callable[[str], str]] = {
            0: lambda text: rf"\textbf{{{text}}}",
            1: lambda text: rf"\underline{{{text}}}",
            None: lambda text: text,
        }
        arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
        heads = [_latex(self.label), *(_latex(c.name) + arrows[c.better] for c in self.columns)]
        lines = [
            rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
        ]
        for i, (name, _) in enumerate(self.rows):
            cells = [styles[self.place(i, j)](_latex(self.cell(i, j))) for j in range(len(self.columns))]
            lines.append(" & ".join([_latex(name), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*([f"% {self.title}"] if self.title else []), *lines])

    def html(self) -> str:
        """Format as HTML; the explanation of a column is the title of its heading."""
        head = "".join(f'<th scope="col" title="{escape(c.help)}">{escape(c.heading)}</th>' for c in self.columns)
        body = ""
        for i, (name, _) in enumerate(self.rows):
            cells = "".join(
                f"<td{' class=best' if self.is_best(i, j) else ''}>{escape(self.cell(i, j))}</td>"
                for j in range(len(self.columns))
            )
            body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>\n'
        corner = f'<th scope="col">{escape(self.label)}</th>'
        foot = f"\n<p><small>{escape(self.footnote)}</small></p>" if self.footnote else ""
        return f"<table><thead><tr>{corner}{head}</tr></thead><tbody>\n{body}</tbody></table>{foot}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        rows = [
            {
                "name": name,
                "seeds": [["nan" if value is not None and math.isnan(value) else value for value in v] for v in seeds],
                "marked": sorted(column for row, column in self.marks if row == i),
                "printed": [self.printed.get((i, j)) for j in range(len(self.columns))],
            }
            for i, (name, seeds) in enumerate(self.rows)
        ]
        about = {"title": self.title, "label": self.label, "footnote": self.footnote, "across": self.across}
        return {**about, "columns": [asdict(column) for column in self.columns], "rows": rows}

    @staticmethod
    def from_json(kept: dict[str, Any]) -> Table:
        """Rebuild a table from what `to_json` returned."""
        try:
            columns = [Column(**column) for column in kept["columns"]]
            table = Table(kept["label"], columns, [], kept["footnote"], title=kept["title"], across=kept["across"])
            for row in kept["rows"]:
                seeds = [[None if value is None else float(value) for value in values] for values in row["seeds"]]
                table.add(row["name"], seeds, row["marked"], row["printed"])
        except (KeyError, TypeError) as reason:
            raise CheckpointError(expected("kept", "the JSON of a table", repr(reason))) from reason
        return table


_SPECIAL = {
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "–": "--",
    "·": r"$\cdot$",
}


def _latex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
