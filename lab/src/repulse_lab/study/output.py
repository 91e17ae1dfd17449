"""What an experiment leaves behind: numbers for machines, tables and figures for people.

NAME/experiment.json   all of it: what was run, tables, figures, and each cell with its key
NAME/results.csv       one line per number
NAME/tables.md, .tex   tables in the paper's form
NAME/figures/*.png, .svg
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repulse._files import with_nan, without_nan, write_whole
from repulse.errors import CheckpointError, expected
from repulse.evaluation.plots import save_picture, to_svg
from repulse.evaluation.table import Table
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.figures import Figure

FORMAT = 1
FILE = "experiment.json"
LABELS = ("network", "method", "repulsion", "layers", "seed")


@dataclass(frozen=True, eq=False)
class Findings:
    """What an experiment found.

    Attributes:
        name: of the experiment.
        title: what it asks.
        source: where it is in the paper.
        preset: how it was run.
        command: what was typed.
        date: of the run.
        minutes: of work on one core, for all its cells.
        notes: what stands in for what.
        missing: what was not run, for want of data.
        tables: in the paper's form.
        figures: likewise.
        outcomes: every cell.
    """

    name: str
    title: str
    source: str
    preset: str
    command: str
    date: str
    minutes: float
    notes: Sequence[str]
    missing: Sequence[str]
    tables: Sequence[Table] = field(default_factory=list)
    figures: Sequence[Figure] = field(default_factory=list)
    outcomes: Sequence[Outcome] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        plain = ("name", "title", "source", "preset", "command", "date", "minutes", "notes", "missing")
        cells = [{"labels": dict(o.labels), "key": o.key, "figures": without_nan(o.figures)} for o in self.outcomes]
        return {
            "format": FORMAT,
            **{key: getattr(self, key) for key in plain},
            "tables": [table.to_json() for table in self.tables],
            "figures": [figure.to_json() for figure in self.figures],
            "cells": cells,
        }


def read(folder: Path) -> Findings:
    """Read what an experiment left in its folder."""
    path = folder / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.pop("format") != FORMAT:
            raise CheckpointError(expected(f"the file {path}", f"of format {FORMAT}", "another; run it again"))
        tables = [Table.from_json(table) for table in kept.pop("tables")]
        figures = [Figure.from_json(figure) for figure in kept.pop("figures")]
        cells = [
            Outcome(cell["labels"], cell["key"], {"figures": with_nan(cell["figures"])}) for cell in kept.pop("cells")
        ]
        return Findings(**kept, tables=tables, figures=figures, outcomes=cells)
    except (OSError, ValueError, KeyError, TypeError) as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise CheckpointError(expected(f"the file {path}", "what an experiment wrote", str(reason))) from reason


def write(findings: Findings, folder: Path) -> Path:
    """Write all files of an experiment into its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in findings.figures:
        picture = figure.picture()
        save_picture(picture, folder / "figures" / f"{figure.name}.png")
        write_whole(folder / "figures" / f"{figure.name}.svg", to_svg(picture).replace("currentColor", "#000000"))
    write_whole(folder / "results.csv", _lines(findings))
    write_whole(folder / "tables.md", markdown(findings))
    write_whole(folder / "tables.tex", "\n\n".join(table.latex() for table in findings.tables) + "\n")
    return write_whole(folder / FILE, json.dumps(findings.to_json(), indent=1, allow_nan=False) + "\n")


def collect(
    experiment: Experiment,
    outcomes: Sequence[Outcome],
    **about: Any,
) -> Findings:
    """Make tables and figures of outcomes; `about` is the rest of `Findings`."""
    tables, figures = (experiment.tables(outcomes), experiment.figures(outcomes)) if outcomes else ([], [])
    named = {"name": experiment.name, "title": experiment.title, "source": experiment.source}
    return Findings(**named, **about, tables=tables, figures=figures, outcomes=outcomes)


def markdown(findings: Findings) -> str:
    """Return the tables and figures as a page."""
    parts = [f"# {findings.title}", f"{findings.source}. `{findings.command}`, {findings.date}."]
    parts += ["\n".join(f"- {note}" for note in findings.notes)] if findings.notes else []
    parts += ["\n".join(f"- Not run: {one}" for one in findings.missing)] if findings.missing else []
    for table in findings.tables:
        parts += [*([f"## {table.title}"] if table.title else []), table.markdown(second=True)]
    parts += [f"![{figure.alt}](figures/{figure.name}.png)\n\n{figure.caption}" for figure in findings.figures]
    return "\n\n".join(parts) + "\n"


def _lines(findings: Findings) -> str:
    lines = io.StringIO()
    out = csv.writer(lines)
    others = sorted({label for outcome in findings.outcomes for label in outcome.labels} - set(LABELS))
    out.writerow(["experiment", "preset", *LABELS, *others, "metric", "value"])
    for outcome in findings.outcomes:
        labels = [outcome.labels.get(label) for label in (*LABELS, *others)]
        start = [findings.name, findings.preset, *("" if label is None else label for label in labels)]
        out.writerows([*start, metric, repr(value)] for metric, value in outcome.figures.items())
    return lines.getvalue()
