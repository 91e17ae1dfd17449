"""Taps: what the last layer has forgotten, read off earlier stages of the same pass.

A tap is the mean and the standard deviation of every channel of a module's output over its pixels, or its mean over the
tokens that are no padding, or the vector itself. Where the penultimate features of two inputs have collapsed onto each
other, statistics of earlier stages may still tell them apart, and heads that are made to disagree will use them.
`repulse.backbone.tap_choice` says which modules are tapped.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.backbone.batches import tensors_of
from repulse.errors import BackboneError, expected

INPUTS = "inputs"
"""What `Tap.reads` says where a tap reads the inputs of the network themselves; no module is hooked for it."""

POSITIONS = "positions"
"""What `Tap.reads` says where a tap reads every position by itself."""

FEW_BYTES = 2**20
"""Bytes of a stage that are read at a time: what a core keeps at hand."""


class Sums(NamedTuple):
    """What mean and deviation of each column are made of: sums, sums of squares, and of how many."""

    first: Float[Tensor, "B c"]
    squares: Float[Tensor, "B c"]
    positions: int | Float[Tensor, "B 1"]


Read = Tensor | Sums
"""What a tap has read: columns, or sums of which columns are made."""


@dataclass(frozen=True)
class Tap:
    """A module whose output is tapped, and where that output has its channels.

    Attributes:
        name: of the module.
        layout: "channels_first" `(B, C, ...)`, "channels_last" `(B, ..., C)`, or "vector" `(B, C)`.
        columns: how many numbers it gives.
        reads: "both" mean and deviation, or one of them: the "mean" of tokens, and the "deviation" of a stage whose
            means are the penultimate features; or the "inputs" of the network, as one vector; or all "positions", for
            networks with an output at every one.
        group: number of neighbouring channels that share a column. A group has the mean of its channels' means, and
            as its deviation that of all its values: the statistics of group normalisation.
    """

    name: str
    layout: str
    columns: int
    reads: str = "both"
    group: int = 1

    def read(self, output: Any, mask: Tensor | None) -> Read:
        """Return what a pass leaves here: the columns themselves, or sums, of which `finished` makes columns.

        The sums are those of every channel, and of its squares, over all positions, or those that `mask` allows.
        """
        values = tensor_in(output)
        if values is None:
            raise BackboneError(expected(f"the output of `{self.name}`", "a tensor", type(output).__name__))
        short = values.dtype in (torch.float16, torch.bfloat16) or not values.is_floating_point()
        values = values.float() if short else values  # sums overflow
        if values.requires_grad or self.layout == "vector":
            values = values.clone()  # what comes next may write into it
        if self.layout == "vector":
            flat = _grouped(values.flatten(start_dim=1), self.group)
            if flat.shape[1] != self.columns:
                got = f"{flat.shape[1]}; inputs must be as large as those of the first batch"
                # As the network itself fails: who knows the name of the batch turns it into an error that says it.
                raise ValueError(expected(f"numbers at `{self.name}`", str(self.columns), got))
            return flat
        channels_first = self.layout == "channels_first"
        flat, axis = (values.flatten(2), 2) if channels_first else (values.flatten(1, -2), 1)
        count = flat.shape[axis]
        if mask is not None and not channels_first and fits(mask, flat.shape):
            weight = torch.nn.functional.pad(mask.to(flat), (0, flat.shape[1] - mask.shape[1])).unsqueeze(2)
            flat, count = flat * weight, weight.sum(dim=1).clamp_min(1)
        if self.reads == "mean":
            return _grouped(flat.sum(dim=axis) / count, self.group)
        first, second = _sums(flat, axis)
        return Sums(_grouped(first, self.group), _grouped(second, self.group), count)

    def at_positions(self) -> Tap:
        """Return the tap that reads the channels themselves at every position."""
        channels = self.columns // (2 if self.reads == "both" else 1)
        return Tap(self.name, self.layout, channels, POSITIONS)

    def map(self, output: Any) -> Float[Tensor, "B c ..."]:
        """Return the channels at every position, channels first."""
        values = tensor_in(output)
        if values is None:
            raise BackboneError(expected(f"the output of `{self.name}`", "a tensor", type(output).__name__))
        values = values.float() if self.layout == "channels_first" else values.float().movedim(-1, 1)
        if self.group == 1:
            return values.clone()  # what comes next may write into it
        more = -values.shape[1] % self.group
        padded = torch.cat([values, values[:, -1:].expand(-1, more, *values.shape[2:])], dim=1) if more else values
        return padded.unflatten(1, (-1, self.group)).mean(dim=2)

    def grouped(self, channels: int) -> Tap:
        """Return the same tap, of a whole one, with this many neighbouring channels to a column."""
        statistics = 2 if self.reads == "both" and self.layout != "vector" else 1
        whole = self.columns // statistics
        return Tap(self.name, self.layout, statistics * -(-whole // channels), self.reads, channels)


def finished(taps: Sequence[Tap], read: Sequence[Read]) -> list[Float[Tensor, "B c"]]:
    """Return the columns of each tap: mean and standard deviation, for all taps at once, or what was read."""
    sums = [value for value in read if isinstance(value, Sums)]
    if not sums:
        return list(read)  # pyright: ignore[reportReturnType]
    means, squares = _means(sums)
    # From squares, which is many times faster than a variance, and as good down to a thousandth of the mean.
    deviations = torch.maximum(squares - means.square(), 1e-6 * squares + 1e-12).sqrt()
    widths = [part.first.shape[1] for part in sums]
    apart = zip(means.split(widths, dim=1), deviations.split(widths, dim=1), strict=True)
    found = []
    for tap, value in zip(taps, read, strict=True):
        if isinstance(value, Sums):
            mean, deviation = next(apart)
            found += [mean, deviation] if tap.reads == "both" else [deviation]
        else:
            found.append(value)
    return found


def _means(sums: Sequence[Sums]) -> tuple[Float[Tensor, "B c"], Float[Tensor, "B c"]]:
    """Return the means and the mean squares of all columns."""
    if torch.compiler.is_compiling() or not all(isinstance(part.positions, int) for part in sums):
        parts = [(part.first / part.positions, part.squares / part.positions) for part in sums]
        first, second = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
        return first, second
    first, second, positions = zip(*sums, strict=True)
    columns = tuple((count, part.shape[1]) for count, part in zip(positions, first, strict=True))
    counts = _counts(columns, first[0].dtype, first[0].device)
    return torch.cat(first, dim=1) / counts, torch.cat(second, dim=1) / counts


@functools.lru_cache(maxsize=64)
def _counts(columns: tuple[tuple[int, int], ...], dtype: torch.dtype, device: torch.device) -> Float[Tensor, " c"]:
    """Return the counts of neighbouring columns, kept from pass to pass: division by a number is slow for few rows."""
    with torch.inference_mode(False):  # what is made in that mode is of no use outside of it
        return torch.cat([torch.full((width,), float(count)) for count, width in columns]).to(device, dtype)


def _grouped(values: Float[Tensor, "B c"], channels: int) -> Float[Tensor, "B g"]:
    """Average neighbouring columns; the last group may be smaller."""
    if channels == 1:
        return values
    return nn.functional.avg_pool1d(values.unsqueeze(1), channels, ceil_mode=True).squeeze(1)


def _sums(values: Float[Tensor, "B a b"], axis: int) -> tuple[Float[Tensor, "B c"], Float[Tensor, "B c"]]:
    """Return sums along an axis and sums of squares, a few samples at a time, which stay in the processor's cache."""
    if torch.compiler.is_compiling():  # sizes are symbols, and a compiler cuts loops for itself
        return values.sum(dim=axis), _by_squares(values, axis)
    # A norm needs no memory, but is slow along an axis that is not the last in memory.
    squares = _by_norm if values.stride(axis) == 1 else _by_squares
    size, bytes_ = values.shape[0], values.nbytes
    if bytes_ <= FEW_BYTES or not values.is_cpu:
        return values.sum(dim=axis), squares(values, axis)
    few = max(FEW_BYTES // (bytes_ // size), 1)
    sums = [(part.sum(dim=axis), squares(part, axis)) for part in values.split(few)]
    first, second = zip(*sums, strict=True)
    return torch.cat(first), torch.cat(second)


def _by_norm(values: Tensor, axis: int) -> Tensor:
    return torch.linalg.vector_norm(values, dim=axis).square()


def _by_squares(values: Tensor, axis: int) -> Tensor:
    return values.square().sum(dim=axis)


def tensor_in(output: Any) -> Tensor | None:
    """Return the tensor in a module's output: itself, the first of a tuple, or the last hidden state of an object."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    elif not isinstance(output, Tensor):
        output = getattr(output, "last_hidden_state", None)
    return output if isinstance(output, Tensor) and not output.is_nested else None


def fits(mask: Tensor, shape: torch.Size | Sequence[int]) -> bool:
    """Check whether a mask `(B, T)` says which tokens of `(B, T, C)` count; a network may add padding of its own."""
    return bool(len(shape) == 3 and mask.shape[0] == shape[0] and mask.shape[1] <= shape[1])


def signal_in(inputs: Any) -> Tensor | None:
    """Return the images, rows or other signals among a network's inputs; token ids and masks are none."""
    for name, value in tensors_of(inputs):
        numbers = value.is_floating_point() or value.dtype == torch.uint8 or value.ndim > 3
        if numbers and value.ndim > 1 and "mask" not in name:
            return value
    return None
