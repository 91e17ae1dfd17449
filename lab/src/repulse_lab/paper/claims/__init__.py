"""What the paper claims, and what the experiments that were run say to it.

CLAIMS       every claim, with a test
judge        verdicts over a folder of results
write_claims verdicts into claims.json and claims.md, and orderings of tables into orderings.md
table        verdicts for a terminal
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repulse._files import write_whole
from repulse_lab.paper.claims import digits, objects, orderings, others
from repulse_lab.paper.claims.relations import Claim
from repulse_lab.paper.claims.results import Results
from repulse_lab.paper.claims.verdict import VERDICTS, Verdict

__all__ = ["CLAIMS", "Claim", "Judged", "Results", "Verdict", "judge", "table", "write_claims"]

FORMAT = 1
WIDTH = 110
CLAIMS = (*others.CLAIMS, *digits.CLAIMS, *objects.CLAIMS)


@dataclass(frozen=True, eq=False)
class Judged:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        claim, verdict = self.claim, self.verdict
        return {
            **{name: getattr(claim, name) for name in ("id", "text", "source")},
            "verdict": verdict.word,
            **{name: getattr(verdict, name) for name in ("evidence", "effect", "unit")},
            "interval": None if verdict.interval is None else list(verdict.interval),
            "confidence": verdict.confidence,
            "experiments": list(claim.experiments),
        }


def judge(folder: str | Path) -> list[Judged]:
    """Every claim, by what experiments left in the folder of a preset."""
    results = Results.read(Path(folder))
    return [Judged(claim, claim.test(results)) for claim in CLAIMS]


def write_claims(folder: str | Path) -> list[Judged]:
    """Judge, and write `claims.json`, `claims.md` and `orderings.md` beside the experiments."""
    judged, folder = judge(folder), Path(folder)
    write_whole(folder / "orderings.md", orderings.markdown(orderings.find(Results.read(folder))))
    kept = {"format": FORMAT, "claims": [one.to_json() for one in judged]}
    write_whole(folder / "claims.json", json.dumps(kept, indent=1, allow_nan=False) + "\n")
    write_whole(folder / "claims.md", markdown(judged))
    return judged


def by_verdict(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Verdicts that occur, in order, with their claims."""
    found = {word: [one for one in judged if one.verdict.word == word] for word in VERDICTS}
    return {word: ones for word, ones in found.items() if ones}


def markdown(judged: Sequence[Judged]) -> str:
    """A page, by verdict."""
    parts = ["# Claims of the paper", _counts(judged)]
    for word, ones in by_verdict(judged).items():
        parts.append(f"## {word.capitalize()} ({len(ones)})")
        for one in ones:
            claim, sure = one.claim, one.verdict.confidence
            sure = f" *{sure[0].upper()}{sure[1:]}.*" if sure else ""
            parts.append(f"- **{claim.text}** ({claim.source}; `{claim.id}`)\n  {one.verdict.evidence}{sure}")
    return "\n\n".join(parts) + "\n"


def table(judged: Sequence[Judged]) -> str:
    """Verdicts on the left, claims and evidence on the right, in lines of at most 110 characters."""
    indent = max(map(len, VERDICTS)) + 2
    lines = []
    for word, ones in by_verdict(judged).items():
        for one in ones:
            lines += _wrapped(f"{one.claim.text} [{one.claim.source}]", word.ljust(indent), indent)
            said = f"{one.verdict.evidence} {one.verdict.confidence}".strip()
            lines += [*_wrapped(said, " " * (indent + 2), indent + 2), ""]
    return "\n".join([*lines, _counts(judged)])


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    kept = text.replace(" %", "\u00a0%")  # a number and its sign stay on one line
    lines = textwrap.wrap(kept, WIDTH, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _counts(judged: Sequence[Judged]) -> str:
    counts = ", ".join(f"{len(ones)} {word}" for word, ones in by_verdict(judged).items())
    return f"{len(judged)} claims: {counts}." if judged else "No claims."
