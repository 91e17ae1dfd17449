"""How a stream is doing, as a watch tells it after each update."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from repulse._files import without_nan


@dataclass(frozen=True)
class Record:
    """How a stream is doing, over the last inputs; `json()` is a line for a log.

    Attributes:
        time: in UTC.
        seen: inputs since the beginning.
        window: inputs that the shares and means are over.
        accept: share of them accepted.
        abstain: share abstained from.
        foreign: share called foreign; `false_alarms` of the gate is what to expect while nothing changes.
        p_epistemic: mean p-value of epistemic uncertainty; one half while nothing changes.
        p_total: mean p-value of total uncertainty.
        evidence_epistemic: decimal logarithm of the odds against "no new kinds of input".
        evidence_total: decimal logarithm of the odds against "no harder inputs".
        alarm: what has been found, in words; None as long as nothing was.
        measure: "accuracy", or "absolute error" for numbers, of inputs that are not foreign.
        estimate: of that measure, without labels.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    time: str
    seen: int
    window: int
    accept: float
    abstain: float
    foreign: float
    p_epistemic: float
    p_total: float
    evidence_epistemic: float
    evidence_total: float
    alarm: str | None
    measure: str
    estimate: float
    low: float
    high: float

    def json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(without_nan(asdict(self)), allow_nan=False)

    def __str__(self) -> str:
        return (
            f"{self.seen:,} inputs; of the last {self.window:,} accepted {self.accept:.1%}, abstained "
            f"{self.abstain:.1%}, foreign {self.foreign:.1%}; {self.measure} about {self.estimate:.3g} "
            f"({self.low:.3g} to {self.high:.3g}); " + (f"ALARM: {self.alarm}" if self.alarm else "no alarm")
        )
