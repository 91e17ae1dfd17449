"""Update rules: in which direction each particle is pushed away from the density of all of them.

With `S_i = sum_j k_ij` and `D_i = sum_j grad_i k_ij`, the velocity of particle i is its driving force plus `strength`
times

    kde    -D_i / S_i                                    gradient of a kernel density estimate (the paper's rule)
    blob   -D_i / S_i - sum_j grad_i k_ij / S_j          the same, with the others' densities moving too
    sge    -[(K + eta I)^-1 D]_i                         Stein gradient estimator
    ssge   -[U (Lambda + eta)^-1 U^T D]_i                spectral Stein: only the leading eigenvectors of K
    svgd   -D_i / n                                      Stein variational; its driving forces are averaged by K / n

SSGE evaluated at its own samples reduces to that truncated inverse: the eigenfunctions there are the eigenvectors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.particles.kernels import Pairs

RIDGE = 0.01
"""Added to the kernel matrix by sge and ssge before it is inverted."""

SSGE_TRACE = 0.99
"""Share of the trace of the kernel matrix that ssge keeps."""


def kde(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    density = pairs.k.sum(dim=-1, keepdim=True)
    return -pairs.gradient(1 / density)


def blob(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    density = pairs.k.sum(dim=-1, keepdim=True)
    return -pairs.gradient(1 / density + 1 / density.mT)


def sge(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    ridge = RIDGE * torch.eye(pairs.count, dtype=pairs.k.dtype, device=pairs.k.device)
    return -torch.linalg.solve(pairs.k + ridge, _unweighted(pairs))


def ssge(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    values, vectors = torch.linalg.eigh(pairs.k)  # ascending
    above = values.clamp_min(0).flip(-1).cumsum(-1).flip(-1) - values.clamp_min(0)  # trace held by larger eigenvalues
    kept = (above < SSGE_TRACE * values.clamp_min(0).sum(dim=-1, keepdim=True)).to(values.dtype)
    scaled = vectors * (kept / (values.clamp_min(0) + RIDGE)).unsqueeze(-2)
    return -scaled @ (vectors.mT @ _unweighted(pairs))


def svgd(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    return -_unweighted(pairs) / pairs.count


def _unweighted(pairs: Pairs) -> Float[Tensor, "*S n p"]:
    return pairs.gradient(torch.ones_like(pairs.k))


DIRECTIONS: dict[str, Callable[[Pairs], Tensor]] = {"kde": kde, "blob": blob, "sge": sge, "ssge": ssge, "svgd": svgd}
