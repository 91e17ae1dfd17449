"""From doubt to decision: a gate with guarantees, and a watch over time."""

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

__all__ = [
    "Decision",
    "Gate",
    "Promise",
    "benjamini_hochberg",
    "class_scores",
    "class_sets",
    "clopper_pearson",
    "fixed_sequence",
    "interval_scores",
    "intervals",
    "p_values",
    "p_values_by_class",
    "randomised_p_values",
    "threshold",
]
