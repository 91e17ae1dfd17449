"""Taps: what the last layer has forgotten, read off earlier stages of the same pass.

A tap is the mean and the standard deviation of every channel of a module's output over its pixels, or its mean over the
tokens that are no padding. Where the penultimate features of two inputs have collapsed onto each other, statistics of
earlier stages may still tell them apart, and heads that are made to disagree will use them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.errors import BackboneError, expected

_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)
MOST_COLUMNS = 1024
"""Beyond the end of each stage, further blocks are tapped while all taps have at most so many columns."""

FEW_BYTES = 2**20
"""Bytes of a stage that are read at a time: what a core keeps at hand."""


@dataclass(frozen=True)
class Tap:
    """A module whose output is tapped, and where that output has its channels.

    Attributes:
        name: of the module.
        layout: "channels_first" `(B, C, ...)`, "channels_last" `(B, ..., C)`, or "vector" `(B, C)`.
        columns: how many numbers it gives.
        reads: "both" mean and deviation, or one of them: the "mean" of tokens, and the "deviation" of a stage whose
            means are the penultimate features.
    """

    name: str
    layout: str
    columns: int
    reads: str = "both"

    def read(self, output: Any, mask: Tensor | None) -> Float[Tensor, "B c"]:
        """Mean and standard deviation of every channel over all positions, or over those that `mask` allows."""
        values = tensor_in(output)
        if values is None:
            raise BackboneError(expected(f"the output of `{self.name}`", "a tensor", type(output).__name__))
        values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values  # sums overflow
        if values.requires_grad or self.layout == "vector":
            values = values.clone()  # what comes next may write into it
        if self.layout == "vector":
            flat = values.flatten(start_dim=1)
            if flat.shape[1] != self.columns:
                got = f"{flat.shape[1]}; inputs must be as large as those of the first batch"
                raise BackboneError(expected(f"numbers at `{self.name}`", str(self.columns), got))
            return flat
        first = self.layout == "channels_first"
        flat, axis = (values.flatten(2), 2) if first else (values.flatten(1, -2), 1)
        count = flat.shape[axis]
        if mask is not None and not first and fits(mask, flat.shape):
            weight = torch.nn.functional.pad(mask.to(flat), (0, flat.shape[1] - mask.shape[1])).unsqueeze(2)
            flat, count = flat * weight, weight.sum(dim=1).clamp_min(1)
        if self.reads == "mean":
            return flat.sum(dim=axis) / count
        mean, square = (total / count for total in _sums(flat, axis))
        # From squares, which is many times faster than a variance, and as good down to a thousandth of the mean.
        deviation = torch.maximum(square - mean.square(), 1e-6 * square + 1e-12).sqrt()
        return deviation if self.reads == "deviation" else torch.cat([mean, deviation], dim=1)


def _sums(values: Float[Tensor, "B a b"], axis: int) -> tuple[Float[Tensor, "B c"], Float[Tensor, "B c"]]:
    """Sums along an axis, and sums of squares: of a few samples at a time, which then stay in the processor's cache."""
    few = len(values)
    if values.device.type == "cpu" and values.numel():
        few = max(FEW_BYTES // (values.nbytes // few), 1)
    parts = values.split(few) if few < len(values) else (values,)
    # A norm needs no memory, but is slow along an axis that is not the last in memory.
    squares = _by_norm if values.stride(axis) == 1 else _by_squares
    sums = [(part.sum(dim=axis), squares(part, axis)) for part in parts]
    first, second = zip(*sums, strict=True)
    return torch.cat(first), torch.cat(second)


def _by_norm(values: Tensor, axis: int) -> Tensor:
    return torch.linalg.vector_norm(values, dim=axis).square()


def _by_squares(values: Tensor, axis: int) -> Tensor:
    return values.square().sum(dim=axis)


@dataclass(frozen=True)
class Ran:
    """A module that ran: the shapes of what went in and came out, whether it has parts, and where its channels are.

    `layout` is None where the module's kind does not tell.
    """

    name: str
    entered: tuple[int, ...] | None
    left: tuple[int, ...]
    parts: bool
    layout: str | None = None


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
        """Whether it is one of a row of modules: numbered, and made of parts."""
        return self.ran.parts and re.search(r"(^|[._])\d+$", self.name) is not None

    @property
    def is_tokens(self) -> bool:
        """Whether it is `(B, tokens, channels)`."""
        return len(self.ran.left) == 3 and self.layout == "channels_last"

    def tap(self) -> Tap:
        if self.layout == "vector":
            return Tap(self.name, self.layout, self.channels)
        if self.is_tokens:
            return Tap(self.name, self.layout, self.channels, "mean")
        return Tap(self.name, self.layout, 2 * self.channels)


def tensor_in(output: Any) -> Tensor | None:
    """The tensor in a module's output: itself, the first of a tuple, or the last hidden state of an output object."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    elif not isinstance(output, Tensor):
        output = getattr(output, "last_hidden_state", None)
    return output if isinstance(output, Tensor) and not output.is_nested else None


def fits(mask: Tensor, shape: Sequence[int]) -> bool:
    """Whether a mask `(B, T)` says which tokens of `(B, T, C)` count; a network may add padding of its own."""
    return len(shape) == 3 and mask.shape[0] == shape[0] and mask.shape[1] <= shape[1]


def layout_of(module: nn.Module) -> str | None:
    """Where a module has its channels, if its kind tells."""
    if isinstance(module, _FIRST):
        return "channels_first"
    return "channels_last" if type(module) in (nn.Linear, nn.LayerNorm) else None


def find_taps(ran: Sequence[Ran], inputs: Tensor | None) -> list[Tap]:
    """Which modules to tap, from the modules that ran on one batch, in the order in which they ended.

    Of a network that lowers its resolution in steps: the last block at each resolution, and further blocks while all
    taps together are few columns. Of one that does not, such as a transformer: the blocks at a quarter, half and three
    quarters of its depth. Of any other network: none. Modules that run more than once are left out: which of their
    outputs is meant?

    Args:
        ran: the modules that ran.
        inputs: the images or other signals that went in, if there are any.
    """
    times = Counter(module.name for module in ran)
    maps = [
        found
        for found in _maps(ran, inputs)
        if times[found.name] == 1 and not re.search(r"attn|attention", found.name, re.IGNORECASE)
    ]
    tokens = [found for found in maps if found.is_tokens and found.is_block and found.size > 1]
    maps = tokens if len(tokens) > 1 else [found for found in maps if not found.is_tokens]
    sizes = [found.size for found in maps if found.size > 1]
    if sizes and max(sizes) >= 2 * min(sizes):
        return _of_stages(maps)
    return _of_depths([found for found in maps if found.size > 1])


def named_taps(names: Sequence[str], ran: Sequence[Ran], inputs: Tensor | None, known: Sequence[str]) -> list[Tap]:
    """Taps at modules that the user names."""
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


def _of_stages(maps: Sequence[_Map]) -> list[Tap]:
    """The last block at each resolution, then further blocks while they are few columns."""
    sizes = sorted({found.size for found in maps if found.size > 1}, reverse=True)
    chosen: list[_Map] = []
    spare: list[_Map] = []
    for size, smaller in zip(sizes, [*sizes[1:], 1], strict=True):
        # What happens inside the block that lowers the resolution belongs to neither stage.
        crossing = [m.name for m in maps if m.size_before == size and m.size == smaller]
        here = [m for m in maps if m.size == size]
        settled = [m for m in here if not any(m.name.startswith(f"{name}.") for name in crossing)] or here
        end = settled[-1]
        rows = [m for m in settled if m.is_block and not f"{end.name}.".startswith(f"{m.name}.")]
        blocks = [m for m in rows if not any(m.name.startswith(f"{other.name}.") for other in rows)]
        if blocks and blocks[-1].name.startswith(f"{end.name}."):
            blocks = blocks[:-1]  # the last block of a stage is the stage's own output
        chosen.append(end)
        spare.extend(blocks)
    columns = sum(m.tap().columns for m in chosen)
    for block in spare:
        columns += block.tap().columns
        if columns <= MOST_COLUMNS:
            chosen.append(block)
    order = [m.name for m in maps]
    return [m.tap() for m in sorted(chosen, key=lambda m: order.index(m.name))]


def _of_depths(maps: Sequence[_Map]) -> list[Tap]:
    """Three depths of the longest row of blocks with equal outputs."""
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


def _maps(ran: Sequence[Ran], inputs: Tensor | None) -> list[_Map]:
    """Where the channels of each output are, and at how many positions.

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
    ratio = inputs.shape[2] / inputs.shape[3]
    first, last = (abs(a / b - ratio) for a, b in (shape[2:4], shape[1:3]))
    return "channels_last" if last < first else "channels_first"


def _positions(shape: tuple[int, ...], layout: str) -> int:
    if layout == "vector":
        return 1
    return math.prod(shape[2:] if layout == "channels_first" else shape[1:-1])
