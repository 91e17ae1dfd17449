"""Features at every position: pixels of an image, tokens of a text, steps of a signal, voxels of a volume.

A last layer that is applied at every position is a matrix product at each of them. Where the network interpolates its
outputs afterwards, the outputs of heads are interpolated in the same way, before the softmax. Interpolation goes axis
by axis, so that a few rows of the output can be made from a few rows of features, and nothing is ever held at full
resolution for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

RESIZES = ("nearest", "linear", "linear_aligned")
"""Interpolations that are known: nearest, and linear with and without `align_corners`."""

Shape = tuple[Any, ...]
"""Numbers of positions along each axis; symbols while an export is traced."""

AxisWeights = tuple[Tensor, Tensor, Tensor]
"""For each position along an axis of the output, two positions of the input, and the weight of the second."""


def axis_weights(size: int, wanted: int, resize: str, device: torch.device) -> AxisWeights:
    """Return what each of `wanted` positions is made of, as `torch.nn.functional.interpolate` does."""
    at = torch.arange(wanted, device=device, dtype=torch.float64)
    if resize == "nearest":
        low = (at * size / wanted).floor().long()
        return low, low, torch.zeros_like(at, dtype=torch.float32)
    if resize == "linear_aligned":
        where = at * ((size - 1) / max(wanted - 1, 1))
    else:
        where = ((at + 0.5) * (size / wanted) - 0.5).clamp_min(0)
    low = where.floor().long().clamp_max(size - 1)
    return low, (low + 1).clamp_max(size - 1), (where - low).float()


def resize_axis(values: Tensor, axis: int, weights: AxisWeights) -> Tensor:
    """Interpolate along one axis."""
    low, high, weight = weights
    first = values.index_select(axis, low)
    if not bool(weight.any()):
        return first
    shape = [1] * values.ndim
    shape[axis] = -1
    return first.lerp_(values.index_select(axis, high), weight.to(values).view(shape))


def resized(values: Float[Tensor, "B C ..."], size: Sequence[int], resize: str) -> Float[Tensor, "B C ..."]:
    """Interpolate all positions to another size."""
    for axis, wanted in enumerate(size, start=2):
        if values.shape[axis] != wanted:
            values = resize_axis(values, axis, axis_weights(values.shape[axis], wanted, resize, values.device))
    return values


def interpolate(values: Float[Tensor, "B C ..."], size: Sequence[Any], resize: str = "linear") -> Tensor:
    """Interpolate all positions by the function of torch that networks call."""
    mode = "nearest" if resize == "nearest" else ("linear", "bilinear", "trilinear")[len(size) - 1]
    how = {} if mode == "nearest" else {"align_corners": resize == "linear_aligned"}
    return F.interpolate(values, tuple(size), mode=mode, **how)


def at_size(values: Float[Tensor, "B C ..."], size: Sequence[int]) -> Float[Tensor, "B C ..."]:
    """Bring the output of an earlier stage to other positions: means where it is finer, interpolated where coarser."""
    finer = [max(now, wanted) == now for now, wanted in zip(values.shape[2:], size, strict=True)]
    if all(finer) and tuple(values.shape[2:]) != tuple(size):
        return averaged(values, size)
    return resized(values, size, "linear")


def averaged(values: Float[Tensor, "B C ..."], size: Sequence[int]) -> Float[Tensor, "B C ..."]:
    """Return means over the positions that fall into each of fewer ones."""
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(size) - 1]
    return pool(values, list(size))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Features of a batch at every position, as the last layer saw them.

    Attributes:
        features: inputs of the last layer, `(B, d, ...)`, at its own resolution.
        taps: outputs of earlier stages `(B, c, ...)`, at that resolution or a coarser one.
        size: positions of the network's output.
        resize: how the network interpolates; empty if it does not.
        mask: which positions count, `(B, ...)` in the size of the output; None for all.
    """

    features: Float[Tensor, "B d ..."]
    taps: tuple[Tensor, ...]
    size: Shape
    resize: str
    mask: Tensor | None = None

    @property
    def grid(self) -> Shape:
        """Positions of the features."""
        return tuple(self.features.shape[2:])

    @property
    def columns(self) -> int:
        """Number of features at a position."""
        return self.features.shape[1] + sum(tap.shape[1] for tap in self.taps)

    def rows(self, images: slice, begin: int, end: int) -> Float[Tensor, "b d r ..."]:
        """Return all features of some images at the rows from `begin` to `end` of the grid."""
        parts = [self.features[images, :, begin:end].float()]
        for tap in self.taps:
            values = tap[images].float()
            for axis, wanted in enumerate(self.grid, start=2):
                if values.shape[axis] == wanted:
                    values = values[:, :, begin:end] if axis == 2 else values
                    continue
                weights = axis_weights(values.shape[axis], wanted, "linear", values.device)
                if axis == 2:
                    weights = tuple(part[begin:end] for part in weights)  # pyright: ignore[reportAssignmentType]
                values = resize_axis(values, axis, weights)  # pyright: ignore[reportArgumentType]
            parts.append(values)
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def whole(self) -> Float[Tensor, "B d ..."]:
        """Return all features at once, with operations that a compiler can trace."""
        taps = (tap if tap.shape[2:] == self.features.shape[2:] else interpolate(tap, self.grid) for tap in self.taps)
        return torch.cat([self.features, *taps], dim=1).float()

    def all_rows(self) -> Float[Tensor, "P d"]:
        """Return the features of all images at all positions of the grid, one after the other."""
        return self.rows(slice(None), 0, self.grid[0]).flatten(2).transpose(1, 2).flatten(0, 1)

    def at(self, image: int, positions: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        """Return the features of an image at positions of the output, interpolated as the network interpolates."""
        whole = self.rows(slice(image, image + 1), 0, self.grid[0])[0]
        return interpolated(whole, positions, self.size, self.resize)


def interpolated(
    values: Float[Tensor, "d ..."], positions: Int[Tensor, " m"], size: Sequence[int], resize: str
) -> Float[Tensor, "m d"]:
    """Return values at some positions, counted in the `size` that they would be interpolated to."""
    grid = tuple(values.shape[1:])
    if not resize or grid == tuple(size):
        return values.flatten(1)[:, positions].T
    corners = [(torch.zeros_like(positions), torch.ones(len(positions), device=values.device))]
    rest, strides = positions, []
    for wanted in reversed(size):
        strides.append(rest % wanted)
        rest = rest // wanted
    for at, now, wanted in zip(reversed(strides), grid, size, strict=True):
        low, high, weight = (part[at] for part in axis_weights(now, wanted, resize, values.device))
        corners = [
            (index * now + side, share * part)
            for index, share in corners
            for side, part in ((low, 1 - weight), (high, weight))
        ]
    flat = values.flatten(1)
    return torch.stack([flat[:, index] * share for index, share in corners]).sum(dim=0).T
