"""The default for texts."""

from __future__ import annotations

from repulse.repulsion.mixture import Mixture
from repulse.repulsion.span_mix import SpanMix
from repulse.repulsion.word_shuffle import WordShuffle


class TextSamples(Mixture):
    """Draw texts with shuffled tokens and texts mixed from two, half each: what token ids get by default."""

    def __init__(self) -> None:
        super().__init__([WordShuffle(), SpanMix()])

    def __repr__(self) -> str:
        return "TextSamples(words shuffled, spans of two texts mixed)"
