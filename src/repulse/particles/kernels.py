"""Kernels between particles, their bandwidths, and the sums of kernel gradients that every update rule is made of.

With `D_ij = |x_i - x_j|^2` and `a_ij = |x_i - x_j|_1`:

    rbf      k = exp(-D / h)              grad_i k = -(2/h) k (x_i - x_j)
    imq      k = (1 + D / h)^(-1/2)       grad_i k = -(1/h) k^3 (x_i - x_j)
    l2       k = exp(-sqrt(D) / h)        grad_i k = -(1/h) k (x_i - x_j) / sqrt(D)
    laplace  k = exp(-a / h)              grad_i k = -(1/h) k sign(x_i - x_j)

Nothing here needs autograd: a rule asks for `sum_j w_ij grad_i k_ij` and gets it in closed form. Leading axes, written
`*S` in the shapes, are independent sets of particles: one for each sample when outputs are compared pointwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """A kernel evaluated between all pairs of n particles.

    Attributes:
        x: the particles, one per row.
        k: kernel values, ones on the diagonal.
        bandwidth: the bandwidth that was used.
        slope: `grad_i k_ij = -slope_ij * (x_i - x_j)`, or of its sign if `signed`.
        signed: whether the gradient depends on the difference through its sign only.
    """

    x: Float[Tensor, "*S n p"]
    k: Float[Tensor, "*S n n"]
    bandwidth: Float[Tensor, "*S"]
    slope: Float[Tensor, "*S n n"]
    signed: bool

    @property
    def count(self) -> int:
        """Number of particles."""
        return self.k.shape[-1]

    def gradient(self, weights: Float[Tensor, "*S #n #n"]) -> Float[Tensor, "*S n p"]:
        """Compute `sum_j w_ij grad_i k_ij` for every i."""
        weighted = weights * self.slope
        if not self.signed:
            # sum_j w_ij (x_i - x_j) as one product; centring first keeps the digits when particles lie close together.
            centred = self.x - self.x.mean(dim=-2, keepdim=True)
            return weighted @ centred - weighted.sum(dim=-1, keepdim=True) * centred
        rows = [
            -weighted[..., i : i + 1, :] @ torch.sign(self.x[..., i : i + 1, :] - self.x) for i in range(self.count)
        ]
        return torch.cat(rows, dim=-2)


def mean_off_diagonal(k: Float[Tensor, "*S n n"]) -> Float[Tensor, ""]:
    """Compute the mean kernel value between different particles: near 0 they are far apart, near 1 they coincide."""
    n = k.shape[-1]
    return (k.sum(dim=(-1, -2)).mean() - n) / max(n * (n - 1), 1)


def evaluate(x: Float[Tensor, "*S n p"], kernel: str, bandwidth: str | float) -> Pairs:
    """Evaluate a kernel between all particles.

    Args:
        x: particles; computed on in float32 or better, without gradient.
        kernel: "rbf", "imq", "l2" or "laplace".
        bandwidth: "median", "median_offdiagonal", or a number per coordinate (see `Recipe.bandwidth`).
    """
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    n, p = x.shape[-2:]
    squared = kernel in ("rbf", "imq")
    distance = _distances(x, 1.0 if kernel == "laplace" else 2.0)
    if squared:
        distance = distance.square()

    if isinstance(bandwidth, str):
        median = _median(distance, include_diagonal=bandwidth == "median")
        size = x.square().sum(dim=-1).mean(dim=-1)
        floor = 1e-8 * (1 + size) if squared else 1e-4 * (1 + size).sqrt()
        h = torch.maximum(median / math.log(n + 1), floor)
        noise = rounding_noise(x.dtype) * size if squared else (rounding_noise(x.dtype) * size).sqrt()
        noise = math.sqrt(p) * noise if kernel == "laplace" else noise  # a sum of p rounding errors
        repels = (median > noise).to(x.dtype)  # coinciding particles: no direction to push in, so no push
    else:
        h = x.new_full(x.shape[:-2], bandwidth * (math.sqrt(p) if kernel == "l2" else p))
        repels = torch.ones_like(h)

    wide, repels = h[..., None, None], repels[..., None, None]
    if kernel == "imq":
        k = (1 + distance / wide).rsqrt()
        slope = k**3 / wide
    else:
        k = torch.exp(-distance / wide)
        slope = k / wide
    if kernel == "rbf":
        slope = 2 * slope
    if kernel == "l2":
        slope = torch.where(distance > 0, slope / distance, torch.zeros_like(slope))
    return Pairs(x, k, h, repels * slope, signed=kernel == "laplace")


def rounding_noise(dtype: torch.dtype) -> float:
    """Return the squared distance, relative to the mean squared norm, up to which particles coincide.

    Outputs of equal heads need not be equal: a matrix product adds up the terms of different rows in different orders.
    Each coordinate is then off by a few units in the last place, here at most 64.

    Examples:
        >>> rounding_noise(torch.float32) ** 0.5
        7.62939453125e-06
    """
    return (64 * torch.finfo(dtype).eps) ** 2


def _distances(x: Float[Tensor, "*S n p"], norm: float) -> Float[Tensor, "*S n n"]:
    """Compute distances by differences: the expansion |x|^2 - 2xy + |y|^2 loses all digits of close particles."""
    if x.ndim > 2 or len(x) == 1:
        return torch.cdist(x, x, p=norm, compute_mode="donot_use_mm_for_euclid_dist")
    distance = x.new_zeros(len(x), len(x))
    first, second = torch.triu_indices(len(x), len(x), offset=1, device=x.device)
    distance[first, second] = distance[second, first] = torch.pdist(x.contiguous(), p=norm)
    return distance


def _median(distance: Float[Tensor, "*S n n"], *, include_diagonal: bool) -> Float[Tensor, "*S"]:
    """Compute the true median (mean of the two middle values) of the pairwise distances; 0 for one particle."""
    n = distance.shape[-1]
    if n == 1:
        return distance[..., 0, 0]
    upper = torch.triu_indices(n, n, offset=1, device=distance.device)
    pairs = distance[..., upper[0], upper[1]]
    return median_of_pairs(pairs.movedim(-1, 0), n, include_diagonal=include_diagonal)


def median_of_pairs(distance: Float[Tensor, "q ..."], n: int, *, include_diagonal: bool) -> Float[Tensor, "..."]:
    """Compute the true median of the distances between n > 1 particles, from those of the n (n - 1) / 2 pairs."""
    low, high = middle_ranks(n, include_diagonal=include_diagonal)
    if distance.device.type == "cpu":  # numpy sorts many short columns several times faster
        ordered = torch.from_numpy(np.sort(distance.numpy(), axis=0))
    else:
        ordered = distance.sort(dim=0).values
    return ordered[high] / 2 if low < 0 else (ordered[low] + ordered[high]) / 2


def middle_ranks(n: int, *, include_diagonal: bool) -> tuple[int, int]:
    """Return the ranks, among the distances of all pairs, of the two whose mean is the median; -1 stands for a zero.

    With the diagonal it is the median of n zeros and every pair twice, which puts the value of rank t among all n^2 at
    rank `(t - n) // 2` among the pairs.

    Examples:
        >>> middle_ranks(10, include_diagonal=True), middle_ranks(10, include_diagonal=False)
        ((19, 20), (22, 22))
        >>> middle_ranks(2, include_diagonal=True)
        (-1, 0)
    """
    if include_diagonal:
        return ((n * n - 1) // 2 - n) // 2, (n * n // 2 - n) // 2
    pairs = n * (n - 1) // 2
    return (pairs - 1) // 2, pairs // 2
