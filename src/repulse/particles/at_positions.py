"""Heads at every position: outputs of a few rows at a time, of which only what all heads say together is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._finite import all_finite
from repulse.backbone.positions import FeatureMap, axis_weights, resize_axis
from repulse.errors import DataError, expected
from repulse.particles.heads import Heads
from repulse.prediction import DensePrediction, PositionPrediction, TokenPrediction

ELEMENTS = 2**20
"""Outputs of all heads that are held at once: 4 MB, and a few times that on the way."""


SMALLEST = torch.finfo(torch.float32).tiny
"""Probability below which no member gives a class any."""


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
    for images, begin, end in blocks(batch, heads.count * classes, found.size):
        log_probs = outputs_of(heads, found, images, begin, end).log_softmax(dim=2)  # (n, b, K, r, ...)
        member = log_probs.exp()
        probs[images, :, begin:end] = mean = member.mean(dim=0)
        log_probs = log_probs.nan_to_num_()
        entropies[images, begin:end] = -(member * log_probs).sum(dim=2).mean(dim=0)
        apart = log_probs.sub_(mean.clamp_min(SMALLEST).log_()).mul_(member).sum(dim=2).mean(dim=0)
        information[images, begin:end] = apart.clamp_(0.0, math.log(heads.count))
    if not all_finite(probs):
        raise DataError(expected("x", "finite", "NaN or infinite outputs at some positions"))
    if channels_last:
        return TokenPrediction(probs.movedim(1, -1), entropies, information, heads.count, found.mask)
    return DensePrediction(probs, entropies, information, heads.count, found.mask)


def combined_positions(heads: Heads, found: FeatureMap) -> Float[Tensor, "B K ..."]:
    """Return the logs of the mean class probabilities at every position; differentiable, all positions at once."""
    outputs = outputs_of(heads, found, slice(None), 0, found.size[0])
    return outputs.log_softmax(dim=2).logsumexp(dim=0) - math.log(heads.count)


def outputs_of(heads: Heads, found: FeatureMap, images: slice, begin: int, end: int) -> Float[Tensor, "n b K r ..."]:
    """Return the outputs of all heads for some images at rows `begin` to `end` of the output."""
    grid, size = found.grid, found.size
    first, last, weights = begin, end, None
    if found.resize:
        low, high, weight = (
            part[begin:end] for part in axis_weights(grid[0], size[0], found.resize, heads.bias.device)
        )
        first, last = int(low.min()), int(high.max()) + 1
        weights = low - first, high - first, weight
    rows = found.rows(images, first, last)
    flat = heads(rows.movedim(1, -1).flatten(0, -2))  # (n, b r ..., K)
    outputs = flat.view(heads.count, len(rows), *rows.shape[2:], -1).movedim(-1, 2).contiguous()
    if weights is None:
        return outputs
    for axis, (now, wanted) in reversed(list(enumerate(zip(grid[1:], size[1:], strict=True), start=4))):
        outputs = resize_axis(outputs, axis, axis_weights(now, wanted, found.resize, outputs.device))
    return resize_axis(outputs, 3, weights)  # last: rows are many by then, but are copied as a whole


def blocks(batch: int, outputs: int, size: tuple[int, ...]) -> Iterator[tuple[slice, int, int]]:
    """Iterate over blocks of whole images, or of rows of one image, that have at most `ELEMENTS` outputs."""
    row = outputs * math.prod(size[1:])
    several = max(ELEMENTS // max(row * size[0], 1), 1)
    rows = size[0] if several > 1 else min(max(ELEMENTS // max(row, 1), 1), size[0])
    for start in range(0, batch, several):
        for begin in range(0, size[0], rows):
            yield slice(start, min(start + several, batch)), begin, min(begin + rows, size[0])
