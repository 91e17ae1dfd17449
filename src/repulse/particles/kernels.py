"""Kernels between particles, their bandwidths, and the sums of kernel gradients that every update rule is made of.

With `D_ij = |x_i - x_j|^2` and `a_ij = |x_i - x_j|_1`:

    rbf      k = exp(-D / h)              grad_i k = -(2/h) k (x_i - x_j)
    imq      k = (1 + D / h)^(-1/2)       grad_i k = -(1/h) k^3 (x_i - x_j)
    l2       k = exp(-sqrt(D) / h)        grad_i k = -(1/h) k (x_i - x_j) / sqrt(D)
    laplace  k = exp(-a / h)              grad_i k = -(1/h) k sign(x_i - x_j)

Nothing here needs autograd: a rule asks for `sum_j w_ij grad_i k_ij` and gets it in closed form.
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

    x: Float[Tensor, "n p"]
    k: Float[Tensor, "n n"]
    bandwidth: Float[Tensor, ""]
    slope: Float[Tensor, "n n"]
    signed: bool

    def gradient(self, weights: Float[Tensor, "#n #n"]) -> Float[Tensor, "n p"]:
        """`sum_j w_ij grad_i k_ij` for every i."""
        weighted = weights * self.slope
        if not self.signed:
            # sum_j w_ij (x_i - x_j) as one product; centring first keeps the digits when particles lie close together.
            centred = self.x - self.x.mean(dim=0)
            return weighted @ centred - weighted.sum(dim=1, keepdim=True) * centred
        return torch.stack([-weighted[i] @ torch.sign(self.x[i] - self.x) for i in range(len(self.x))])

    @property
    def mean_off_diagonal(self) -> Float[Tensor, ""]:
        """Mean kernel value between different particles; near 0 they do not feel each other, near 1 they coincide."""
        n = len(self.k)
        return (self.k.sum() - n) / max(n * (n - 1), 1)


def evaluate(x: Float[Tensor, "n p"], kernel: str, bandwidth: str | float) -> Pairs:
    """Evaluate a kernel between all particles.

    Args:
        x: particles; computed on in float32 or better, without gradient.
        kernel: "rbf", "imq", "l2" or "laplace".
        bandwidth: "median", "median_offdiagonal", or a number per coordinate (see `Recipe.bandwidth`).
    """
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    n, p = x.shape
    squared = kernel in ("rbf", "imq")
    if kernel == "laplace":
        distance = torch.cdist(x, x, p=1)
    else:  # direct differences: the expansion |x|^2 - 2xy + |y|^2 loses all digits when particles are close
        distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    if squared:
        distance = distance.square()

    if isinstance(bandwidth, str):
        median = _median(distance, include_diagonal=bandwidth == "median")
        size = 1 + x.square().sum(dim=1).mean()
        floor = 1e-8 * size if squared else 1e-4 * size.sqrt()
        h = torch.maximum(median / math.log(n + 1), floor)
        felt = (median > 0).to(x.dtype)  # coinciding particles: no direction to push in, so no push
    else:
        h = x.new_tensor(bandwidth * (math.sqrt(p) if kernel == "l2" else p))
        felt = x.new_ones(())

    if kernel == "imq":
        k = (1 + distance / h).rsqrt()
        slope = k**3 / h
    else:
        k = torch.exp(-distance / h)
        slope = k / h
    if kernel == "rbf":
        slope = 2 * slope
    if kernel == "l2":
        slope = torch.where(distance > 0, slope / distance, torch.zeros_like(slope))
    return Pairs(x, k, h, felt * slope, signed=kernel == "laplace")


def _median(distance: Float[Tensor, "n n"], *, include_diagonal: bool) -> Float[Tensor, ""]:
    """True median (mean of the two middle values) of the pairwise distances; 0 for one particle."""
    n = len(distance)
    if not include_diagonal and n > 1:
        upper = torch.triu_indices(n, n, offset=1, device=distance.device)
        distance = distance[upper[0], upper[1]]
    return torch.quantile(distance.flatten(), 0.5)
