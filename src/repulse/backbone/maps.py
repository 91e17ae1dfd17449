"""What ran in a pass: modules, the shapes that went in and came out, and where the channels are in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from repulse.backbone.taps import Tap

_CHANNELS_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)
CONTAINER, LINEAR, LAYER, NOTHING = "container", "linear", "layer", "nothing"

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
        return NOTHING
    if isinstance(module, nn.Sequential | nn.ModuleList):
        return CONTAINER
    if isinstance(module, nn.Linear):
        return LINEAR
    return LAYER if layout_of(module) is not None else ""


@dataclass(frozen=True)
class Map:
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
            and self.ran.kind not in (LINEAR, LAYER)
            and re.search(r"(^|[._])\d+$", self.name) is not None
        )

    @property
    def is_opaque(self) -> bool:
        """Check whether its inside is its own business: a layer, or a block that is at most one step in resolution.

        A whole network inside another, `Sequential(Normalize(), network)`, is numbered too, but no such step.
        """
        if self.ran.kind in (LINEAR, LAYER, NOTHING):
            return True
        if not self.is_block or self.ran.kind == CONTAINER or self.size_before is None:
            return False
        if self.size == 1:
            return self.ran.entered == self.ran.left
        return self.size_before < 4 * FALL * self.size

    @property
    def is_tokens(self) -> bool:
        """Check whether it is `(B, tokens, channels)`."""
        return len(self.ran.left) == 3 and self.layout == "channels_last"

    def holds(self, other: Map) -> bool:
        """Check whether another module is inside this one."""
        return other.name.startswith(f"{self.name}.")

    def tap(self) -> Tap:
        if self.layout == "vector":
            return Tap(self.name, self.layout, self.channels)
        if self.is_tokens:
            return Tap(self.name, self.layout, self.channels, "mean")
        return Tap(self.name, self.layout, 2 * self.channels)


def maps_of(ran: Sequence[Ran], inputs: Tensor | None) -> list[Map]:
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
            maps.append(Map(module, "vector", 1, math.prod(module.left[1:]), before))
        else:
            channels = module.left[1 if layout == "channels_first" else -1]
            maps.append(Map(module, layout, size, channels, before))
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
