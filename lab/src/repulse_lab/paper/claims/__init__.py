"""What the paper claims, and what the experiments that were run say to it.

CLAIMS       every claim, with a test
judge        verdicts over a folder of results
write_claims verdicts into claims.json and claims.md, and orderings of tables into orderings.md
table        verdicts for a terminal
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from repulse._files import write_whole
from repulse_lab.paper.claims import orderings
from repulse_lab.paper.claims.reading import read_claims, read_settings
from repulse_lab.paper.claims.relations import Claim
from repulse_lab.paper.claims.results import Results
from repulse_lab.paper.claims.verdict import Verdict
from repulse_lab.study.claims import VERDICTS, JudgedClaim, write_judged

__all__ = ["CLAIMS", "Claim", "Results", "Verdict", "judge", "table", "write_claims"]

WIDTH = 110
CLAIMS = read_claims()


def judge(folder: str | Path) -> list[JudgedClaim]:
    """Judge every claim by what experiments left in the folder of a preset."""
    results = Results.read(Path(folder))
    settings = read_settings() if results.preset == "cpu" else {}
    return [claim.judged(results, settings) for claim in CLAIMS]


def write_claims(folder: str | Path) -> list[JudgedClaim]:
    """Judge, and write `claims.json`, `claims.md` and `orderings.md` next to the experiments."""
    judged, folder = judge(folder), Path(folder)
    write_whole(folder / "orderings.md", orderings.markdown(orderings.find(Results.read(folder))))
    write_judged(judged, folder)
    write_whole(folder / "claims.md", markdown(judged))
    return judged


def by_verdict(judged: Sequence[JudgedClaim]) -> dict[str, list[JudgedClaim]]:
    """Group claims by verdict, in order."""
    found = {word: [one for one in judged if one.verdict == word] for word in VERDICTS}
    return {word: ones for word, ones in found.items() if ones}


def markdown(judged: Sequence[JudgedClaim]) -> str:
    """Return a page, by verdict."""
    parts = ["# Claims of the paper", _counts(judged)]
    for word, ones in by_verdict(judged).items():
        parts.append(f"## {word.capitalize()} ({len(ones)})")
        for one in ones:
            sure = f" *{one.confidence[0].upper()}{one.confidence[1:]}.*" if one.confidence else ""
            where = f"\n  Setting: {one.setting}." if one.setting else ""
            parts.append(f"- **{one.text}** ({one.source}; `{one.id}`)\n  {one.evidence}{sure}{where}")
    return "\n\n".join(parts) + "\n"


def table(judged: Sequence[JudgedClaim]) -> str:
    """Format verdicts on the left, claims and evidence on the right, in lines of at most 110 characters."""
    indent = max(map(len, VERDICTS)) + 2
    lines = []
    for word, ones in by_verdict(judged).items():
        for one in ones:
            lines += _wrapped(f"{one.text} [{one.source}]", word.ljust(indent), indent)
            said = f"{one.evidence} {one.confidence}".strip()
            lines += [*_wrapped(said, " " * (indent + 2), indent + 2), ""]
    return "\n".join([*lines, _counts(judged)])


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    kept = text.replace(" %", "\u00a0%")  # a number and its sign stay on one line
    lines = textwrap.wrap(kept, WIDTH, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _counts(judged: Sequence[JudgedClaim]) -> str:
    counts = ", ".join(f"{len(ones)} {word}" for word, ones in by_verdict(judged).items())
    return f"{len(judged)} claims: {counts}." if judged else "No claims."
