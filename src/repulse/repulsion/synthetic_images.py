"""The default for images: what needs no data and was measured to do best without any."""

from __future__ import annotations

from repulse.repulsion.dead_leaves import DeadLeaves
from repulse.repulsion.mixture import Mixture
from repulse.repulsion.phase_scramble import PhaseScramble
from repulse.repulsion.shear import Shear
from repulse.repulsion.swirl import Swirl


class SyntheticImages(Mixture):
    """Draw dead leaves, phase-scrambled, swirled and sheared training images, a quarter each.

    Images of nothing with the edges of natural ones, with their frequencies, and with their textures.
    """

    def __init__(self) -> None:
        super().__init__([DeadLeaves(), PhaseScramble(), Swirl(), Shear()])

    def __repr__(self) -> str:
        return "SyntheticImages(dead leaves, phase scramble, swirl, shear)"
