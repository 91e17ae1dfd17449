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
from dataclasses import dataclass, replace

from torch import Tensor, nn

from repulse.backbone.taps import INPUTS, Tap
from repulse.errors import BackboneError, expected

_CHANNELS_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)
_CONTAINER, _LINEAR, _LAYER, _NOTHING = "container", "linear", "layer", "nothing"

COLUMNS = 1024
"""Number of columns up to which further blocks are tapped beside the last ones of each stage."""

MAX_COLUMNS = COLUMNS * 9 // 8
"""Number of columns beyond which channels are grouped; three depths of a transformer with 384 channels have as many."""

FALL = 1.75
"""Ratio of positions that begins a new stage: sides are halved, give or take a pixel (7 become 4, 14 become 10)."""


@dataclass(frozen=True)
class Ran:
    """A module that ran: the shapes of what went in and came out, and what its class tells of it.

    Attributes:
        name: of the module.
        entered: shape of its first input, if that is a tensor.
        left: shape of its output.
        parts: whether it has children.
        layout: where it has its channels, if its kind tells.
        kind: "container" for modules that run their children in a row, "linear" or "layer" for a layer of torch,
            "nothing" for what adds nothing to tap (paddings, dropout, identities), otherwise "".
    """

    name: str
    entered: tuple[int, ...] | None
    left: tuple[int, ...]
    parts: bool
    layout: str | None = None
    kind: str = ""

    @classmethod
    def of(cls, name: str, module: nn.Module, entered: Tensor | None, left: Tensor) -> Ran:
        """Record a module that ran."""
        before = None if entered is None else tuple(entered.shape)
        return cls(name, before, tuple(left.shape), any(module.children()), layout_of(module), _kind(module))


def layout_of(module: nn.Module) -> str | None:
    """Return where a module has its channels, if its kind tells."""
    if isinstance(module, _CHANNELS_FIRST):
        return "channels_first"
    return "channels_last" if type(module) in (nn.Linear, nn.LayerNorm) else None


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Identity) or re.search(r"pad(ding)?(\d[dD])?$|dropout", type(module).__name__.lower()):
        return _NOTHING
    if isinstance(module, nn.Sequential | nn.ModuleList):
        return _CONTAINER
    if isinstance(module, nn.Linear):
        return _LINEAR
    return _LAYER if layout_of(module) is not None else ""


@dataclass(frozen=True)
class _Map:
    """The output of a module as channels at positions."""

    ran: Ran
    layout: str
    size: int
    channels: int
    size_before: int | None

    @property
    def name(self) -> str:
        return self.ran.name

    @property
    def is_block(self) -> bool:
        """Check whether it is one of a row of modules: numbered, and made of parts."""
        return (
            self.ran.parts
            and self.ran.kind not in (_LINEAR, _LAYER)
            and re.search(r"(^|[._])\d+$", self.name) is not None
        )

    @property
    def is_opaque(self) -> bool:
        """Check whether its inside is its own business: a layer, or a block that is at most one step in resolution.

        A whole network inside another, `Sequential(Normalize(), network)`, is numbered too, but no such step.
        """
        if self.ran.kind in (_LINEAR, _LAYER, _NOTHING):
            return True
        if not self.is_block or self.ran.kind == _CONTAINER or self.size_before is None:
            return False
        if self.size == 1:
            return self.ran.entered == self.ran.left
        return self.size_before < 4 * FALL * self.size

    @property
    def is_tokens(self) -> bool:
        """Check whether it is `(B, tokens, channels)`."""
        return len(self.ran.left) == 3 and self.layout == "channels_last"

    def holds(self, other: _Map) -> bool:
        """Check whether another module is inside this one."""
        return other.name.startswith(f"{self.name}.")

    def tap(self) -> Tap:
        if self.layout == "vector":
            return Tap(self.name, self.layout, self.channels)
        if self.is_tokens:
            return Tap(self.name, self.layout, self.channels, "mean")
        return Tap(self.name, self.layout, 2 * self.channels)


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
    once = [found for found in _maps(ran, inputs) if times[found.name] == 1]
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
    outputs = {found.name: found for found in _maps(ran, inputs)}
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


def within_columns(taps: Sequence[Tap]) -> list[Tap]:
    """Group neighbouring channels, as many in each tap, until all taps have at most `MAX_COLUMNS` together.

    A wide network is wide everywhere, and its last stages say most: each tap keeps its share. Inputs, which are columns
    of a table as often as not, are grouped only if they alone have more than `COLUMNS`.
    """
    found = [tap.grouped(-(-tap.columns // COLUMNS)) if tap.reads == INPUTS else tap for tap in taps]
    group = 1
    while sum(tap.columns for tap in found) > MAX_COLUMNS and group < MAX_COLUMNS:
        group += 1
        found = [now if tap.reads == INPUTS else tap.grouped(group) for now, tap in zip(found, taps, strict=True)]
    return found


def _trunk(maps: Sequence[_Map]) -> list[_Map]:
    """Leave out what is inside a block or a layer, and what adds nothing to tap."""
    opaque = {found.name for found in maps if found.is_opaque}

    def inside(name: str) -> bool:
        parents = name.split(".")[:-1]
        return any(".".join(parents[: i + 1]) in opaque for i in range(len(parents)))

    return [found for found in maps if found.ran.kind != _NOTHING and not inside(found.name)]


def _stages(maps: Sequence[_Map]) -> dict[int, int]:
    """Number the stages that sizes belong to; a stage has sizes that fall by less than `FALL`."""
    stages: dict[int, int] = {}
    largest, stage = 0, -1
    for size in sorted({found.size for found in maps if found.size > 1}, reverse=True):
        if stage < 0 or largest >= FALL * size:
            largest, stage = size, stage + 1
        stages[size] = stage
    return stages


def _of_stages(maps: Sequence[_Map], stages: dict[int, int]) -> list[Tap]:
    """Choose the last block of each stage, then further blocks while they are few columns."""
    chosen: list[_Map] = []
    spare: list[_Map] = []
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


def _of_depths(maps: Sequence[_Map]) -> list[Tap]:
    """Choose three depths of the longest row of blocks with equal outputs."""
    families: dict[tuple[str, int, int], list[_Map]] = {}
    for found in maps:
        if found.is_block:
            row = found.name.rstrip("0123456789")
            families.setdefault((row, found.size, found.channels), []).append(found)
    longest = max(families.values(), key=len, default=[])
    if len(longest) < 2:
        return []
    depths = dict.fromkeys(max(round(len(longest) * quarter / 4), 1) - 1 for quarter in (1, 2, 3))
    return [longest[depth].tap() for depth in depths]


def _is_perceptron(maps: Sequence[_Map], inputs: Tensor) -> bool:
    """Check whether all outputs are vectors, and some module took the whole input."""
    took = [math.prod(found.ran.entered[1:]) for found in maps if found.ran.entered is not None]
    return inputs[0].numel() in took and all(found.size == 1 for found in maps)


def _of_perceptron(maps: Sequence[_Map], inputs: Tensor) -> list[Tap]:
    """Choose the inputs, and each hidden layer with what follows it: a norm, an activation."""
    ends: list[_Map] = []
    for found in maps:
        if found.ran.kind == _CONTAINER:
            continue
        begins = found.ran.kind == _LINEAR or found.is_block
        if ends and not begins and found.channels == ends[-1].channels:
            ends[-1] = found
        elif begins:
            ends.append(found)
    width = inputs[0].numel()
    return [Tap(INPUTS, "vector", width, INPUTS), *(replace(end.tap(), layout="vector") for end in ends)]


def _maps(ran: Sequence[Ran], inputs: Tensor | None) -> list[_Map]:
    """Find where the channels of each output are, and at how many positions.

    A module's kind may tell; if not, the last module before it whose output had the same shape; if none did, the shape.
    """
    known: dict[tuple[int, ...], str] = {}
    maps = []
    for module in ran:
        layout = module.layout or known.get(module.left) or _layout(module.left, inputs)
        if module.layout:
            known[module.left] = module.layout
        before = None
        if module.entered is not None and len(module.entered) == len(module.left):
            before = _positions(module.entered, known.get(module.entered) or _layout(module.entered, inputs))
        size = 1 if len(module.left) <= 2 else _positions(module.left, layout)
        if size == 1:
            maps.append(_Map(module, "vector", 1, math.prod(module.left[1:]), before))
        else:
            channels = module.left[1 if layout == "channels_first" else -1]
            maps.append(_Map(module, layout, size, channels, before))
    return maps


def _layout(shape: tuple[int, ...], inputs: Tensor | None) -> str:
    if len(shape) <= 2:
        return "vector"
    if len(shape) == 3:
        return "channels_last"
    if inputs is None or inputs.ndim != len(shape):
        return "channels_first"
    # Of an image, the two sides keep their ratio; channels need not.
    sides = inputs.shape[1:3] if inputs.shape[-1] <= 4 < inputs.shape[1] else inputs.shape[2:4]
    ratio = sides[0] / sides[1]
    first, last = (abs(a / b - ratio) for a, b in (shape[2:4], shape[1:3]))
    return "channels_last" if last < first else "channels_first"


def _positions(shape: tuple[int, ...], layout: str) -> int:
    if layout == "vector":
        return 1
    return math.prod(shape[2:] if layout == "channels_first" else shape[1:-1])
