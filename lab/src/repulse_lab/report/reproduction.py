"""`repulse-lab report`: one page out of what experiments left behind, with everything in it and no network behind it.

reproduction.html   the body of the page, filled by jinja2; the library makes a document of it
reproduction.css    its style
reproduction.js     tables that sort, claims that filter, light and dark
kinds.js            lines, points and heat maps: how each is drawn, pointed at and read
charts.js           panels, legends and pointing, alike for all kinds
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repulse._files import write_whole
from repulse._version import __version__
from repulse.errors import DataError, expected
from repulse.evaluation.page import document
from repulse_lab.report import views
from repulse_lab.study.claims import VERDICTS, JudgedClaim, read_judged
from repulse_lab.study.output import FILE, Findings, read

TITLE = "Reproducing the paper"


@dataclass(frozen=True)
class Summary:
    """All findings of a folder, and what can be said of all together."""

    findings: Sequence[Findings]
    claims: Sequence[JudgedClaim] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Return how many claims have each verdict that occurs."""
        found = Counter(claim.verdict for claim in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    @property
    def compared(self) -> int:
        """Return how many numbers can be compared with one of the paper."""
        return sum(len(table.printed) for findings in self.findings for table in findings.tables)

    @property
    def facts(self) -> dict[str, str]:
        """Return what was run, as pairs of words."""
        every = [outcome for findings in self.findings for outcome in findings.outcomes]
        dates = sorted({findings.date for findings in self.findings})
        facts = {
            "Preset": ", ".join(sorted({findings.preset for findings in self.findings})),
            "Experiments": str(len(self.findings)),
            "Cells run": str(len({outcome.key for outcome in every})),
            "Seeds, at most": str(len({outcome.labels.get("seed") for outcome in every} - {None}) or 1),
            "Compared with the paper": f"{self.compared} numbers",
            "Date": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        }
        return {name: fact for name, fact in facts.items() if self.compared or name != "Compared with the paper"}

    @property
    def names(self) -> set[str]:
        """Return the names of the experiments."""
        return {findings.name for findings in self.findings}

    def tested_by(self, findings: Findings) -> list[JudgedClaim]:
        """Return the claims that an experiment tested."""
        return [claim for claim in self.claims if findings.name in claim.experiments]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write one page out of all experiments in a folder.

    Args:
        folder: with one sub-folder an experiment, and perhaps claims.json.
        out: the page; report.html in the folder if not given.
    """
    found = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not found:
        deeper = sorted({path.parent.parent for path in folder.glob(f"*/*/{FILE}")})
        got = f"none; perhaps {deeper[0]} is meant" if deeper else "none"
        raise DataError(expected(f"the folder {folder}", f"one that holds results, as NAME/{FILE}", got))
    findings = sorted((read(path) for path in found), key=_order)
    return write_whole(out or folder / "report.html", render(Summary(findings, read_judged(folder))))


def render(summary: Summary) -> str:
    """Return the page as one string."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    pages = Environment(
        loader=PackageLoader("repulse_lab.report", package_path=""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (views.anchor, views.cells, views.duration, views.footnotes, views.numbers, views.signed, spans):
        pages.filters[function.__name__] = function
    pages.filters["written"] = views.written
    pages.filters["drawn"] = lambda figure: Markup(views.drawn(figure))

    body = pages.get_template("reproduction.html").render(summary=summary, version=__version__, title=TITLE).lstrip()
    script = "".join(map(_resource, ("kinds.js", "charts.js", "reproduction.js")))
    return document(TITLE, _resource("reproduction.css"), body, script)


def _resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def spans(claim: JudgedClaim, claims: Iterable[JudgedClaim]) -> dict[str, float]:
    """Return where zero, the effect and its interval are drawn, in per cent; claims of one unit share a scale."""
    alike = [other for other in claims if other.unit == claim.unit]
    values = [value for other in alike for value in (other.effect, *(other.interval or ())) if value is not None]
    least, most = min(0.0, *values), max(0.0, *values)
    where = {"zero": 0.0, "effect": claim.effect or 0.0}
    where |= dict(zip(("low", "high"), claim.interval, strict=True)) if claim.interval else {}
    return {name: round(4 + 92 * (value - least) / ((most - least) or 1.0), 1) for name, value in where.items()}


def _order(findings: Findings) -> tuple[int, bool, list[Any], str]:
    """Order the paper, its appendix (as in "Table B.2"), what is beyond it; tables first, numbers as numbers."""
    source = findings.source
    part = 2 if "beyond" in source.lower() else 1 if re.search(r"\b[A-Z]\.?\d", source) else 0
    words = [(word.isdigit(), int(word) if word.isdigit() else word) for word in re.split(r"(\d+)", source)]
    return part, "Table" not in source, words, findings.name
