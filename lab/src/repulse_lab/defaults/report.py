"""Tables of the rows: one per problem, and an overview that checks the three promises of the default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from repulse._files import write_whole
from repulse.evaluation.table import Table
from repulse_lab.defaults.measures import COLUMNS
from repulse_lab.defaults.methods import GIVEN, METHODS, REPULSE, base_of
from repulse_lab.defaults.problem import Problem
from repulse_lab.defaults.run import Results, Row

SLACK = 0.2
"""Points of accuracy that the default may be below the network, if one standard error is less."""
MARGIN = 0.5
"""Points of AUROC that the default may be below the best other method."""

OURS = (REPULSE, GIVEN)


@dataclass(frozen=True)
class Verdict:
    """Whether the default keeps its promises on a problem; None where it could not be told.

    Attributes:
        accurate: accuracy at most 0.2 points or one standard error below the network's (RMSE: above, by 1 %).
        calibrated: NLL and ECE not above the network's, as printed (coverage of 95 % intervals not further from 95 %).
        detects: AUROC at most half a point below that of the best other method.
    """

    accurate: bool | None
    calibrated: bool | None
    detects: bool | None

    def __str__(self) -> str:
        marks = {True: "yes", False: "**no**", None: "–"}
        return " / ".join(marks[kept] for kept in (self.accurate, self.calibrated, self.detects))


def means(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Average the columns of every method over the seeds that all compared methods have."""
    methods = {row.method for row in rows}
    return {
        method: {
            column: fmean(row.values.get(column, math.nan) for row in rows if row.method == method)
            for column in next(row for row in rows if row.method == method).values
        }
        for method in methods
    }


def best_other(found: dict[str, dict[str, float]]) -> str | None:
    """Return the method with the highest AUROC that is not ours."""
    others = {m: v["AUROC"] for m, v in found.items() if m not in OURS and math.isfinite(v.get("AUROC", math.nan))}
    return max(others, key=others.__getitem__) if others else None


def verdict(problem: Problem, rows: Sequence[Row], ours: str) -> Verdict:
    """Check the promises for one of our rows."""
    seeds = {row.seed for row in rows if row.method == ours}
    rows = [row for row in rows if row.seed in seeds]
    found = means(rows)
    base, own, other = found.get(base_of(problem.task)), found[ours], best_other(found)
    detects = None if other is None else own["AUROC"] >= found[other]["AUROC"] - MARGIN
    if base is None:
        return Verdict(None, None, detects)
    if problem.task == "regression":
        off = [round(abs(values["coverage"] - 95), 1) for values in (own, base)]
        accurate = own["RMSE"] <= 1.01 * base["RMSE"]
        return Verdict(accurate, round(own["NLL"], 2) <= round(base["NLL"], 2) and off[0] <= off[1], detects)
    share = base["accuracy"] / 100
    error = 100 * math.sqrt(share * (1 - share) / max(rows[0].test * len(seeds), 1))
    accurate = own["accuracy"] >= base["accuracy"] - max(SLACK, error)
    calibrated = all(round(own[name], digits) <= round(base[name], digits) for name, digits in (("NLL", 3), ("ECE", 1)))
    return Verdict(accurate, calibrated, detects)


def problem_table(problem: Problem, rows: Sequence[Row]) -> Table:
    """Put all methods of a problem in one table, mean and standard deviation over seeds."""
    columns = COLUMNS[problem.task]
    table = Table("method", columns, title=f"{problem.title} ({problem.role})")
    for method in METHODS:
        own = [row for row in rows if row.method == method]
        if own:
            table.add(method, [[row.values.get(column.name, math.nan) for column in columns] for row in own])
    return table


def overview(problems: Sequence[Problem], results: Results, against: Results | None = None) -> str:
    """Return a Markdown table: of each problem the network, the best other method, ours, and the promises.

    Args:
        problems: those with rows.
        results: the rows.
        against: rows of an earlier state of the library, shown before ours.
    """
    lines = [
        "| problem | role | seeds | row | accuracy (RMSE) | NLL | ECE (coverage) | AURC | near | far | AUROC |"
        " flagged | accurate / calibrated / detects |",
        "|" + "---|" * 13,
    ]
    verdicts = []
    for problem in problems:
        rows = results.rows(problem.name)
        for ours in OURS:
            seeds = {row.seed for row in rows if row.method == ours}
            if not seeds:
                continue
            found = means([row for row in rows if row.seed in seeds])
            other = best_other(found)
            shown = dict.fromkeys(name for name in (base_of(problem.task), other) if name in found)
            for name in shown if ours == REPULSE else ():
                label = f"{name} (best other)" if name == other else name
                lines.append(_line(problem, str(len(seeds)), label, found[name]))
            earlier = [
                r for r in (against.rows(problem.name) if against else []) if r.method == ours and r.seed in seeds
            ]
            if against and earlier:
                lines.append(_line(problem, str(len(earlier)), f"{ours} ({against.label})", means(earlier)[ours]))
            verdicts.append(verdict(problem, rows, ours))
            lines.append(_line(problem, str(len(seeds)), f"**{ours}**", found[ours], str(verdicts[-1])))
    return "\n".join([*lines, "", _tally(verdicts)])


def _line(problem: Problem, seeds: str, label: str, values: dict[str, float], judged: str = "") -> str:
    cells = [problem.name, problem.role, seeds, label, *_cells(problem, values), judged]
    return "| " + " | ".join(cells) + " |"


def _tally(verdicts: Sequence[Verdict]) -> str:
    """Count, in a sentence, the rows that keep each promise."""
    counts = [
        f"{name} in {sum(kept is True for kept in told)} of {sum(kept is not None for kept in told)}"
        for name in ("accurate", "calibrated", "detects")
        if (told := [getattr(found, name) for found in verdicts])
    ]
    return f"Promises kept: {', '.join(counts)}." if counts else "No row of the default yet."


def _cells(problem: Problem, values: dict[str, float]) -> list[str]:
    names = [("accuracy", 2), ("NLL", 3), ("ECE", 2), ("AURC", 2)]
    if problem.task == "regression":
        names = [("RMSE", 3), ("NLL", 3), ("coverage", 1), ("AURC", 2)]
    names += [("AUROC near", 1), ("AUROC far", 1), ("AUROC", 1), ("flagged", 1)]
    found = [(values.get(name, math.nan), digits) for name, digits in names]
    return [f"{value:.{digits}f}" if math.isfinite(value) else "–" for value, digits in found]


def write(problems: Sequence[Problem], results: Results, against: Results | None = None) -> Path:
    """Write `table.md` with the overview and `PROBLEM.md` for each problem that has rows; return the overview."""
    folder = results.folder / results.label
    with_rows = [problem for problem in problems if results.rows(problem.name)]
    for problem in with_rows:
        rows = results.rows(problem.name)
        told = sorted({f"- {row.method}: {text}" for row in rows for text in row.warnings})
        text = f"# {problem.title} ({problem.role})\n\n{problem_table(problem, rows).markdown()}\n"
        write_whole(folder / f"{problem.name}.md", text + ("\nWarnings:\n\n" + "\n".join(told) + "\n" if told else ""))
    path = folder / "table.md"
    write_whole(
        path, f"# The default on {len(with_rows)} problems: {results.label}\n\n{overview(with_rows, results)}\n"
    )
    return path
