"""Every ordering of two methods in the paper's tables, and whether it came out again.

An ordering is a pair of methods on one network in one metric whose printed numbers differ by more than the margin of
`verdict`; the tables print no spread of their own. Of Tables 1, 2 and 3 only marks are known: each row in bold is ahead
of each that is neither bold nor underlined, on whichever network stands in for the paper's. An ordering is judged as a
claim with one part is: reproduced if the 95 % interval of our difference is on the paper's side of zero, reversed if it
is on the other, open if it holds zero or if there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

from repulse.evaluation.table import Column, Table
from repulse_lab.paper import printed as paper
from repulse_lab.paper.claims.relations import Side, bounds_of_better, parts_of
from repulse_lab.paper.claims.results import Results
from repulse_lab.paper.claims.verdict import kind

TABLES = {"B.2": "inductive-bias", "B.3": "feature-collapse"}
MARKED = {"1": "dirty-mnist", "2": "cifar10", "3": "cifar100"}
WORDS = {"holds": "reproduced", "open": "open", "fails": "reversed"}


@dataclass(frozen=True)
class Ordering:
    """One method ahead of another in the paper.

    Attributes:
        table: of the paper.
        network: of the table, empty where it has one.
        metric: as experiments name it.
        ahead: the row that is better in the paper.
        behind: the other one.
        gap: how much better, as printed; None where only marks are known.
        word: "reproduced", "open" or "reversed".
        about: both with our means, in words.
    """

    table: str
    network: str
    metric: str
    ahead: str
    behind: str
    gap: float | None
    word: str
    about: str


def find(results: Results) -> list[Ordering]:
    """Find all orderings for which both methods were run."""
    found = []
    for table, experiment in TABLES.items():
        for (network, metric), rows in paper.numbers(table).items():
            of = kind(metric)
            for ahead, behind in permutations(rows, 2):
                gap = (rows[behind] - rows[ahead]) if of.lower else (rows[ahead] - rows[behind])
                if gap <= of.margin:
                    continue
                found += _judged(results, experiment, table, network, metric, ahead, behind, gap)
    for table, experiment in MARKED.items():
        plain = paper.marked(table, "plain")
        for metric, rows in paper.marked(table, "bold").items():
            for ahead, behind in product(rows, plain[metric]):
                found += _judged(results, experiment, f"{table} (bold)", "", metric, ahead, behind, None)
    return found


def _judged(
    results: Results, experiment: str, table: str, network: str, metric: str, ahead: str, behind: str, gap: float | None
) -> list[Ordering]:
    at = {"network": network} if network else {}
    case = tuple(Side(row.replace("DE-5", "DE-*"), metric, at) for row in (ahead, behind))
    parts = parts_of(results, experiment, (case[0], case[1]), bounds_of_better)
    return [Ordering(table, network, metric, ahead, behind, gap, WORDS[part.state], part.about) for part in parts]


def summary(found: Sequence[Ordering]) -> Table:
    """Count how many came out again, by table and network."""
    table = Table("table, network", [Column(word, 0) for word in WORDS.values()])
    for key in dict.fromkeys((one.table, one.network) for one in found):
        counts = Counter(one.word for one in found if (one.table, one.network) == key)
        table.add(", ".join(filter(None, key)), [[float(counts[word]) for word in WORDS.values()]])
    return table


def markdown(found: Sequence[Ordering]) -> str:
    """Return the counts, and every ordering that did not come out again, as a page."""
    parts = ["# Orderings of the paper's tables", (__doc__ or "").partition("\n\n")[2].strip()]
    parts += [summary(found).markdown()] if found else ["None could be judged."]
    for word in ("reversed", "open"):
        chosen = [one for one in found if one.word == word]
        if chosen:
            gaps = ["ahead" if one.gap is None else f"ahead by {one.gap:.2f}" for one in chosen]
            lines = [
                f"- Table {one.table}: {one.about}; {gap} in the paper" for one, gap in zip(chosen, gaps, strict=True)
            ]
            parts.append(f"## {word.capitalize()} ({len(chosen)})\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _by(gap: float | None) -> str:
    return "" if gap is None else f" by {gap:.2f}"
