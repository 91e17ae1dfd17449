"""Several numbers for each sample: one Gaussian per target, with predicted or known variances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import release_pages, row_chunks
from repulse.errors import DataError, expected
from repulse.particles.centre import Centre
from repulse.particles.checks import check_spread, check_values
from repulse.particles.fast.likelihood import Gaussians
from repulse.particles.noise import tail_factors
from repulse.particles.tasks.task import InPlaceLikelihood, Task
from repulse.prediction import MultiregressionPrediction, Prediction
from repulse.recipe import Recipe

if TYPE_CHECKING:
    from repulse.particles.heads import Heads

RIDGE = 1e-4
"""Added to the covariance of the features by the linear regression from which heads start."""


@dataclass(frozen=True)
class Multiregression(Task):
    """Outputs are a mean per target and, unless the noise is known, the log of a variance per target.

    `Recipe(task="regression")` with targets `(N, D)` is this; `Regression` is the same for a single target.

    Attributes:
        targets: number of targets, D.
        noise: known standard deviation of the noise of each target, or None.
        log_variance: added to the predicted logs of variances; see `Regression`.
        tails: degrees of freedom of Student's t, of each target; None for a mixture of the members' Gaussians.
        shares: how much of the centre of each target is the network; the rest is the mean of the heads.
        gains: factor on the deviations of the heads, for each target.
        max_log_variance: predicted logs of variances stay within plus and minus this.
    """

    kind: ClassVar[str] = "multiregression"
    has_closed_form: ClassVar[bool] = True
    max_log_variance: ClassVar[float] = 30.0

    targets: int
    noise: tuple[float, ...] | None = None
    log_variance: tuple[float, ...] | None = None
    tails: tuple[float, ...] | None = None
    shares: tuple[float, ...] | None = None
    gains: tuple[float, ...] | None = None

    @classmethod
    def from_targets(cls, targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
        """Check floats `(N, D)`."""
        if targets.ndim != 2 or len(targets) != samples:
            raise DataError(expected("targets", f"of shape ({samples}, targets)", f"shape {tuple(targets.shape)}"))
        check_values("targets", targets)
        check_spread(targets)
        count, noise = targets.shape[1], recipe.noise
        if noise is not None:
            noise = noise if isinstance(noise, tuple) else (noise,) * count
            if len(noise) != count:
                raise DataError(expected("noise", f"one number, or one for each of {count} targets", len(noise)))
        return targets, cls(count, noise)

    @property
    def outputs(self) -> int:
        return self.targets if self.noise is not None else 2 * self.targets

    @property
    def compared_outputs(self) -> int:
        """The means: repelling on variances would make the noise arbitrary."""
        return self.targets

    def gaussian(self, outputs: Float[Tensor, "n B O"]) -> tuple[Float[Tensor, "n B D"], Float[Tensor, "n B D"]]:
        """Return means and log-variances of every head."""
        means = outputs[..., : self.targets]
        if self.noise is not None:
            return means, 2 * outputs.new_tensor(self.noise).log().expand_as(means)
        logs = outputs[..., self.targets :].clamp(-self.max_log_variance, self.max_log_variance)
        return means, logs if self.log_variance is None else logs + outputs.new_tensor(self.log_variance)

    def nll(self, outputs: Float[Tensor, "n B O"], targets: Float[Tensor, "B D"]) -> Float[Tensor, " n"]:
        """Compute the mean over the batch of `sum_k (log 2 pi v_k + (y_k - mean_k)^2 / v_k) / 2`, for every head."""
        means, log_variances = self.gaussian(outputs)
        squared = (targets - means).square() * torch.exp(-log_variances)
        return 0.5 * (math.log(2 * math.pi) + log_variances + squared).sum(dim=2).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R O"], on: str) -> Float[Tensor, "n R D"]:
        """Return the means."""
        return outputs[..., : self.targets]

    def comparison_space(self, on: str) -> str:
        """Return "logits", the outputs as they are."""
        return "logits"

    def combined(self, outputs: Float[Tensor, "n B O"]) -> Float[Tensor, "B D"]:
        """Return the mean over heads of their means."""
        return outputs[..., : self.targets].mean(dim=0)

    def predict(self, outputs: Float[Tensor, "n B O"]) -> Prediction:
        means, log_variances = self.gaussian(outputs.float())
        tails = None if self.tails is None else tuple(tail_factors(tail).to(means) for tail in self.tails)
        return MultiregressionPrediction(means, log_variances.exp(), tails)

    def share_and_gain(self, centre: Centre, like: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """Return one of each for every target."""
        share, gain = (like.new_tensor(v if v is not None else [1.0]) for v in (self.shares, self.gains))
        return share, gain

    def around(
        self,
        middle: Float[Tensor, "B D"],
        deviations: Float[Tensor, "n B D"],
        release: Float[Tensor, " B"],
        temperature: float,
    ) -> Float[Tensor, "n B D"]:
        """Return the means of all targets, `middle + s deviations`; they have no temperature."""
        return middle + release.unsqueeze(1) * deviations

    def scale_targets(self, targets: Tensor) -> tuple[Multiregression, Tensor, Tensor, Tensor]:
        """Scale each target to zero mean and unit variance."""
        shift = targets.mean(dim=0)
        scale = targets.std(dim=0, correction=0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale)).float()
        scaled = ((targets - shift) / scale).float()
        release_pages(targets)
        task = self
        if self.noise is not None:
            task = replace(self, noise=tuple(n / s for n, s in zip(self.noise, scale.tolist(), strict=True)))
        return task, scaled, shift.float(), scale

    @torch.no_grad()
    def warm_start(
        self, heads: Heads, features: Tensor, prepare: Callable[[Tensor], Tensor], targets: Float[Tensor, "N D"]
    ) -> Multiregression:
        """Move the means of linear heads to the nearest least-squares solution, as `Regression` does."""
        y = targets.cpu().double()
        gram = torch.zeros(heads.features, heads.features, dtype=torch.float64)
        cross = torch.zeros(heads.features, self.targets, dtype=torch.float64)
        done = 0
        for part in row_chunks(features):
            x = prepare(part).cpu().double()
            gram += x.T @ x / len(y)
            cross += x.T @ y[done : done + len(x)] / len(y)
            done += len(x)
        ridged = gram + RIDGE * torch.eye(heads.features, dtype=torch.float64)
        solution = torch.linalg.solve(ridged, cross)
        if len(heads.weights) == 1:
            for k in range(self.targets):
                means = heads.weight[:, k].cpu().double()
                moved = torch.linalg.solve(ridged, cross[:, k : k + 1] - gram @ means.T)
                heads.weight[:, k] += moved.T.to(heads.weight)
            heads.bias[:, : self.targets] = 0.0
        left = y.square().mean(dim=0) - 2 * (cross * solution).sum(dim=0) + (solution * (gram @ solution)).sum(dim=0)
        return replace(self, log_variance=tuple(left.clamp_min(1e-8).log().tolist()))

    def in_original_units(self, fitted: Any, scale: Tensor) -> Multiregression:
        logs = 2 * scale.double().cpu().log() + torch.tensor(fitted.log_variance, dtype=torch.float64)
        return replace(self, log_variance=tuple(logs.tolist()))

    def fold_targets(self, heads: Heads, shift: Tensor, scale: Tensor) -> None:
        heads.fold_targets(shift, scale)

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n O S"], batch: int, probabilities: Float[Tensor, "n O R"] | None
    ) -> InPlaceLikelihood:
        return Gaussians(outputs, batch, self)
