"""How much noise a regression has, how much of its doubt is disagreement, and how heavy its tails are.

Chosen together on residuals of rows that nothing was fitted to. With `e(x) = s(x)^2 var_i h_i(x)`, the disagreement of
the heads at a release `s(x)`, and its median `e_m` on those rows, the variance of a prediction is

    V(x) = tau^2 ((1 - rho) + rho e(x) / e_m)

where `tau^2 (1 - rho)` is aleatoric and `rho` the epistemic share at a typical row: neither part can vanish. The
density is `mean_k N(mean, V m_k)`, with `m_k` equally likely quantiles, scaled to mean one, of the inverse gamma
distribution whose mixture of Gaussians is Student's t with `nu` degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35)
"""Epistemic shares at a typical row that are tried."""

USUAL_SHARE = 0.1
"""Epistemic share that is expected before looking at residuals, and assumed where there are none."""

GAUSSIAN = 1000.0
"""Degrees of freedom from which on Student's t is a Gaussian."""

TAILS = (3.0, 4.0, 6.0, 10.0, 30.0, GAUSSIAN)
"""Degrees of freedom that are tried."""

TAIL_PRIOR = 3.0
"""Heavy tails cost `(3 / nu)^2 / 2` nats, so that a few residuals do not choose them."""

LEVEL = 0.95
"""Intervals of this level should hold this share of the residuals."""

POINTS = 16
"""Number of Gaussians that stand for Student's t."""

WIDEST = 2.0
"""Factor by which intervals are widened, at most, to hold as many residuals as they should."""

MAX_ROWS = 5000
"""Residuals looked at, at most."""


@dataclass(frozen=True)
class Noise:
    """Variances of predictions: `V(x) = tau2 ((1 - share) + share e(x) / typical)`.

    Attributes:
        tau2: total variance at a typical row.
        share: epistemic part of it.
        tail: degrees of freedom of Student's t.
        typical: median of `e` on the rows that decided.
        cost: what the choice minimised, in nats.
    """

    tau2: float
    share: float
    tail: float
    typical: float
    cost: float = math.nan

    @property
    def aleatoric(self) -> float:
        """Return the variance of the noise."""
        return self.tau2 * (1 - self.share)

    @property
    def gain(self) -> float:
        """Return the factor by which deviations of heads are multiplied: `sqrt(tau2 share / typical)`."""
        return math.sqrt(self.tau2 * self.share / self.typical)


def choose_noise(
    residuals: Float[Tensor, " B"], disagreement: Float[Tensor, " B"], shares: tuple[float, ...] = SHARES
) -> Noise:
    """Choose total variance, epistemic share and tail by the likelihood of held-out residuals.

    Minimises, over grids, `-sum_j log mean_k N(r_j; 0, V_j m_k) + (log(rho / 0.1))^2 / 2 + (3 / nu)^2 / 2`, and half
    the squared z-score of the number of residuals inside their 95 % intervals,
    `(inside - 0.95 n)^2 / (2 n 0.95 0.05 + 1)`: heavy tails alone are content with intervals that are too narrow. Then
    all intervals are widened until those of 95 % hold `0.95 (n + 1)` of the n residuals, which is how many they must
    hold here to hold 95 % of new ones on average (split conformal prediction); they are never narrowed.

    Args:
        residuals: targets minus predictions, on rows that nothing was fitted to.
        disagreement: `e(x)` of the same rows.
        shares: epistemic shares to try.
    """
    step = -(-len(residuals) // MAX_ROWS)
    r, e = residuals[::step].double(), disagreement[::step].double()
    mean_square = float(r.square().mean()) + 1e-30
    typical = float(e.median()) + 1e-30
    factors = torch.linspace(math.log(0.05), math.log(4.0), 33, dtype=torch.float64).exp()
    best: Noise | None = None
    for share in shares:
        shape = (1 - share) + share * e / typical
        squared = r.square() / shape / mean_square
        for tail in TAILS:
            variance = factors[:, None, None] * tail_factors(tail)[:, None]
            log_density = -0.5 * (variance.log() + squared / variance)
            log_density = log_density.logsumexp(dim=1) - math.log(variance.shape[1])
            cost = -log_density.sum(dim=1) + 0.5 * shape.log().sum()
            inside = (squared <= factors[:, None] * interval_factor(tail) ** 2).sum(dim=1)
            cost += (inside - LEVEL * len(r)).square() / (2 * len(r) * LEVEL * (1 - LEVEL) + 1)
            cost += 0.5 * math.log(share / USUAL_SHARE) ** 2 + 0.5 * (TAIL_PRIOR / tail) ** 2
            i = int(cost.argmin())
            if best is None or float(cost[i]) < best.cost:
                best = Noise(mean_square * float(factors[i]), share, tail, typical, float(cost[i]))
    assert best is not None
    return replace(best, tau2=best.tau2 * _widening(best, r, e) ** 2)


def _widening(noise: Noise, residuals: Tensor, disagreement: Tensor) -> float:
    """Return the factor on the width of 95 % intervals that makes enough of them hold their residual."""
    variance = noise.tau2 * ((1 - noise.share) + noise.share * disagreement / noise.typical)
    needed = (residuals.abs() / (interval_factor(noise.tail) * variance.sqrt())).sort().values
    wanted = min(math.ceil(LEVEL * (len(residuals) + 1)), len(residuals)) - 1
    return min(max(float(needed[wanted]), 1.0), WIDEST)


@cache
def tail_factors(tail: float) -> Float[Tensor, " m"]:
    """Return equally likely factors on the variance, of mean one, that make Gaussians a Student's t.

    Quantiles `(k - 1/2) / m` of the inverse gamma distribution of shape `nu / 2`, found by bisection of its
    distribution function `Q(nu / 2, 1 / x)`.

    Examples:
        >>> tail_factors(GAUSSIAN)
        tensor([1.], dtype=torch.float64)
        >>> round(float(tail_factors(4.0).mean()), 6)
        1.0
    """
    if tail >= GAUSSIAN:
        return torch.ones(1, dtype=torch.float64)
    wanted = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    low, high = torch.full_like(wanted, -30.0), torch.full_like(wanted, 30.0)
    shape = torch.full_like(wanted, tail / 2)
    for _ in range(100):
        middle = (low + high) / 2
        below = torch.special.gammaincc(shape, torch.exp(-middle)) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    factors = torch.exp((low + high) / 2)
    return factors / factors.mean()


@cache
def interval_factor(tail: float) -> float:
    """Return the half-width of the central 95 % interval, in standard deviations, by bisection.

    Examples:
        >>> round(interval_factor(GAUSSIAN), 3)
        1.96
    """
    deviations = tail_factors(tail).sqrt()
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        mass = float(torch.special.ndtr(middle / deviations).mean())
        low, high = (middle, high) if mass < (1 + LEVEL) / 2 else (low, middle)
    return (low + high) / 2


def leave_one_out(
    inputs: Float[Tensor, "N d"], targets: Float[Tensor, " N"], seed: int = 0
) -> tuple[Float[Tensor, " M"], float]:
    """Return residuals that a regression which has not seen a row leaves there, and the variance of the noise it finds.

    Kernel ridge regression on standardised inputs, with the kernel `exp(-d^2 / (2 c median d^2)) + 0.1 x.x' / D + 1`;
    `c` and the ridge are chosen by the leave-one-out error. A network that knows its training rows by heart leaves no
    residuals there, and nor does anything that is fitted on its features; this knows the inputs alone.

    Args:
        inputs: of the training rows.
        targets: of the same.
        seed: of the choice of at most 2,000 rows.
    """
    if len(targets) > 2000:
        rows = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))[:2000]
        inputs, targets = inputs[rows], targets[rows]
    x, y = inputs.double(), targets.double() - targets.double().mean()
    scale = float(y.std(correction=0)) or 1.0
    y = y / scale
    deviation = x.std(dim=0, correction=0)
    z = (x - x.mean(dim=0)) / torch.where(deviation > 1e-9, deviation, torch.inf)
    squared = torch.cdist(z, z).square()
    best, found, noise = math.inf, torch.zeros_like(y), 0.0
    for width in (0.25, 1.0, 4.0):
        kernel = torch.exp(-squared / (2 * width * squared.median().clamp_min(1e-12))) + 0.1 * z @ z.T / z.shape[1] + 1
        values, vectors = torch.linalg.eigh(kernel)
        values, projected = values.clamp_min(0), vectors.T @ y
        for ridge in torch.logspace(-4, 1, 11, dtype=torch.float64).tolist():
            inverse = 1 / (values + ridge)
            dual = vectors @ (inverse * projected)
            left = dual / (vectors.square() @ inverse)
            if float(left.square().mean()) < best:
                best, found = float(left.square().mean()), left
                freedom = max(len(y) - float((values * inverse).sum()), 1.0)
                noise = float((ridge * dual).square().sum()) / freedom
    return found * scale, noise * scale**2
