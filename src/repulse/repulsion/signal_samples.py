"""The default for signals."""

from __future__ import annotations

from repulse.repulsion.mixture import Mixture
from repulse.repulsion.segment_shuffle import SegmentShuffle
from repulse.repulsion.signal_phase_scramble import SignalPhaseScramble


class SignalSamples(Mixture):
    """Draw signals with shuffled segments and with scrambled phases, half each: what signals get by default."""

    def __init__(self) -> None:
        super().__init__([SegmentShuffle(), SignalPhaseScramble()])

    def __repr__(self) -> str:
        return "SignalSamples(segments shuffled, phases scrambled)"
