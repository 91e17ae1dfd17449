"""Heads at every position: outputs of a few rows at a time, of which only what all heads say together is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._finite import all_finite
from repulse.backbone.positions import AxisWeights, FeatureMap, Shape, axis_weights, interpolate
from repulse.errors import DataError, expected
from repulse.particles.heads import Heads
from repulse.prediction import ClassAnswer, DensePrediction, PositionPrediction, TokenPrediction, entropy
from repulse.prediction.classes import SMALLEST

ELEMENTS = 2**18
"""Outputs of all heads that are held at once: 1 MB, and a few times that on the way; what fits into a cache."""

WIDE = 2**19
"""Outputs of all heads at the rows of the features that are held at once, as wide as the network's output is."""

LEAST = -80.0
"""Logit, relative to the largest, whose exponential float32 still holds."""


def predict_positions(heads: Heads, found: FeatureMap, *, channels_last: bool) -> PositionPrediction:
    """Predict at every position, a few rows of a few inputs at a time.

    Args:
        heads: of a classification, on the features of one position.
        found: features of a batch.
        channels_last: whether the network has its classes last, as for tokens.
    """
    batch, classes = len(found.features), heads.task.outputs
    like = heads.biases[0]
    probs = like.new_empty(batch, classes, *found.size)
    entropies, information = (like.new_empty(batch, *found.size) for _ in range(2))
    room = Room(like)
    for images, begin, end, logits in output_blocks(heads, found, room):
        part = slice(begin, end)
        _split_block(logits, probs[images, :, part], entropies[images, part], information[images, part], room)
    if not all_finite(probs):
        raise DataError(expected("x", "finite", "NaN or infinite outputs at some positions"))
    if channels_last:
        return TokenPrediction(probs.movedim(1, -1), entropies, information, heads.count, found.mask)
    return DensePrediction(probs, entropies, information, heads.count, found.mask)


class Room:
    """Memory that every block uses again: to get fresh memory takes longer than to compute what goes into it."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.parts = like, {}

    def of(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor of a shape, with no matter what in it, in the memory of this name."""
        size = math.prod(shape)
        if name not in self.parts or self.parts[name].numel() < size:
            self.parts[name] = self.like.new_empty(size)
        return self.parts[name][:size].view(*shape)


def _split_block(
    logits: Float[Tensor, "n b K ..."], probs: Tensor, entropies: Tensor, information: Tensor, room: Room
) -> None:
    """Write the mean probabilities, and both parts of their entropy, in as few passes over all heads as it takes.

    The entropy of a head is `log Z - sum_k e_k z_k / Z`, with `e = exp(z)` and `Z = sum_k e_k`.
    """
    exponentials = torch.exp(logits, out=room.of("exponentials", logits.shape))
    sums = exponentials.sum(dim=2, keepdim=True)
    weighted = logits.mul_(exponentials).sum(dim=2, keepdim=True)
    scale = sums.reciprocal()
    entropies.copy_(sums.log_().sub_(weighted.mul_(scale)).mean(dim=0).squeeze(1).clamp_min_(0.0))
    torch.mean(exponentials.mul_(scale), dim=0, out=probs)
    total = probs.clamp_min(SMALLEST).log_().mul_(probs).sum(dim=1).neg_()
    information.copy_(total.sub_(entropies).clamp_(0.0, math.log(len(logits))))


def combined_positions(heads: Heads, found: FeatureMap) -> Float[Tensor, "B K ..."]:
    """Return the logs of the mean class probabilities at every position; differentiable, all positions at once."""
    outputs = outputs_at(heads, found, slice(None), 0, found.grid[0])
    if found.resize:
        outputs = interpolate(outputs.flatten(0, 1), found.size, found.resize).unflatten(0, outputs.shape[:2])
    return outputs.log_softmax(dim=2).logsumexp(dim=0) - math.log(heads.count)


def answer_at_positions(heads: Heads, found: FeatureMap, *, channels_last: bool) -> ClassAnswer:
    """Predict at every position without looking at values, for a compiler: one head after the other, all positions."""
    features = found.whole()
    flat = heads(features.movedim(1, -1).flatten(0, -2))
    probs, aleatoric = torch.zeros(()).to(flat), torch.zeros(()).to(flat)
    for one in flat:
        outputs = one.unflatten(0, (features.shape[0], *features.shape[2:])).movedim(-1, 1)
        log_probs = (interpolate(outputs, found.size, found.resize) if found.resize else outputs).log_softmax(dim=1)
        probs = probs + log_probs.exp() / heads.count
        aleatoric = aleatoric + entropy(log_probs.movedim(1, -1)) / heads.count
    total = entropy(probs.clamp_min(SMALLEST).log().movedim(1, -1))
    epistemic = (total - aleatoric).clamp(0.0, math.log(heads.count))
    probs = probs.movedim(1, -1) if channels_last else probs
    return ClassAnswer(probs, aleatoric, epistemic, aleatoric + epistemic)


def output_blocks(
    heads: Heads, found: FeatureMap, room: Room
) -> Iterator[tuple[slice, int, int, Float[Tensor, "n b K r ..."]]]:
    """Iterate over blocks of the output, with the outputs of all heads there: of whole images, or rows of one image.

    Something is added to all outputs of a head at a position, so that the exponentials of all of them are finite, and
    those of some are not zero. Outputs are made at the rows of the features, and are interpolated, which is linear:
    along all other axes for many rows at once, along the rows for those of a block.
    """
    grid, size = found.grid, found.size
    ways = axis_weights(grid[0], size[0], found.resize, heads.bias.device) if found.resize else None
    outputs = heads.count * heads.task.outputs * math.prod(size[1:])  # of a row
    finer = size[0] / grid[0] if ways else 1
    for images, first, last in blocks(len(found.features), outputs, size[0], WIDE * finer):
        if ways is None:
            low, rows = first, outputs_at(heads, found, images, first, last, relative=True)
        else:
            low, high = int(ways[0][first:last].min()), int(ways[1][first:last].max()) + 1
            rows = outputs_at(heads, found, images, low, high, relative=True)
            rows = resize_others(rows, size[1:], found.resize, room)
        deep = not bool(rows.amin() > LEAST)
        many = (images.stop - images.start) * outputs
        for _, begin, end in blocks(1, many, last - first, ELEMENTS):
            part = slice(first + begin, first + end)
            if ways is None:
                block = rows[:, :, :, begin:end].contiguous()
            else:
                block = resize_rows(rows, (ways[0][part] - low, ways[1][part] - low, ways[2][part]), room)
            yield images, part.start, part.stop, block - block.amax(dim=2, keepdim=True) if deep else block


def outputs_at(
    heads: Heads, found: FeatureMap, images: slice, begin: int, end: int, *, relative: bool = False
) -> Float[Tensor, "n b K r ..."]:
    """Return the outputs of all heads for some images at rows `begin` to `end` of the features.

    If they are to be `relative`, the largest of a head at a position is zero.
    """
    rows = found.rows(images, begin, end)
    flat = heads(rows.movedim(1, -1).flatten(0, -2))  # (n, b r ..., K)
    flat = flat - flat.amax(dim=2, keepdim=True) if relative else flat
    return flat.view(heads.count, len(rows), *rows.shape[2:], -1).movedim(-1, 2).contiguous()


def resize_others(values: Float[Tensor, "n b K r ..."], size: Shape, resize: str, room: Room) -> Tensor:
    """Interpolate along all axes but that of rows, as the network does."""
    if tuple(values.shape[4:]) == size:
        return values
    if len(size) > 1:
        return interpolate(values.flatten(0, 1), (values.shape[3], *size), resize).unflatten(0, values.shape[:2])
    weights = axis_weights(values.shape[4], math.prod(size), resize, values.device)
    matrix = resize_matrix(values.shape[4], weights).to(values)
    return torch.matmul(values, matrix.T, out=room.of("rows", (*values.shape[:4], *size)))


def resize_rows(values: Float[Tensor, "n b K r ..."], weights: AxisWeights, room: Room) -> Tensor:
    """Interpolate along the rows."""
    low, high, weight = weights
    first, last = int(low.min()), int(high.max()) + 1
    matrix = resize_matrix(last - first, (low - first, high - first, weight)).to(values)
    flat = values[:, :, :, first:last].reshape(*values.shape[:3], last - first, -1)
    whole = torch.matmul(matrix, flat, out=room.of("block", (*values.shape[:3], len(low), flat.shape[4])))
    return whole.view(*values.shape[:3], len(low), *values.shape[4:])


def resize_matrix(size: int, weights: AxisWeights) -> Float[Tensor, "wanted size"]:
    """Return the matrix, with two numbers a row, whose product with values along an axis interpolates them."""
    low, high, weight = weights
    matrix = torch.zeros(len(low), size, device=low.device)
    each = torch.arange(len(low), device=low.device)
    matrix[each, low] = 1 - weight
    matrix[each, high] += weight
    return matrix


def blocks(batch: int, outputs: int, rows: int, most: float) -> Iterator[tuple[slice, int, int]]:
    """Iterate over blocks of whole images, or of rows of one image, that have at most so many outputs, or one row.

    Args:
        batch: number of images.
        outputs: number of outputs of one row.
        rows: number of rows of an image.
        most: number of outputs of a block.
    """
    several = max(int(most / max(outputs * rows, 1)), 1)
    few = rows if several > 1 else min(max(int(most / max(outputs, 1)), 1), rows)
    for start in range(0, batch, several):
        for begin in range(0, rows, few):
            yield slice(start, min(start + several, batch)), begin, min(begin + few, rows)
