"""Claims of the paper with their verdicts, as `claims.json` keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from repulse._files import write_whole
from repulse.errors import CheckpointError, RepulseError, expected

FORMAT = 1
FILE = "claims.json"
CONFIRMED, CONTRADICTED, UNDECIDED, NOT_ENOUGH, UNTESTABLE = VERDICTS = (
    "confirmed",
    "contradicted",
    "undecided",
    "not enough runs",
    "not testable here",
)


@dataclass(frozen=True)
class JudgedClaim:
    """Something the paper says, and what came out.

    Attributes:
        id: short name.
        text: the claim.
        source: where the paper makes it.
        verdict: one of `VERDICTS`.
        evidence: a sentence or two, with numbers.
        effect: how large it is, if it is a number.
        unit: of the effect.
        interval: in which the effect lies, as far as seeds tell.
        confidence: how sure that is, in a sentence.
        experiments: names of those that tested it.
        setting: how these differ from the paper's, in a sentence.
    """

    id: str
    text: str
    source: str
    verdict: str
    evidence: str = ""
    effect: float | None = None
    unit: str = ""
    interval: Sequence[float] | None = None
    confidence: str = ""
    experiments: Sequence[str] = ()
    setting: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            known = ", ".join(map(repr, VERDICTS))
            raise CheckpointError(expected(f"the verdict of claim {self.id!r}", f"one of {known}", repr(self.verdict)))
        edges = (0.0, 0.0) if self.interval is None else self.interval
        if len(edges) != 2 or not all(map(math.isfinite, (self.effect or 0.0, *edges))):
            wanted = "finite numbers, one and two"
            raise CheckpointError(expected(f"effect and interval of claim {self.id!r}", wanted, (self.effect, edges)))


def write_judged(claims: Sequence[JudgedClaim], folder: Path) -> Path:
    """Write `claims.json` into the folder of a preset."""
    kept = {"format": FORMAT, "claims": [asdict(claim) for claim in claims]}
    return write_whole(folder / FILE, json.dumps(kept, indent=1, allow_nan=False) + "\n")


def read_judged(folder: Path) -> list[JudgedClaim]:
    """Read the claims in a folder; none if there is no `claims.json`."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            raise CheckpointError(expected(f"the file {path}", f"of format {FORMAT}", "another; write it again"))
        return [JudgedClaim(**claim) for claim in kept["claims"]]
    except RepulseError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise CheckpointError(expected(f"the file {path}", "a list of claims", str(reason))) from reason
