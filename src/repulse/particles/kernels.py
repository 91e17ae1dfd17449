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

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """A kernel evaluated between all pairs of n particles.

    Attributes:
        x: the particles, one a row.
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
        """`sum_j w_ij grad_i k_ij` for every i."""
        weighted = weights * self.slope
        if not self.signed:
            # sum_j w_ij (x_i - x_j) as one product; centring first keeps the digits when particles lie close together.
            centred = self.x - self.x.mean(dim=-2, keepdim=True)
            return weighted @ centred - weighted.sum(dim=-1, keepdim=True) * centred
        rows = [
            -weighted[..., i : i + 1, :] @ torch.sign(self.x[..., i : i + 1, :] - self.x) for i in range(self.count)
        ]
        return torch.cat(rows, dim=-2)

    @property
    def mean_off_diagonal(self) -> Float[Tensor, ""]:
        """Mean kernel value between different particles; near 0 they do not feel each other, near 1 they coincide."""
        n = self.count
        return (self.k.sum(dim=(-1, -2)).mean() - n) / max(n * (n - 1), 1)


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
    if kernel == "laplace":
        distance = torch.cdist(x, x, p=1)
    else:  # direct differences: the expansion |x|^2 - 2xy + |y|^2 loses all digits when particles are close
        distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    if squared:
        distance = distance.square()

    if isinstance(bandwidth, str):
        median = _median(distance, include_diagonal=bandwidth == "median")
        size = 1 + x.square().sum(dim=-1).mean(dim=-1)
        floor = 1e-8 * size if squared else 1e-4 * size.sqrt()
        h = torch.maximum(median / math.log(n + 1), floor)
        felt = (median > 0).to(x.dtype)  # coinciding particles: no direction to push in, so no push
    else:
        h = x.new_full(x.shape[:-2], bandwidth * (math.sqrt(p) if kernel == "l2" else p))
        felt = torch.ones_like(h)

    wide, felt = h[..., None, None], felt[..., None, None]
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
    return Pairs(x, k, h, felt * slope, signed=kernel == "laplace")


def _median(distance: Float[Tensor, "*S n n"], *, include_diagonal: bool) -> Float[Tensor, "*S"]:
    """True median (mean of the two middle values) of the pairwise distances; 0 for one particle."""
    n = distance.shape[-1]
    if not include_diagonal and n > 1:
        upper = torch.triu_indices(n, n, offset=1, device=distance.device)
        values = distance[..., upper[0], upper[1]]
    else:
        values = distance.flatten(start_dim=-2)
    middle = (values.shape[-1] - 1) // 2, values.shape[-1] // 2
    ordered = values.sort(dim=-1).values
    return (ordered[..., middle[0]] + ordered[..., middle[1]]) / 2
