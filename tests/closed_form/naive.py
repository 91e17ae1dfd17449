"""The mathematics written the slow way, one pair of particles at a time, straight from the specification.

Nothing here calls the library. Particles are float64 rows `x[i]`, `h` is a plain number.
"""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

KERNELS = ("rbf", "imq", "l2", "laplace")
RULES = ("kde", "blob", "sge", "ssge", "svgd")
SPACES = ("logits", "probabilities", "log_probabilities", "centred_logits")
RIDGE, TRACE = 0.01, 0.99


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that are the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def distance(kernel: str, x: Tensor, y: Tensor) -> Tensor:
    """What the kernel decays in: squared distance, distance, or sum of absolute differences."""
    if kernel == "laplace":
        return (x - y).abs().sum()
    squared = ((x - y) ** 2).sum()
    return squared.sqrt() if kernel == "l2" else squared


def value(kernel: str, x: Tensor, y: Tensor, h: float) -> Tensor:
    d = distance(kernel, x, y)
    return (1 + d / h) ** -0.5 if kernel == "imq" else torch.exp(-d / h)


def median(kernel: str, x: Tensor, *, diagonal: bool = True) -> float:
    n = len(x)
    return statistics.median(
        float(distance(kernel, x[i], x[j])) for i in range(n) for j in range(n) if diagonal or i != j
    )


def bandwidth(kernel: str, x: Tensor, *, diagonal: bool = True) -> float:
    return median(kernel, x, diagonal=diagonal) / math.log(len(x) + 1)


def matrix(kernel: str, x: Tensor, h: float) -> Tensor:
    """All kernel values."""
    return torch.stack([torch.stack([value(kernel, a, b, h) for b in x]) for a in x])


def slopes(kernel: str, x: Tensor, h: float) -> Tensor:
    """`[i, j]` is the gradient of k(x_i, x_j) in its first argument, by autograd; zero for i = j."""
    out = torch.zeros(len(x), len(x), x.shape[1], dtype=x.dtype)
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j:
                a = x[i].detach().clone().requires_grad_()
                (out[i, j],) = torch.autograd.grad(value(kernel, a, x[j].detach(), h), a)
    return out


def slopes_sum(kernel: str, x: Tensor, h: float) -> Tensor:
    """`sum_j grad_i k(x_i, x_j)`, leaving out coinciding particles, where there is no direction."""
    x = x.detach()
    out = torch.zeros_like(x)
    for i in range(len(x)):
        for j in range(len(x)):
            if not torch.equal(x[i], x[j]):
                a = x[i].clone().requires_grad_()
                out[i] += torch.autograd.grad(value(kernel, a, x[j], h), a)[0]
    return out


def direction(rule: str, kernel: str, x: Tensor, h: float) -> Tensor:
    """Where the repulsion of a rule pushes each particle (the velocity without its driving part, strength 1)."""
    n = len(x)
    k, grad = matrix(kernel, x, h), slopes(kernel, x, h)
    density = [sum(k[i, j] for j in range(n)) for i in range(n)]
    delta = torch.stack([sum(grad[i, j] for j in range(n)) for i in range(n)])
    if rule == "kde":
        return torch.stack([-delta[i] / density[i] for i in range(n)])
    if rule == "blob":
        return torch.stack([-delta[i] / density[i] - sum(grad[i, j] / density[j] for j in range(n)) for i in range(n)])
    if rule == "sge":
        return -torch.linalg.inv(k + RIDGE * torch.eye(n, dtype=x.dtype)) @ delta
    if rule == "ssge":
        return -spectral_score(k, grad)
    return -delta / n


def spectral_score(k: Tensor, grad: Tensor) -> Tensor:
    """The spectral Stein estimate of the score at its own samples, by eigenfunctions.

    The ridge is a nugget of the kernel, `k + RIDGE` where both arguments are the same sample, whose gradient is zero.
    """
    n = len(k)
    eigenvalues, eigenvectors = torch.linalg.eigh(k)
    order = sorted(range(n), key=lambda a: -float(eigenvalues[a]))
    score, held = torch.zeros_like(grad[0]), 0.0
    for a in order:
        if held >= TRACE * float(eigenvalues.sum()):
            break
        held += float(eigenvalues[a])
        u, scale = eigenvectors[:, a], math.sqrt(n) / (float(eigenvalues[a]) + RIDGE)
        psi = [scale * sum(u[m] * (k[i, m] + (RIDGE if i == m else 0.0)) for m in range(n)) for i in range(n)]
        psi_gradients = [scale * sum(u[m] * grad[i, m] for m in range(n)) for i in range(n)]
        beta = -sum(psi_gradients) / n
        score = score + torch.stack([psi[i] * beta for i in range(n)])
    return score


def softmax(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum(dim=-1, keepdim=True)


def in_space(logits: Tensor, on: str) -> Tensor:
    if on == "probabilities":
        return softmax(logits)
    if on == "log_probabilities":
        return softmax(logits).log()
    if on == "centred_logits":
        return logits - logits.sum(dim=-1, keepdim=True) / logits.shape[-1]
    return logits


def pull_back(r: Tensor, logits: Tensor, on: str) -> Tensor:
    """The transposed Jacobian of `in_space` applied to r, written out."""
    p = softmax(logits)
    if on == "probabilities":
        return p * (r - (p * r).sum(dim=-1, keepdim=True))
    if on == "log_probabilities":
        return r - p * r.sum(dim=-1, keepdim=True)
    if on == "centred_logits":
        return r - r.sum(dim=-1, keepdim=True) / r.shape[-1]
    return r


def push(rule: str, kernel: str, logits: Tensor, on: str, h: float | None = None) -> tuple[Tensor, Tensor]:
    """Direction of the repulsion in logits `(n, R, K)`, and the kernel matrix (median rule unless `h` is given)."""
    u = in_space(logits, on).flatten(1)
    h = bandwidth(kernel, u) if h is None else h
    return pull_back(direction(rule, kernel, u, h).view_as(logits), logits, on), matrix(kernel, u, h)
