"""One number for each sample: a Gaussian with a predicted or a known variance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import release_pages, row_chunks
from repulse.errors import DataError, expected
from repulse.particles.checks import check_spread, check_values
from repulse.particles.fast.likelihood import Gaussian
from repulse.particles.noise import tail_factors
from repulse.particles.tasks.multiregression import RIDGE, Multiregression
from repulse.particles.tasks.task import InPlaceLikelihood, Task, check_target_shape
from repulse.prediction import Prediction, RegressionAnswer, RegressionPrediction
from repulse.recipe import Recipe

if TYPE_CHECKING:
    from repulse.particles.heads import Heads


@dataclass(frozen=True)
class Regression(Task):
    """Outputs are a mean and, unless the noise is known, the log of a variance.

    Attributes:
        noise: known standard deviation of the noise, or None.
        tail: degrees of freedom of the Student's t that predictions have; None for a mixture of the members' Gaussians.
        log_variance: added to the predicted log of the variance; the fit sets it to that of a linear regression, so
            that heads start, and their prior is centred, at a sensible noise level in the units of the targets.
        max_log_variance: predicted logs of variances stay within plus and minus this.
    """

    kind: ClassVar[str] = "regression"
    has_closed_form: ClassVar[bool] = True
    max_log_variance: ClassVar[float] = 30.0

    noise: float | None = None
    log_variance: float = 0.0
    tail: float | None = None

    @classmethod
    def from_targets(cls, targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
        """Check floats `(N,)` or `(N, 1)`; of several columns, each is a target of `Multiregression`."""
        if targets.shape == (samples, 1):
            targets = targets.squeeze(1)
        if targets.ndim == 2:
            return Multiregression.from_targets(targets, samples, recipe, classes)
        check_target_shape(targets, samples)
        check_values("targets", targets)
        check_spread(targets)
        if isinstance(recipe.noise, tuple):
            raise DataError(expected("noise", "one number for a single target", f"{len(recipe.noise)}"))
        return targets, cls(recipe.noise)

    @property
    def outputs(self) -> int:
        return 1 if self.noise is not None else 2

    @property
    def compared_outputs(self) -> int:
        """One, the mean: repelling on variances would make the noise arbitrary."""
        return 1

    def gaussian(self, outputs: Float[Tensor, "n B O"]) -> tuple[Float[Tensor, "n B"], Float[Tensor, "n B"]]:
        """Return mean and log-variance of every head."""
        mean = outputs[..., 0]
        if self.noise is not None:
            return mean, torch.full_like(mean, 2 * math.log(self.noise))
        return mean, outputs[..., 1].clamp(-self.max_log_variance, self.max_log_variance) + self.log_variance

    def nll(self, outputs: Float[Tensor, "n B O"], targets: Float[Tensor, " B"]) -> Float[Tensor, " n"]:
        """Compute the mean over the batch of `(log 2 pi v + (target - mean)^2 / v) / 2`, for every head."""
        mean, log_variance = self.gaussian(outputs)
        squared = (targets - mean).square() * torch.exp(-log_variance)
        return 0.5 * (math.log(2 * math.pi) + log_variance + squared).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R O"], on: str) -> Float[Tensor, "n R"]:
        """Return the means."""
        return outputs[..., 0]

    def comparison_space(self, on: str) -> str:
        """Return "logits", the outputs as they are."""
        return "logits"

    def combined(self, outputs: Float[Tensor, "n B O"]) -> Float[Tensor, "B 1"]:
        """Return the mean over heads of their means."""
        return outputs[..., :1].mean(dim=0)

    def predict(self, outputs: Float[Tensor, "n B O"]) -> Prediction:
        mean, log_variance = self.gaussian(outputs.float())
        factors = None if self.tail is None else tail_factors(self.tail).to(mean)
        return RegressionPrediction(mean, log_variance.exp(), factors)

    def answer(self, outputs: Float[Tensor, "n B O"]) -> RegressionAnswer:
        mean, log_variance = self.gaussian(outputs.float())
        prediction = RegressionPrediction(mean, log_variance.exp())  # its tail is none of what is told
        return RegressionAnswer(prediction.mean, prediction.aleatoric, prediction.epistemic, prediction.total)

    def around(
        self,
        middle: Float[Tensor, "B 1"],
        deviations: Float[Tensor, "n B 1"],
        release: Float[Tensor, " B"],
        temperature: float,
    ) -> Float[Tensor, "n B 1"]:
        """Return means, `middle + s deviations`; they have no temperature."""
        return middle + release.unsqueeze(1) * deviations

    def scale_targets(self, targets: Tensor) -> tuple[Regression, Tensor, Tensor, Tensor]:
        """Scale targets to zero mean and unit variance."""
        shift = targets.mean()
        scale = targets.std(correction=0)
        scale = torch.where(scale > 0, scale, torch.ones((), device=targets.device)).float()
        scaled = ((targets - shift) / scale).float()
        release_pages(targets)
        task = self if self.noise is None else replace(self, noise=self.noise / float(scale))
        return task, scaled, shift.float(), scale

    @torch.no_grad()
    def warm_start(
        self, heads: Heads, features: Tensor, prepare: Callable[[Tensor], Tensor], targets: Float[Tensor, " N"]
    ) -> Regression:
        """Move the means of linear heads from where they are to the nearest least-squares solution.

        Where the features vary, all heads then fit the targets as well as any; where they do not, each keeps its
        random start. Without it, the first thing a predicted variance learns is the error of a random mean, which it
        takes thousands of steps to forget. Predicted variances start at what linear regression leaves over.
        """
        y = targets.cpu().double()
        gram = torch.zeros(heads.features, heads.features, dtype=torch.float64)
        cross = torch.zeros(heads.features, dtype=torch.float64)
        done = 0
        for part in row_chunks(features):
            x = prepare(part).cpu().double()
            gram += x.T @ x / len(y)
            cross += x.T @ y[done : done + len(x)] / len(y)
            done += len(x)
        ridged = gram + RIDGE * torch.eye(heads.features, dtype=torch.float64)
        solution = torch.linalg.solve(ridged, cross)
        if len(heads.weights) == 1:
            means = heads.weight[:, 0].cpu().double()
            heads.weight[:, 0] += torch.linalg.solve(ridged, cross.unsqueeze(1) - gram @ means.T).T.to(heads.weight)
            heads.bias[:, 0] = 0.0
        left = y.square().mean() - 2 * cross @ solution + solution @ gram @ solution
        return replace(self, log_variance=float(left.clamp_min(1e-8).log()))

    def in_original_units(self, fitted: Regression, scale: Tensor) -> Regression:
        return replace(self, log_variance=fitted.log_variance + 2 * math.log(float(scale)))

    def fold_targets(self, heads: Heads, shift: Tensor, scale: Tensor) -> None:
        heads.fold_targets(shift, scale)

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n O S"], batch: int, probabilities: Float[Tensor, "n O R"] | None
    ) -> InPlaceLikelihood:
        return Gaussian(outputs, batch, self)
