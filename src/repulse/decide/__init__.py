"""From doubt to decision: a gate with guarantees, reasons, and a watch over time."""

from repulse.decide.conformal import (
    benjamini_hochberg,
    class_scores,
    class_sets,
    clopper_pearson,
    fixed_sequence,
    interval_scores,
    intervals,
    p_values,
    p_values_by_class,
    randomised_p_values,
    threshold,
)
from repulse.decide.decision import Decision
from repulse.decide.gate import Gate
from repulse.decide.promise import Promise
from repulse.decide.reason import Axis, Neighbour, Reason, Reasons
from repulse.decide.record import Record
from repulse.decide.watch import Watch
from repulse.decide.within import GateWithin, gate_within

__all__ = [
    "Axis",
    "Decision",
    "Gate",
    "GateWithin",
    "Neighbour",
    "Promise",
    "Reason",
    "Reasons",
    "Record",
    "Watch",
    "benjamini_hochberg",
    "class_scores",
    "class_sets",
    "clopper_pearson",
    "fixed_sequence",
    "gate_within",
    "interval_scores",
    "intervals",
    "p_values",
    "p_values_by_class",
    "randomised_p_values",
    "threshold",
]
