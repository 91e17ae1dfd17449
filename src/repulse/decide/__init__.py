"""From doubt to decision: a gate with guarantees, reasons, a watch over time."""

from repulse.decide.why import Axis, Neighbour, Reason, Reasons, why

__all__ = ["Axis", "Neighbour", "Reason", "Reasons", "why"]
