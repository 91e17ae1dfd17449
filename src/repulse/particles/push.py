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

from repulse.particles.kernels import evaluate, middle_ranks
from repulse.particles.rules import DIRECTIONS
from repulse.recipe import Recipe

BLOCK = 2**18
"""Differences between heads that are held at a time: 1 MB, which stays in the cache."""


@dataclass(frozen=True)
class Pushed:
    """Total repulsion, mean over sets, and the kernel it came from."""

    repulsion: float
    bandwidth: Float[Tensor, "*S"]
    k: Float[Tensor, "*S n n"]


class Push:
    """Turns outputs on repulsion samples into the gradient of their repulsion.

    Args:
        like: outputs, `(n, K, R)`, of the shape and type that will come.
        recipe: rule, kernel, bandwidth and comparison.
        on: the space in which outputs are compared.
        entered: whether outputs are already there in that space, in `x`.
    """

    def __init__(self, like: Float[Tensor, "n K R"], recipe: Recipe, on: str, *, entered: bool) -> None:
        self.recipe, self.on, self.entered = recipe, on, entered
        self.x, self.gradient = (like.new_empty(like.shape) for _ in range(2))
        written_out = (recipe.rule, recipe.kernel) == ("kde", "rbf")
        self.pairs = RbfPairs(self.x, self.gradient, recipe) if written_out else None

    def __call__(self, outputs: Float[Tensor, "n K R"], strength: float) -> Pushed:
        """Replace outputs by `strength` times the gradient of the repulsion."""
        if not self.entered:
            enter(outputs, self.on, self.x)
        pushed = self._by_rule(strength) if self.pairs is None else self.pairs.push(strength)
        pull_back(self.gradient, self.x, self.on, outputs)
        return pushed

    def _by_rule(self, strength: float) -> Pushed:
        recipe, x = self.recipe, self.x
        if recipe.compare == "jointly":
            pairs = evaluate(x.flatten(start_dim=1), recipe.kernel, recipe.bandwidth)
            direction, sets = DIRECTIONS[recipe.rule](pairs).view_as(x), 1
        else:
            pairs = evaluate(x.permute(2, 0, 1).contiguous(), recipe.kernel, recipe.bandwidth)
            direction, sets = DIRECTIONS[recipe.rule](pairs).permute(1, 2, 0), x.shape[2]
        torch.mul(direction, -strength / sets, out=self.gradient)
        return Pushed(float(pairs.k.sum(dim=-1).log().sum()) / sets, pairs.bandwidth, pairs.k)


class RbfPairs:
    """The kde rule with an rbf kernel between all pairs of heads, from buffer to buffer.

    Sets of particles are the last axis, of length S = 1 or R. What is as small as the kernel itself is done by numpy,
    whose calls cost a fraction of those of torch.
    """

    def __init__(self, x: Float[Tensor, "n K R"], gradient: Float[Tensor, "n K R"], recipe: Recipe) -> None:
        self.x, self.gradient, self.recipe = x, gradient, recipe
        n, _, samples = x.shape
        self.sets = 1 if recipe.compare == "jointly" else samples
        upper = np.triu_indices(n, k=1)
        pairs = len(upper[0])
        self.where = np.full((n, n), pairs)  # the last row is that of a particle with itself
        self.where[upper] = self.where.T[upper] = np.arange(pairs)
        self.values, self.h = x.new_ones(pairs + 1, self.sets), x.new_empty(self.sets)
        self.k, self.weights = (x.new_empty(n, n, self.sets) for _ in range(2))
        self.centre, self.centred = torch.empty_like(x[0]), torch.empty_like(x)
        self.rows, self.rows_centred, self.rows_gradient = (t.flatten(start_dim=1) for t in (x, self.centred, gradient))
        self.columns = list(zip(self.weights.unsqueeze(2).unbind(1), self.centred.unbind(0), strict=True))
        self.blocks = [] if self.sets == 1 else list(_blocks(x, self.values[:-1]))
        self.arrays = tuple(t.numpy() for t in (self.values, self.values[:-1], self.h, self.k, self.weights))
        self.diagonal = np.einsum("iis->is", self.weights.numpy())
        self.flat = x.numpy().reshape(-1, self.sets)
        # What each push tells, until the next one.
        self.told, self.joint = (self.h, self.k.permute(2, 0, 1)), self.weights[..., 0]

    def push(self, strength: float) -> Pushed:
        """Write `strength` times the gradient of the repulsion."""
        self._square_distances()
        values, distance, h, k, weights = self.arrays
        with np.errstate(all="ignore"):  # a fit that diverges is noticed by its loss
            felt = self._bandwidth(distance, h)
            felt *= 2 * strength / self.sets
            np.divide(distance, -h, out=distance)
            np.exp(distance, out=distance)
            np.take(values, self.where, axis=0, out=k, mode="clip")
            density = np.add.reduce(k, axis=1)
            np.multiply(k, (felt / density)[:, None], out=weights)
            self.diagonal -= felt
            repulsion = float(np.add.reduce(np.log(density), axis=None)) / self.sets
        self._weigh()
        return Pushed(repulsion, *self.told)

    def _bandwidth(self, distance: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write bandwidths h; returns 1 / h, or 0 where so many particles coincide that there is nothing to go by."""
        n, bandwidth, x = len(self.where), self.recipe.bandwidth, self.flat
        if not isinstance(bandwidth, str):
            out[:] = bandwidth * len(x) / n
            return 1 / out
        low, high = middle_ranks(n, include_diagonal=bandwidth == "median")
        ordered = np.sort(distance, axis=0)
        median = (ordered[low] + ordered[high]) / 2 if low >= 0 else ordered[high] / 2
        size = np.einsum("is,is->s", x, x) if self.sets > 1 else np.vdot(x, x)
        np.maximum(median / math.log(n + 1), 1e-8 * (1 + size / n), out=out)
        return (median > 0) / out

    def _square_distances(self) -> None:
        """Squared distances of all pairs by differences: |x|^2 - 2xy + |y|^2 loses all digits of close particles."""
        if self.sets == 1:
            np.square(torch.pdist(self.rows).numpy(), out=self.arrays[1][:, 0])
        for parts, differences, distance in self.blocks:
            for later, one, difference in parts:
                torch.sub(later, one, out=difference)
            torch.sum(differences.square_(), dim=1, out=distance)

    def _weigh(self) -> None:
        """`sum_j weights_ij x_j`; rows of the weights sum to zero, and centring keeps the digits of close particles."""
        torch.sum(self.x, 0, out=self.centre)
        torch.sub(self.x, self.centre, alpha=1 / len(self.x), out=self.centred)
        if self.sets == 1:
            torch.mm(self.joint, self.rows_centred, out=self.rows_gradient)
            return
        self.gradient.zero_()
        for weights, x in self.columns:
            self.gradient.addcmul_(weights, x)


Block = tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor, Tensor]


def _blocks(x: Float[Tensor, "n K R"], distance: Float[Tensor, "q R"]) -> Iterator[Block]:
    """All pairs in parts that share one buffer: what to subtract from what into where, all of it, and its distances."""
    n, size = len(x), x[0].numel()
    most = max(BLOCK // size, n - 1)
    buffer = x.new_empty(min(len(distance), most), *x.shape[1:])
    parts, held, begun = [], 0, 0
    for first in range(n - 1):
        rest = n - 1 - first
        if held + rest > most:
            yield parts, buffer[:held], distance[begun : begun + held]
            parts, held, begun = [], 0, begun + held
        parts.append((x[first + 1 :], x[first], buffer[held : held + rest]))
        held += rest
    yield parts, buffer[:held], distance[begun : begun + held]


def enter(outputs: Float[Tensor, "n K R"], on: str, out: Float[Tensor, "n K R"]) -> None:
    """Write outputs, as the kernel sees them, to `out`."""
    if on == "probabilities":
        torch.sub(outputs, outputs.amax(dim=1, keepdim=True), out=out)
        out.exp_()
        out *= out.sum(dim=1, keepdim=True).reciprocal_()
    elif on == "log_probabilities":
        torch.log_softmax(outputs, 1, out=out)
    elif on == "centred_logits":
        torch.sub(outputs, outputs.mean(dim=1, keepdim=True), out=out)
    else:
        out.copy_(outputs)


def pull_back(
    gradient: Float[Tensor, "n K R"], x: Float[Tensor, "n K R"], on: str, out: Float[Tensor, "n K R"]
) -> None:
    """Write to `out` the gradient in the outputs, from that in `x`, which `enter` made of them; overwrites both."""
    if on == "probabilities":
        gradient *= x
        torch.addcmul(gradient, x, gradient.sum(dim=1, keepdim=True), value=-1, out=out)
    elif on == "log_probabilities":
        torch.addcmul(gradient, x.exp_(), gradient.sum(dim=1, keepdim=True), value=-1, out=out)
    elif on == "centred_logits":
        torch.sub(gradient, gradient.mean(dim=1, keepdim=True), out=out)
    else:
        out.copy_(gradient)
