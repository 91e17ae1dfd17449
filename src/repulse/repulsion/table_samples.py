"""The default for tables."""

from __future__ import annotations

from repulse.repulsion.half_shuffle import HalfShuffle
from repulse.repulsion.mixture import Mixture
from repulse.repulsion.wide_box import WideBox


class TableSamples(Mixture):
    """Draw half-shuffled rows and rows of a wide box, half each: what a table gets if nothing else is said."""

    def __init__(self) -> None:
        super().__init__([HalfShuffle(), WideBox()])

    def __repr__(self) -> str:
        return "TableSamples(half-shuffled rows, wide box)"
