"""Heads at every position: outputs of a few rows at a time, of which only what all heads say together is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._finite import all_finite
from repulse.backbone.positions import AxisWeights, FeatureMap, axis_weights, interpolate
from repulse.errors import DataError, expected
from repulse.particles.heads import Heads
from repulse.prediction import ClassAnswer, DensePrediction, PositionPrediction, TokenPrediction, entropy
from repulse.prediction.classes import SMALLEST

ELEMENTS = 2**19
"""Outputs of all heads that are held at once: 2 MB, and a few times that on the way; what fits into a cache."""

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
    for images, begin, end in blocks(batch, heads.count * classes, found.size):
        part = slice(begin, end)
        _split_block(
            outputs_of(heads, found, images, begin, end, relative=True),
            probs[images, :, part],
            entropies[images, part],
            information[images, part],
        )
    if not all_finite(probs):
        raise DataError(expected("x", "finite", "NaN or infinite outputs at some positions"))
    if channels_last:
        return TokenPrediction(probs.movedim(1, -1), entropies, information, heads.count, found.mask)
    return DensePrediction(probs, entropies, information, heads.count, found.mask)


def _split_block(logits: Float[Tensor, "n b K ..."], probs: Tensor, entropies: Tensor, information: Tensor) -> None:
    """Write the mean probabilities, and both parts of their entropy, in as few passes over all heads as it takes.

    The entropy of a head is `log Z - sum_k e_k z_k / Z`, with `e = exp(z)` and `Z = sum_k e_k`.
    """
    exponentials = logits.exp()
    sums = exponentials.sum(dim=2, keepdim=True)
    weighted = logits.mul_(exponentials).sum(dim=2, keepdim=True)
    entropies.copy_((sums.log() - weighted / sums).mean(dim=0).squeeze(1).clamp_min_(0.0))
    torch.mean(exponentials.mul_(sums.reciprocal_()), dim=0, out=probs)
    total = probs.clamp_min(SMALLEST).log_().mul_(probs).sum(dim=1).neg_()
    information.copy_(total.sub_(entropies).clamp_(0.0, math.log(len(logits))))


def combined_positions(heads: Heads, found: FeatureMap) -> Float[Tensor, "B K ..."]:
    """Return the logs of the mean class probabilities at every position; differentiable, all positions at once."""
    outputs = outputs_of(heads, found, slice(None), 0, found.size[0])
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


def outputs_of(
    heads: Heads, found: FeatureMap, images: slice, begin: int, end: int, *, relative: bool = False
) -> Float[Tensor, "n b K r ..."]:
    """Return the outputs of all heads for some images at rows `begin` to `end` of the output.

    If they are to be `relative`, something is added to all outputs of a head at a position, so that the exponentials of
    all of them are finite, and those of some are not zero.
    """
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
    flat = flat - flat.amax(dim=2, keepdim=True) if relative else flat
    deep = relative and not bool(flat.amin() > LEAST)
    outputs = flat.view(heads.count, len(rows), *rows.shape[2:], -1).movedim(-1, 2).contiguous()
    if weights is not None:
        outputs = resize_rows(resize_others(outputs, size[1:], found.resize), weights)
    return outputs - outputs.amax(dim=2, keepdim=True) if deep else outputs


def resize_others(values: Float[Tensor, "n b K r ..."], size: tuple[int, ...], resize: str) -> Tensor:
    """Interpolate along all axes but that of rows, as the network does."""
    if tuple(values.shape[4:]) == size:
        return values
    return interpolate(values.flatten(0, 1), (values.shape[3], *size), resize).unflatten(0, values.shape[:2])


def resize_rows(values: Float[Tensor, "n b K r ..."], weights: AxisWeights) -> Tensor:
    """Interpolate along the rows, as a product with a matrix that has two numbers a row."""
    low, high, weight = weights
    matrix = values.new_zeros(len(low), values.shape[3])
    each = torch.arange(len(low), device=low.device)
    matrix[each, low] = 1 - weight.to(values)
    matrix[each, high] += weight.to(values)
    shape = (*values.shape[:3], len(low), *values.shape[4:])
    return torch.matmul(matrix, values.reshape(*values.shape[:4], -1)).view(shape)


def blocks(batch: int, outputs: int, size: tuple[int, ...]) -> Iterator[tuple[slice, int, int]]:
    """Iterate over blocks of whole images, or of rows of one image, that have at most `ELEMENTS` outputs."""
    row = outputs * math.prod(size[1:])
    several = max(ELEMENTS // max(row * size[0], 1), 1)
    rows = size[0] if several > 1 else min(max(ELEMENTS // max(row, 1), 1), size[0])
    for start in range(0, batch, several):
        for begin in range(0, size[0], rows):
            yield slice(start, min(start + several, batch)), begin, min(begin + rows, size[0])
