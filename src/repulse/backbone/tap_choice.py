"""Which modules are tapped: the blocks that end a stage of the network, or a few depths of it.

Networks are seen from the outside alone, by what one batch did: which modules ran, and the shapes that went in and came
out. A stage is what happens at about one resolution; it ends where resolution falls by about half. What counts is the
trunk: the inside of a block, with its paddings, convolutions and norms, is its own business.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from repulse.backbone.maps import CONTAINER, FALL, LINEAR, NOTHING, Map, Ran, maps_of
from repulse.backbone.taps import INPUTS, Tap
from repulse.errors import BackboneError, expected

COLUMNS = 1024
"""Number of columns up to which further blocks are tapped beside the last ones of each stage."""

MAX_COLUMNS = COLUMNS * 9 // 8
"""Number of columns beyond which channels are grouped; three depths of a transformer with 384 channels have as many."""


POSITION_COLUMNS = 256
"""Number of columns at most where heads see all of them at every position."""

COARSEST = 6
"""Positions along an axis that may share one of a stage: what more of them share is the scene, not what is in it."""


def find_taps(ran: Sequence[Ran], inputs: Tensor | None) -> list[Tap]:
    """Choose the modules to tap, from the modules that ran on one batch, in the order in which they ended.

    Of a network that lowers its resolution in steps: the last block of each stage, and further blocks while all taps
    together are few columns. Of one that does not, such as a transformer: the blocks at a quarter, half and three
    quarters of its depth. Of a perceptron: its inputs and hidden layers. Of any other network: none. Modules that run
    more than once are left out: which of their outputs is meant?

    Args:
        ran: the modules that ran.
        inputs: the images, rows or other signals that went in, if there are any.
    """
    times = Counter(module.name for module in ran)
    once = [found for found in maps_of(ran, inputs) if times[found.name] == 1]
    maps = _trunk([found for found in once if not re.search(r"attn|attention", found.name, re.IGNORECASE)])
    if inputs is not None and _is_perceptron(maps, inputs):
        return _of_perceptron(maps, inputs)
    tokens = [found for found in maps if found.is_tokens and found.is_block and found.size > 1]
    maps = tokens if len(tokens) > 1 else [found for found in maps if not found.is_tokens]
    if inputs is not None and inputs.ndim > 3:  # a layer that normalises images is no stage
        maps = [found for found in maps if found.ran.parts or found.ran.left != tuple(inputs.shape)]
    stages = _stages(maps)
    if len(set(stages.values())) > 1:
        return _of_stages(maps, stages)
    return _of_depths([found for found in maps if found.size > 1])


def named_taps(names: Sequence[str], ran: Sequence[Ran], inputs: Tensor | None, known: Sequence[str]) -> list[Tap]:
    """Return taps at modules that the user names."""
    outputs = {found.name: found for found in maps_of(ran, inputs)}
    taps = []
    for name in names:
        if name not in outputs or not name:
            near = difflib.get_close_matches(name, list(outputs) or list(known), n=1, cutoff=0.0)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            what = f"{name!r}, which is no such module" if name in known and name else repr(name)
            raise BackboneError(
                expected("layers", "names of modules of the model that run before its last layer", what) + hint
            )
        taps.append(outputs[name].tap())
    return taps


def position_taps(
    taps: Sequence[Tap], ran: Sequence[Ran], grid: Sequence[int], coarsest: float = math.inf
) -> list[Tap]:
    """Return the taps of these that have as many axes of positions, to be read at every position.

    Args:
        taps: as they read whole inputs.
        ran: the modules that ran.
        grid: positions of the last layer's features along each axis.
        coarsest: how many of these along each axis, at most, may share a position of a tap.
    """
    shapes = {module.name: module.left for module in ran}
    fitting = [tap for tap in taps if tap.layout != "vector" and tap.reads != INPUTS]
    found = [tap for tap in fitting if len(shapes.get(tap.name, ())) == len(grid) + 2]

    def shared(tap: Tap) -> float:
        left = shapes[tap.name][2:] if tap.layout == "channels_first" else shapes[tap.name][1:-1]
        return (math.prod(grid) / max(math.prod(left), 1)) ** (1 / len(grid))

    return [tap.at_positions() for tap in found if shared(tap) <= coarsest]


def within_columns(taps: Sequence[Tap], most: int = MAX_COLUMNS) -> list[Tap]:
    """Group neighbouring channels, as many in each tap, until all taps have at most so many columns together.

    A wide network is wide everywhere, and its last stages say most: each tap keeps its share. Inputs, which are columns
    of a table as often as not, are grouped only if they alone have more than `COLUMNS`.
    """
    found = [tap.grouped(-(-tap.columns // COLUMNS)) if tap.reads == INPUTS else tap for tap in taps]
    group = 1
    while sum(tap.columns for tap in found) > most and group < MAX_COLUMNS:
        group += 1
        found = [now if tap.reads == INPUTS else tap.grouped(group) for now, tap in zip(found, taps, strict=True)]
    return found


def _trunk(maps: Sequence[Map]) -> list[Map]:
    """Leave out what is inside a block or a layer, and what adds nothing to tap."""
    opaque = {found.name for found in maps if found.is_opaque}

    def inside(name: str) -> bool:
        parents = name.split(".")[:-1]
        return any(".".join(parents[: i + 1]) in opaque for i in range(len(parents)))

    return [found for found in maps if found.ran.kind != NOTHING and not inside(found.name)]


def _stages(maps: Sequence[Map]) -> dict[int, int]:
    """Number the stages that sizes belong to; a stage has sizes that fall by less than `FALL`."""
    stages: dict[int, int] = {}
    largest, stage = 0, -1
    for size in sorted({found.size for found in maps if found.size > 1}, reverse=True):
        if stage < 0 or largest >= FALL * size:
            largest, stage = size, stage + 1
        stages[size] = stage
    return stages


def _of_stages(maps: Sequence[Map], stages: dict[int, int]) -> list[Tap]:
    """Choose the last block of each stage, then further blocks while they are few columns."""
    chosen: list[Map] = []
    spare: list[Map] = []
    last = max(stages.values())
    for stage in range(last + 1):
        here = [m for m in maps if stages.get(m.size) == stage]
        # What happens inside the block that lowers the resolution belongs to neither stage.
        blocks = [m for m in here if m.is_block]
        after = [m for m in maps if stages.get(m.size, last + 1) == stage + 1]
        crossing = [m for m in after if stages.get(m.size_before or 1) == stage and not any(map(m.holds, blocks))]
        settled = [m for m in here if not any(block.holds(m) for block in crossing)] or here
        numbered = [m for m in settled if m.is_block]
        # A block, or what holds it; a norm or convolution after the last block only where there is no block.
        ends = [m for m in settled if m.is_block or any(m.holds(block) for block in numbered)] or settled
        end = ends[-1]
        rows = [m for m in numbered if m is not end and not m.holds(end)]
        blocks = [m for m in rows if not any(other.holds(m) for other in rows)]
        if blocks and end.holds(blocks[-1]):
            blocks = blocks[:-1]  # the last block of a stage is the stage's own output
        chosen.append(end)
        spare.extend(blocks)
    columns = sum(m.tap().columns for m in chosen)
    for block in spare:
        columns += block.tap().columns
        if columns <= COLUMNS:
            chosen.append(block)
    order = [m.name for m in maps]
    return [m.tap() for m in sorted(chosen, key=lambda m: order.index(m.name))]


def _of_depths(maps: Sequence[Map]) -> list[Tap]:
    """Choose three depths of the longest row of blocks with equal outputs."""
    families: dict[tuple[str, int, int], list[Map]] = {}
    for found in maps:
        if found.is_block:
            row = found.name.rstrip("0123456789")
            families.setdefault((row, found.size, found.channels), []).append(found)
    longest = max(families.values(), key=len, default=[])
    if len(longest) < 2:
        return []
    depths = dict.fromkeys(max(round(len(longest) * quarter / 4), 1) - 1 for quarter in (1, 2, 3))
    return [longest[depth].tap() for depth in depths]


def _is_perceptron(maps: Sequence[Map], inputs: Tensor) -> bool:
    """Check whether all outputs are vectors, and some module took the whole input."""
    took = [math.prod(found.ran.entered[1:]) for found in maps if found.ran.entered is not None]
    return inputs[0].numel() in took and all(found.size == 1 for found in maps)


def _of_perceptron(maps: Sequence[Map], inputs: Tensor) -> list[Tap]:
    """Choose the inputs, and each hidden layer with what follows it: a norm, an activation."""
    ends: list[Map] = []
    for found in maps:
        if found.ran.kind == CONTAINER:
            continue
        begins = found.ran.kind == LINEAR or found.is_block
        if ends and not begins and found.channels == ends[-1].channels:
            ends[-1] = found
        elif begins:
            ends.append(found)
    width = inputs[0].numel()
    return [Tap(INPUTS, "vector", width, INPUTS), *(replace(end.tap(), layout="vector") for end in ends)]
