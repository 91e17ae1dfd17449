"""Means, covariances and densities of Gaussians, in float64."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected


def class_means(features: Tensor, targets: Int[Tensor, " N"], classes: int) -> tuple[Tensor, Tensor]:
    """Compute the mean of each class `(K, d)`, zero for classes without samples, and their numbers of samples."""
    check_positive_integer("classes", classes)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, targets, features.double())
    count = torch.bincount(targets, minlength=classes)
    return sums / count.clamp_min(1).unsqueeze(1), count


def log_normal(
    x: Float[Tensor, "B d"], means: Float[Tensor, "K d"], factors: Float[Tensor, "K d d"]
) -> Float[Tensor, "B K"]:
    """Compute the log density of every sample under every Gaussian with covariance `L L^T`."""
    centred = (x - means.unsqueeze(1)).transpose(1, 2)  # (K, d, B)
    distance = torch.linalg.solve_triangular(factors, centred, upper=False).square().sum(dim=1)
    log_determinant = 2 * factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    return -0.5 * (distance.T + log_determinant + x.shape[1] * math.log(2 * math.pi))


def cholesky(covariances: Float[Tensor, "K d d"]) -> Float[Tensor, "K d d"]:
    """Compute Cholesky factors, each with the smallest sufficient jitter.

    The jitter starts at 1e-10 of the mean variance and grows by a factor of ten per try.
    """
    d = covariances.shape[-1]
    typical = covariances.diagonal(dim1=1, dim2=2).mean(dim=1)
    typical = torch.where(typical > 0, typical, torch.ones_like(typical))
    factors, bad = torch.linalg.cholesky_ex(covariances)
    jitter = 1e-10
    while bool((bad > 0).any()):
        if jitter > 1:
            raise DataError(expected("features", "with finite covariances", "some that no jitter makes positive"))
        eye = torch.eye(d, dtype=covariances.dtype, device=covariances.device)
        left = bad > 0
        more = covariances[left] + jitter * typical[left].view(-1, 1, 1) * eye
        factors[left], bad[left] = torch.linalg.cholesky_ex(more)
        jitter *= 10
    return factors
