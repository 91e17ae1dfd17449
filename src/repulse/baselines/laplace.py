"""LL-Laplace: a Gaussian posterior over the last layer's weights (Kristiadi et al., 2020; Daxberger et al., 2021).

The curvature is that of laplace-torch. For many classes its Jacobians do not fit into memory; the Kronecker posterior
of a last layer then has a closed form that needs none.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register
from repulse.errors import DataError, check_choice, check_positive_integer, expected
from repulse.prediction import ClassPrediction

STRUCTURES = ("kron", "full", "diag")
LARGEST_JACOBIAN = 50_000
"""Number of entries of the Jacobian of the logits of one sample above which the Kronecker posterior is closed form."""


@register
@dataclass
class Laplace(Detector):
    """Draw logits `f ~ N(f_MAP, J S J^T)` and score by the disagreement of the draws.

    All inputs share the same standard normal draws, so that a prediction does not depend on its batch. The precision of
    the prior maximises the marginal likelihood.

    Args:
        layer: the last layer of the network.
        structure: of the posterior's precision: "kron", "full" or "diag".
        samples: number of draws.
        engine: "laplace-torch", "closed" (only "kron"), or "auto": closed where Jacobians are large.
        seed: for the draws.
    """

    structure: str = "kron"
    samples: int = 100
    engine: str = "auto"
    seed: int = 0
    posterior: Kronecker | LaplaceTorch = field(init=False, repr=False)

    name = "LL-Laplace"
    family = "posterior"
    random = True
    extra = "laplace"
    seconds = 12.0

    def __post_init__(self) -> None:
        check_choice("structure", self.structure, STRUCTURES)
        check_choice("engine", self.engine, ("auto", "laplace-torch", "closed"))
        check_positive_integer("samples", self.samples)
        if self.engine == "closed" and self.structure != "kron":
            raise DataError(expected("structure", "'kron' for the closed form", repr(self.structure)))

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        entries = self.layer.classes**2 * features.shape[1]
        large = self.structure == "kron" and entries > LARGEST_JACOBIAN
        if self.engine == "closed" or (self.engine == "auto" and large):
            self.posterior = Kronecker.of(self.layer.weight, self.layer.bias, features)
        else:
            if entries > 20 * LARGEST_JACOBIAN:
                wanted = "'kron' with the closed form for this number of classes and features"
                raise DataError(expected("structure", wanted, f"{self.structure!r} by {self.engine}"))
            self.posterior = LaplaceTorch(self.layer.weight, self.layer.bias, self.structure, features, targets)

    def _predict(self, features: Tensor) -> ClassPrediction:
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.samples, self.layer.classes, generator=generator).to(features.device)
        rows = max(1, 20_000_000 // noise.numel())
        parts = [self._sample(part, noise) for part in features.split(rows)]
        return ClassPrediction(torch.cat(parts, dim=1))

    def _sample(self, features: Tensor, noise: Float[Tensor, "S K"]) -> Float[Tensor, "S B K"]:
        return (self.layer(features) + self.posterior.deviations(features, noise)).log_softmax(dim=-1)


@register
@dataclass
class FullLaplace(Laplace):
    """Laplace with the full precision of all weights."""

    structure: str = "full"

    name = "LL-Laplace (full)"
    accepts_taps = False  # its Jacobians would be too large


@register
@dataclass
class DiagonalLaplace(Laplace):
    """Laplace with the diagonal of the precision alone."""

    structure: str = "diag"

    name = "LL-Laplace (diagonal)"
    accepts_taps = False


@dataclass(frozen=True, eq=False)
class Kronecker:
    """The Kronecker posterior of a last layer, in closed form.

    With `L_n = diag p_n - p_n p_n^T`, the precision of the weights is `sum L_n (x) sum z_n z_n^T / N + delta` and that
    of the biases `sum L_n + delta`. In the eigenbases `(u_a, l_a)` and `(v_b, m_b)` of the factors the covariance of
    the logits at z is `sum_a u_a u_a^T [ sum_b (v_b^T z)^2 / (l_a m_b / N + delta) + 1 / (l_a + delta) ]`.

    Attributes:
        u: eigenvectors of `sum L_n`.
        v: eigenvectors of `sum z_n z_n^T`.
        precision: `l_a m_b / N + delta`, `(K, d)`.
        bias_precision: `l_a + delta`, `(K,)`.
    """

    u: Float[Tensor, "K K"]
    v: Float[Tensor, "d d"]
    precision: Float[Tensor, "K d"]
    bias_precision: Float[Tensor, " K"]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, features: Tensor) -> Kronecker:
        """Compute the posterior of a last layer from the features that it was trained on."""
        outer = torch.zeros(len(bias), len(bias), dtype=torch.float64, device=features.device)
        inner = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64, device=features.device)
        for part in features.split(4096):
            z = part.double()
            p = (z @ weight.double().T + bias.double()).softmax(dim=-1)
            outer += torch.diag(p.sum(dim=0)) - p.T @ p
            inner += z.T @ z
        a, u = torch.linalg.eigh(outer)
        b, v = torch.linalg.eigh(inner / len(features))
        curvature = a.clamp_min(0).unsqueeze(1) * b.clamp_min(0)
        every = torch.cat([curvature.flatten(), a.clamp_min(0)])
        squares = weight.double().square().sum() + bias.double().square().sum()
        delta = prior_precision(every, squares)
        return cls(u, v, curvature + delta, a.clamp_min(0) + delta)

    def variances(self, features: Tensor) -> Float[Tensor, "B K"]:
        """Compute the variances of the logits along the eigenvectors `u`."""
        return (features.double() @ self.v).square() @ (1 / self.precision).T + 1 / self.bias_precision

    def deviations(self, features: Tensor, noise: Float[Tensor, "S K"]) -> Float[Tensor, "S B K"]:
        """Compute what each draw adds to the logits."""
        scaled = noise.unsqueeze(1) * self.variances(features).sqrt().to(noise)
        return scaled @ self.u.T.to(noise)


def prior_precision(curvature: Float[Tensor, " P"], squares: Tensor, steps: int = 100) -> Tensor:
    """Find the precision of the prior with the largest marginal likelihood, given the eigenvalues of the curvature.

    Maximises `P log delta - sum_i log(c_i + delta) - delta |theta|^2` over `log delta` as laplace-torch does: Adam with
    lr 0.1 from 1. Never below 1e-6.
    """
    log_delta = torch.zeros((), dtype=torch.float64, device=curvature.device, requires_grad=True)
    optimizer = torch.optim.Adam([log_delta], lr=0.1)
    with torch.enable_grad():
        for _ in range(steps):
            delta = log_delta.exp()
            loss = 0.5 * ((curvature + delta).log().sum() - len(curvature) * log_delta + delta * squares)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return log_delta.detach().exp().clamp_min(1e-6)


class LaplaceTorch:
    """The posterior of laplace-torch, for a model that is the last layer alone."""

    def __init__(self, weight: Tensor, bias: Tensor, structure: str, features: Tensor, targets: Tensor) -> None:
        model = nn.Linear(weight.shape[1], weight.shape[0], device="meta").to_empty(device=weight.device)
        with torch.no_grad():
            model.weight.copy_(weight)
            model.bias.copy_(bias)
        loader = DataLoader(TensorDataset(features.float(), targets), batch_size=1024)
        with warnings.catch_warnings(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of its dependencies about each other, at import and in the fit
            make = _laplace_torch()
            try:
                self.posterior = make(model, "classification", subset_of_weights="all", hessian_structure=structure)
                self.posterior.fit(loader)
                self.posterior.optimize_prior_precision(method="marglik", pred_type="glm")
            except (SystemExit, RuntimeError, ValueError) as reason:  # it ends the program where it gives up
                largest = max(float(part.abs().amax()) for part in (features, weight, bias))
                got = f"values up to {largest:.3g}, of which laplace-torch makes none"
                raise DataError(
                    expected("features and last layer", "such that the curvature is finite", got)
                ) from reason

    def covariances(self, features: Tensor) -> Float[Tensor, "B K K"]:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.posterior._glm_predictive_distribution(features.float())[1].detach()

    def deviations(self, features: Tensor, noise: Float[Tensor, "S K"]) -> Float[Tensor, "S B K"]:
        covariances = torch.cat([self.covariances(part) for part in features.split(512)]).double()
        values, vectors = torch.linalg.eigh(covariances)
        roots = (vectors * values.clamp_min(0).sqrt().unsqueeze(1)) @ vectors.transpose(1, 2)
        return torch.einsum("bkl,sl->sbk", roots.to(noise), noise)


def _laplace_torch() -> Any:
    if importlib.util.find_spec("laplace") is None:
        raise DataError(f"LL-Laplace needs laplace-torch: `pip install 'repulse[{Laplace.extra}]'`.")
    from repulse._operators import define_missing

    define_missing()
    import laplace

    return laplace.Laplace
