"""Choose where heads repel by the kind of inputs: what `repulsion="auto"` means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from repulse.errors import RepulseError
from repulse.repulsion.difference import Difference
from repulse.repulsion.half_shuffle import HalfShuffle
from repulse.repulsion.images import SMALLEST_SIDE, has_channels_last
from repulse.repulsion.mixture import Mixture
from repulse.repulsion.pasted import Pasted
from repulse.repulsion.replaced_words import ReplacedWords
from repulse.repulsion.segment_shuffle import SegmentShuffle
from repulse.repulsion.shell import Shell
from repulse.repulsion.signal_phase_scramble import SignalPhaseScramble
from repulse.repulsion.signal_samples import SignalSamples
from repulse.repulsion.source import FeatureSource, Source, map_tensors, sample_inputs, tensors_of
from repulse.repulsion.span_mix import SpanMix
from repulse.repulsion.synthetic_images import SyntheticImages
from repulse.repulsion.table_samples import TableSamples
from repulse.repulsion.text_samples import TextSamples
from repulse.repulsion.texts import MASK, ids_in
from repulse.repulsion.wide_box import WideBox
from repulse.repulsion.word_shuffle import WordShuffle

SHELL_SHARE = 0.25
"""Share of the repulsion samples that are drawn from a shell in feature space."""

SHORTEST_SIGNAL = 16
SHORTEST_PLAIN_SIGNAL = 64
"""Steps of the shortest signals `(B, C, T)`, and of the shortest `(B, T)` that are not taken for rows of a table."""

SMOOTH = 0.5
"""Correlation of neighbouring columns above which rows `(B, T)` are taken for signals."""

TRIED = 16
"""Maximum number of inputs on which a source is tried."""

Kind = Literal["images", "signals", "table", "text", "other"]

_IN_WORDS: dict[Kind, str] = {
    "images": "the inputs are images",
    "signals": "the inputs are signals",
    "table": "the inputs are a table",
    "text": "the inputs are token ids",
    "other": "the inputs are of no kind that there are samples for",
}


@dataclass(frozen=True)
class Choice:
    """Where heads repel, and why.

    Attributes:
        kind: what the inputs are.
        source: where the heads repel.
    """

    kind: Kind
    source: Source | FeatureSource

    def __str__(self) -> str:
        return f"{self.source}, because {_IN_WORDS[self.kind]}"


def choose(inputs: Any, features_of: Callable[[Any], Tensor] | None = None, *, positions: bool = False) -> Choice:
    """Choose sources of repulsion samples by the kind of inputs.

    Args:
        inputs: a batch of training inputs, as the model takes them.
        features_of: the network; sources are left out whose samples it cannot take, or cannot tell from the inputs (a
            mean over tokens does not see in which order they came).
        positions: whether the network has an output at every position: then images get things pasted into them, and
            texts other words, so that heads disagree there and agree around.
    """
    kind = kind_of(inputs) if isinstance(inputs, Tensor | Mapping | tuple | list) else "other"
    whole, parts = _sources(kind)
    if positions and kind in _AT_POSITIONS:
        parts = [make() for make in _AT_POSITIONS[kind]]
        whole = Mixture(parts) if len(parts) > 1 else parts[0]
    if features_of is not None and parts:
        useful = [part for part in parts if _is_useful(part, inputs, features_of)]
        if len(useful) < len(parts):
            whole = Mixture(useful) if len(useful) > 1 else useful[0] if useful else None
    if whole is None:
        return Choice(kind, Mixture([Shell(), Difference()]))
    return Choice(kind, Mixture([whole, Shell()], [1 - SHELL_SHARE, SHELL_SHARE]))


_AT_POSITIONS: dict[Kind, tuple[Callable[[], Source], ...]] = {
    "images": (Pasted,),
    "text": (ReplacedWords, WordShuffle),
}
"""Sources for outputs at every position, equally often."""


def kind_of(inputs: Any) -> Kind:
    """Tell what inputs are by shapes and types, and signals `(B, T)` from rows of a table by their smoothness."""
    if ids_in(inputs) is not None:
        return "text"
    tensors = tensors_of(inputs)
    floats = [value for value in tensors.values() if value.is_floating_point() or value.dtype == torch.uint8]
    if len(floats) == 1 and _are_images(floats[0]):
        return "images"
    if len(floats) == 1 and _are_signals(floats[0]):
        return "signals"
    rows = {len(value) if 0 < value.ndim < 3 else 0 for value in tensors.values()}
    masked = isinstance(inputs, Mapping) and MASK in inputs
    return "table" if len(rows) == 1 and min(rows) >= 2 and not masked else "other"


def _sources(kind: Kind) -> tuple[Source | None, list[Source]]:
    """Return the source in input space for a kind of inputs, and the parts it is made of."""
    if kind == "images":
        return (whole := SyntheticImages()), [whole]
    if kind == "signals":
        return SignalSamples(), [SegmentShuffle(), SignalPhaseScramble()]
    if kind == "table":
        return TableSamples(), [HalfShuffle(), WideBox()]
    if kind == "text":
        return TextSamples(), [WordShuffle(), SpanMix()]
    return None, []


def _are_images(value: Tensor) -> bool:
    if value.ndim == 4:
        return min(value.shape[1:3] if has_channels_last(value) else value.shape[2:]) >= SMALLEST_SIDE
    return value.ndim == 3 and value.shape[1] == value.shape[2] >= 2 * SMALLEST_SIDE


def _are_signals(value: Tensor) -> bool:
    if not value.is_floating_point():
        return False
    if value.ndim == 3:
        return value.shape[2] >= SHORTEST_SIGNAL
    return value.ndim == 2 and value.shape[1] >= SHORTEST_PLAIN_SIGNAL and _smoothness(value) > SMOOTH


def _smoothness(rows: Tensor) -> float:
    """Return the correlation of neighbouring columns within rows, on columns of equal scale."""
    rows = rows.double()
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0, correction=0).clamp_min(1e-12)
    power = rows.square().sum()
    return float((rows[:, 1:] * rows[:, :-1]).sum() / power) if power > 0 else 0.0


def _is_useful(source: Source, inputs: Any, features_of: Callable[[Any], Tensor]) -> bool:
    """Check whether the network takes samples of a source, and makes something else of them than of the inputs."""
    count = next((len(value) for value in tensors_of(inputs).values() if value.ndim), 0)
    few = map_tensors(lambda value: value[:TRIED] if value.ndim and len(value) == count else value, inputs)
    try:
        made = features_of(sample_inputs(source, few, torch.Generator())).double()  # which samples does not matter
    except (RepulseError, RuntimeError, IndexError, ValueError):
        return False
    before = features_of(few).double()
    size = (before - before.mean(dim=0)).abs().mean()
    return bool((made - before).abs().mean() > 1e-3 * size) and bool(torch.isfinite(made).all())
