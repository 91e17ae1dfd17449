"""Repulsion between the outputs of heads in closed form, in place and without autograd.

Outputs come as `(n, K, R)`, samples last: every sum over classes is then a sum of contiguous rows, every kernel of a
pointwise comparison a lane of its own, and a joint comparison sees each head as one contiguous row.

The default, kde with an rbf kernel, is written out. With the row-stochastic `w_ij = k_ij / sum_j k_ij` the gradient of
`sum_i log sum_j k(x_i, sg x_j)` is

    g_i = (2 / h) (sum_j w_ij x_j - x_i)

Other rules and kernels ask `rules` for their direction, as autograd does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repulse.particles.kernels import evaluate, middle_ranks, rounding_noise
from repulse.particles.rules import DIRECTIONS
from repulse.recipe import Recipe

CACHED_ELEMENTS = 2**18
"""Maximum number of differences between heads held at once: 1 MB, which stays in the processor's cache."""


@dataclass(frozen=True)
class RepulsionResult:
    """Total repulsion, mean over sets, and the kernel it came from."""

    repulsion: float
    bandwidth: Float[Tensor, "*S"]
    k: Float[Tensor, "*S n n"]


class FunctionSpaceRepulsion:
    """Turns outputs on repulsion samples into the gradient of their repulsion.

    Args:
        outputs: the memory in which outputs will come, and the gradient is left.
        recipe: rule, kernel, bandwidth and comparison.
        on: the space in which outputs are compared.
        entered: whether outputs are already there in that space, in `x`.

    Attributes:
        x: outputs of all heads, in that space.
    """

    def __init__(self, outputs: Float[Tensor, "n K R"], recipe: Recipe, on: str, *, already_in_space: bool) -> None:
        self.outputs, self.recipe, self.on, self.already_in_space = outputs, recipe, on, already_in_space
        self.x = outputs.new_empty(outputs.shape)
        written_out = (recipe.rule, recipe.kernel) == ("kde", "rbf")
        self.pairs = RbfKdeRepulsion(self.x, outputs, recipe) if written_out else None

    def __call__(self, strength: float) -> RepulsionResult:
        """Replace outputs by `strength` times the gradient of the repulsion."""
        if not self.already_in_space:
            to_space(self.outputs, self.on, self.x)
        result = self._by_rule(strength) if self.pairs is None else self.pairs.compute(strength)
        pull_back_from_space(self.outputs, self.x, self.on)
        return result

    def _by_rule(self, strength: float) -> RepulsionResult:
        recipe, x = self.recipe, self.x
        if recipe.compare == "jointly":
            pairs = evaluate(x.flatten(start_dim=1), recipe.kernel, recipe.bandwidth)
            direction, sets = DIRECTIONS[recipe.rule](pairs).view_as(x), 1
        else:
            pairs = evaluate(x.permute(2, 0, 1).contiguous(), recipe.kernel, recipe.bandwidth)
            direction, sets = DIRECTIONS[recipe.rule](pairs).permute(1, 2, 0), x.shape[2]
        torch.mul(direction, -strength / sets, out=self.outputs)
        return RepulsionResult(float(pairs.k.sum(dim=-1).log().sum()) / sets, pairs.bandwidth, pairs.k)


class RbfKdeRepulsion:
    """The kde rule with an rbf kernel between all pairs of heads, from buffer to buffer.

    Sets of particles are the last axis, of length S = 1 or R. What is as small as the kernel itself is done by numpy,
    whose calls cost a fraction of those of torch.
    """

    def __init__(self, x: Float[Tensor, "n K R"], gradient: Float[Tensor, "n K R"], recipe: Recipe) -> None:
        self.x, self.recipe = x, recipe
        n, _, samples = x.shape
        self.sets = 1 if recipe.compare == "jointly" else samples
        upper = np.triu_indices(n, k=1)
        pairs = len(upper[0])
        self.where = np.full((n, n), pairs)  # the last row is that of a particle with itself
        self.where[upper] = self.where.T[upper] = np.arange(pairs)
        self.values, self.h = x.new_ones(pairs + 1, self.sets), x.new_empty(self.sets)
        self.k, self.weights = (x.new_empty(n, n, self.sets) for _ in range(2))
        self.parts = _parts(x, gradient, self.weights, self.values[:-1])
        self.arrays = tuple(t.numpy() for t in (self.values, self.values[:-1], self.h, self.k, self.weights))
        self.diagonal = np.einsum("iis->is", self.weights.numpy())
        self.flat = x.numpy().reshape(-1, self.sets)
        self.kernel_views = self.h, self.k.permute(2, 0, 1)  # what each push tells, until the next one

    def compute(self, strength: float) -> RepulsionResult:
        """Write `strength` times the gradient of the repulsion."""
        self._square_distances()
        values, distance, h, k, weights = self.arrays
        factor = self._bandwidth(distance, h)
        factor *= 2 * strength / self.sets
        np.divide(distance, -h, out=distance)
        np.exp(distance, out=distance)
        np.take(values, self.where, axis=0, out=k, mode="clip")
        density = np.add.reduce(k, axis=1)
        np.multiply(k, (factor / density)[:, None], out=weights)
        self.diagonal -= factor
        repulsion = float(np.add.reduce(np.log(density), axis=None)) / self.sets
        for part in self.parts:
            part.weigh()
        return RepulsionResult(repulsion, *self.kernel_views)

    def _bandwidth(self, distance: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write bandwidths h; return 1 / h, or 0 where the median distance of particles is zero."""
        n, bandwidth, x = len(self.where), self.recipe.bandwidth, self.flat
        if not isinstance(bandwidth, str):
            out[:] = bandwidth * len(x) / n
            return 1 / out
        low, high = middle_ranks(n, include_diagonal=bandwidth == "median")
        ordered = np.sort(distance, axis=0)
        median = (ordered[low] + ordered[high]) / 2 if low >= 0 else ordered[high] / 2
        size = np.einsum("is,is->s", x, x) if self.sets > 1 else np.vdot(x, x)
        np.maximum(median / math.log(n + 1), 1e-8 * (1 + size / n), out=out)
        return (median > rounding_noise(self.x.dtype) * size / n) / out

    def _square_distances(self) -> None:
        """Compute squared distances by differences: |x|^2 - 2xy + |y|^2 loses all digits of close particles."""
        if self.sets == 1:
            np.square(torch.pdist(self.x.flatten(start_dim=1)).numpy(), out=self.arrays[1][:, 0])
            return
        for i, part in enumerate(self.parts):
            part.square_distances(add=i > 0)


class ClassGroup:
    """Some classes of all heads, with memory for what is computed of them at once."""

    def __init__(
        self,
        x: Float[Tensor, "n k R"],
        gradient: Float[Tensor, "n k R"],
        weights: Float[Tensor, "n n S"],
        distance: Float[Tensor, "q S"],
        memory: Float[Tensor, " room"],
    ) -> None:
        self.x, self.gradient, self.joint = x, gradient, weights[..., 0]
        self.centre, self.centred = torch.empty_like(x[0]), memory[: x.numel()].view(x.shape)
        self.rows = self.centred.flatten(start_dim=1)
        self.product = memory[x.numel() : x.numel() + gradient.numel()].view(gradient.shape)
        self.product_rows = self.product.flatten(start_dim=1)
        self.columns = list(zip(weights.unsqueeze(2).unbind(1), self.centred.unbind(0), strict=True))
        self.blocks = list(_blocks(x, distance, memory)) if weights.shape[2] > 1 else []

    def square_distances(self, *, add: bool) -> None:
        """Write, or add, the part of these classes to the squared distances of all pairs, in every set."""
        for pairs, differences, distance in self.blocks:
            for later, one, difference in pairs:
                torch.sub(later, one, out=difference)
            if add:
                distance.add_(differences.square_().sum(dim=1))
            else:
                torch.sum(differences.square_(), dim=1, out=distance)

    def weigh(self) -> None:
        """Compute `sum_j weights_ij x_j`; rows of weights sum to zero, and centring keeps digits of close particles."""
        torch.sum(self.x, 0, out=self.centre)
        torch.sub(self.x, self.centre, alpha=1 / len(self.x), out=self.centred)
        if not self.blocks:
            torch.mm(self.joint, self.rows, out=self.product_rows)
            self.gradient.copy_(self.product)
            return
        torch.mul(*self.columns[0], out=self.gradient)
        for weights, x in self.columns[1:]:
            self.gradient.addcmul_(weights, x)


def _parts(
    x: Float[Tensor, "n K R"],
    gradient: Float[Tensor, "n K R"],
    weights: Float[Tensor, "n n S"],
    distance: Float[Tensor, "q S"],
) -> list[ClassGroup]:
    """Split all classes into groups, several if there are many."""
    n, classes, samples = x.shape
    some = min(max(CACHED_ELEMENTS // (n * samples), 1), classes)
    differences = min(len(distance) * some * samples, max(CACHED_ELEMENTS, (n - 1) * some * samples))
    memory = x.new_empty(max(differences, (n + len(gradient)) * some * samples))
    pieces = zip(x.split(some, dim=1), gradient.split(some, dim=1), strict=True)
    return [ClassGroup(*piece, weights, distance, memory) for piece in pieces]


PairBlock = tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor, Tensor]


def _blocks(
    x: Float[Tensor, "n k R"], distance: Float[Tensor, "q R"], memory: Float[Tensor, " room"]
) -> Iterator[PairBlock]:
    """Iterate over blocks of pairs: what to subtract from what into where, all of it, and its distances."""
    n, size = len(x), x[0].numel()
    most = max(CACHED_ELEMENTS // size, n - 1)
    buffer = memory[: min(len(distance), most) * size].view(-1, *x.shape[1:])
    pairs, held, begun = [], 0, 0
    for first in range(n - 1):
        rest = n - 1 - first
        if held + rest > most:
            yield pairs, buffer[:held], distance[begun : begun + held]
            pairs, held, begun = [], 0, begun + held
        pairs.append((x[first + 1 :], x[first], buffer[held : held + rest]))
        held += rest
    yield pairs, buffer[:held], distance[begun : begun + held]


def to_space(outputs: Float[Tensor, "n K R"], on: str, out: Float[Tensor, "n K R"]) -> None:
    """Write outputs, as the kernel sees them, to `out`."""
    if on == "probabilities":
        torch.sub(outputs, outputs.amax(dim=1, keepdim=True), out=out)
        out.exp_()
        out *= out.sum(dim=1, keepdim=True).reciprocal_()
    elif on == "label_probabilities":
        torch.sigmoid(outputs, out=out)
    elif on == "log_probabilities":
        torch.log_softmax(outputs, 1, out=out)
    elif on == "centred_logits":
        torch.sub(outputs, outputs.mean(dim=1, keepdim=True), out=out)
    else:
        out.copy_(outputs)


def pull_back_from_space(gradient: Float[Tensor, "n K R"], x: Float[Tensor, "n K R"], on: str) -> None:
    """Replace the gradient in `x`, which `to_space` made of outputs, by that in these outputs; may overwrite `x`."""
    if on == "probabilities":
        gradient *= x
        gradient.addcmul_(x, gradient.sum(dim=1, keepdim=True), value=-1)
    elif on == "label_probabilities":
        gradient *= x.mul(1 - x)
    elif on == "log_probabilities":
        gradient.addcmul_(x.exp_(), gradient.sum(dim=1, keepdim=True), value=-1)
    elif on == "centred_logits":
        gradient -= gradient.mean(dim=1, keepdim=True)
