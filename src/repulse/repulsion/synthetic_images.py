"""The default for images: what needs no data and was measured to do best without any."""

from __future__ import annotations

from repulse.repulsion.dead_leaves import DeadLeaves
from repulse.repulsion.phase_scramble import PhaseScramble
from repulse.repulsion.source import Mixture


class SyntheticImages(Mixture):
    """Dead leaves and phase-scrambled training images, half each; what `retrofit` takes for images if not told."""

    def __init__(self) -> None:
        super().__init__([DeadLeaves(), PhaseScramble()])

    def __repr__(self) -> str:
        return "SyntheticImages(dead leaves, phase scramble)"
