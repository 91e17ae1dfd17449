"""A step of linear heads in closed form: one product forward, one back, no graph.

The training batch and, if heads repel there, the repulsion batch are stacked as rows of one matrix. One product gives
all outputs, `(n O, B + R)`, samples last; likelihood and repulsion turn their columns into gradients in place; a second
product takes these back to the weights. As all heads see the same features, averaging forces over heads (svgd) commutes
with that product, so it is done on outputs, where it is cheap. Everything large is allocated once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repulse.particles.fast.repulsion import FunctionSpaceRepulsion, RepulsionResult
from repulse.particles.fit_data import FitData, StepDiagnostics, StepResult
from repulse.particles.forces import mix, prior_factor
from repulse.particles.heads import Heads, Particles
from repulse.particles.kernels import evaluate
from repulse.particles.rules import DIRECTIONS
from repulse.recipe import Recipe

GROUP_ELEMENTS = 2**21
"""Number of weights updated at once: 8 MB, so that Adam finds their gradient in the processor's cache."""

WeightsAndBiases = tuple[Tensor, Tensor]
"""Something about all weights, `(n O, d)`, and the same about all biases, `(n O)`."""


def has_closed_form(particles: Particles) -> bool:
    """Check whether `ClosedFormStep` can fit these particles."""
    return (
        type(particles) is Heads
        and particles.task.has_closed_form
        and len(particles.weights) == 1
        and all(p.device.type == "cpu" and p.is_contiguous() for p in particles.parameters())
        and particles.weight.dtype == particles.bias.dtype
        and particles.weight.dtype in (torch.float32, torch.float64)
    )


@dataclass(frozen=True)
class HeadGroup:
    """Some heads, as rows of the tensors of all heads, for the backward product and Adam."""

    rows: slice
    forces: Float[Tensor, "g S"]
    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


class ClosedFormStep:
    """Takes steps of linear heads, in place.

    Args:
        heads: to fit.
        data: what to fit them to.
        recipe: how.
    """

    @torch.no_grad()
    def __init__(self, heads: Heads, data: FitData, recipe: Recipe) -> None:
        self.heads, self.data, self.recipe = heads, data, recipe
        n, outputs, d = heads.weight.shape
        self.batch = min(recipe.batch_size, len(data.x))
        repels = n > 1 and recipe.strength != 0 and recipe.space != "none"
        self.repels_parameters = repels and recipe.space == "parameters"
        self.mixes = repels and recipe.rule == "svgd"
        self.decay = 1 / (recipe.prior_std**2 * data.size)  # 1/N is exact relative to a mean log-likelihood
        repels_functions = repels and recipe.space == "function"
        away = 0
        if data.repulsion is not None and (repels_functions or recipe.prior == "function"):
            away = min(recipe.repulsion_batch_size, len(data.repulsion))

        weight, bias = heads.weight.detach(), heads.bias.detach()
        self.theta: WeightsAndBiases = weight.view(n * outputs, d), bias.view(n * outputs)
        self.x = weight.new_empty(self.batch + away, d)
        self.columns, self.biases = self.x.T, self.theta[1].unsqueeze(1)
        self.x_near, self.x_far = self.x.split([self.batch, away])
        self.outputs = weight.new_empty(n * outputs, len(self.x))
        stacked = self.outputs.view(n, outputs, -1)
        self.near, self.far = stacked.split([self.batch, away], dim=2)
        # Outputs that are not compared (variances) are not repelled, and so the forces on them must be zero.
        self.compared, self.not_compared = self.far.tensor_split([data.task.compared_outputs], dim=1)
        on = data.task.comparison_space(recipe.on)
        shared = repels_functions and on == "probabilities"
        self.function_repulsion = (
            FunctionSpaceRepulsion(self.compared, recipe, on, already_in_space=shared) if repels_functions else None
        )
        probabilities = self.function_repulsion.x if shared and self.function_repulsion else None
        self.likelihood = data.task.in_place_likelihood(stacked, self.batch, probabilities)
        self.y = data.y.detach().numpy()
        self.x_back = self.x if repels_functions else self.x_near
        self.groups = self._groups()
        self.count = weight.new_zeros((), dtype=torch.float32)
        self.counted = self.count.numpy()

    def _groups(self) -> list[HeadGroup]:
        n, outputs, d = self.heads.weight.shape
        size = outputs * max(1, GROUP_ELEMENTS // (outputs * d))
        moments = [[torch.zeros_like(t) for t in self.theta] for _ in range(2)]
        room = [torch.empty_like(t[:size]) for t in self.theta]
        groups = []
        for first in range(0, n * outputs, size):
            rows = slice(first, first + size)
            theta, means, squares = ([t[rows] for t in ts] for ts in (self.theta, *moments))
            gradients = [t[: len(theta[1])] for t in room]
            groups.append(HeadGroup(rows, self.outputs[rows, : len(self.x_back)], theta, gradients, means, squares))
        return groups

    @np.errstate(all="ignore")  # a fit that diverges is noticed by its loss
    def step(self, batch: Tensor, away: Tensor | None, lr: float, strength: float, *, measure: bool) -> StepResult:
        """Take a step of Adam on the samples with the indices `batch` and the repulsion samples with `away`."""
        data = self.data
        self._gather(data.x, batch, self.x_near)
        if data.repulsion is not None and away is not None and len(self.x_far):
            self._gather(data.repulsion, away, self.x_far)
        self._forward()
        outputs = self._copies(away) if measure else None

        driving = self._function_prior() if self.recipe.prior == "function" else None
        nll = self.likelihood(self.y.take(batch.numpy(), axis=0))
        result, repulsive = self._repel(strength)
        if self.mixes and result is not None:
            driving = self._mix(result.k.mean(dim=0) if result.k.ndim == 3 else result.k, driving)
        decay = 0.0 if driving is not None else self.decay
        ratio = self._ratio(driving, repulsive, decay) if measure and result is not None else None
        self._descend([pair for pair in (driving, repulsive) if pair is not None], lr, decay)

        repulsion = None if result is None else result.repulsion
        if outputs is None:
            return StepResult(nll, repulsion, None)
        bandwidth, k = (None, None) if result is None else (result.bandwidth, result.k)
        return StepResult(nll, repulsion, StepDiagnostics(ratio, bandwidth, k, *outputs))

    def _forward(self) -> None:
        torch.addmm(self.biases, self.theta[0], self.columns, out=self.outputs)

    @staticmethod
    def _gather(features: Tensor, rows: Tensor, out: Tensor) -> None:
        if features.dtype == out.dtype:
            torch.index_select(features, 0, rows, out=out)
        else:
            out.copy_(features[rows])

    @torch.no_grad()
    def _copies(self, away: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Copy the outputs `(n, B, O)` on both batches, before they are overwritten."""
        near, far = (part.transpose(1, 2).clone() for part in (self.near, self.far))
        if away is None or self.data.repulsion is None:
            return near, None
        if not len(self.x_far):  # seen for the record only
            far = self.heads(self.data.repulsion[away])
        return near, far

    def _repel(self, strength: float) -> tuple[RepulsionResult | None, WeightsAndBiases | None]:
        """Write forces on the repulsion batch in place of its outputs, or return forces on the parameters."""
        if self.function_repulsion is not None:
            result = self.function_repulsion(strength)
            self.not_compared.zero_()
            return result, None
        if not self.repels_parameters:
            return None, None
        recipe, (weight, bias) = self.recipe, self.theta
        pairs = evaluate(self.heads.vectors().detach(), recipe.kernel, recipe.bandwidth)
        direction = DIRECTIONS[recipe.rule](pairs).mul_(-strength)
        parts = direction.split([weight.numel() // pairs.count, bias.numel() // pairs.count], dim=1)
        forces = parts[0].reshape(weight.shape), parts[1].reshape(bias.shape)
        return RepulsionResult(float(pairs.k.sum(dim=-1).log().sum()), pairs.bandwidth, pairs.k), forces

    def _function_prior(self) -> WeightsAndBiases:
        """Compute the gradient of the Gaussian-process prior, at the repulsion batch if there is one."""
        away = len(self.x_far)
        x, outputs = (self.x_far, self.outputs[:, self.batch :]) if away else (self.x, self.outputs)
        solved = torch.cholesky_solve(outputs.T, prior_factor(x, self.recipe.prior_std)) / self.data.size
        return solved.T @ x, solved.sum(dim=0)

    def _mix(self, k: Float[Tensor, "n n"], driving: WeightsAndBiases | None) -> WeightsAndBiases:
        """Average driving forces over heads: those on outputs in place, and the prior, which is returned."""
        n, outputs, d = self.heads.weight.shape
        self.near.copy_(mix(self.near, k))
        weight, bias = driving if driving is not None else (self.decay * t for t in self.theta)
        weight, bias = mix(weight.view(n, outputs, d), k), mix(bias.view(n, outputs), k)
        return weight.flatten(0, 1), bias.flatten()

    def _descend(self, more: list[WeightsAndBiases], lr: float, decay: float) -> None:
        """Take the forces back to the parameters, add what acts on these directly, and step."""
        self.counted += 1
        for group in self.groups:
            weight, bias = group.gradients
            self._back(group)
            for pair in more:
                weight += pair[0][group.rows]
                bias += pair[1][group.rows]
            self._adam(group, lr, decay)

    def _back(self, group: HeadGroup) -> None:
        weight, bias = group.gradients
        torch.mm(group.forces, self.x_back, out=weight)
        torch.sum(group.forces, dim=1, out=bias)

    def _adam(self, group: HeadGroup, lr: float, decay: float) -> None:
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            group.parameters,
            group.gradients,
            group.means,
            group.squares,
            [],
            [self.count, self.count],
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=decay,  # the Gaussian prior on the weights
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _ratio(self, driving: WeightsAndBiases | None, repulsive: WeightsAndBiases | None, decay: float) -> float:
        """Compute the size of the repulsive part of the gradient relative to the driving part."""
        squares = [0.0, 0.0]
        x, x_away = self.x_back.tensor_split([self.batch])
        for group in self.groups:
            near, far = group.forces.tensor_split([self.batch], dim=1)
            drive = near @ x + decay * group.parameters[0], near.sum(dim=1) + decay * group.parameters[1]
            repel = far @ x_away, far.sum(dim=1)
            for side, (parts, pair) in enumerate(((drive, driving), (repel, repulsive))):
                for i, part in enumerate(parts):
                    whole = part if pair is None else part + pair[i][group.rows]
                    squares[side] += float(torch.linalg.vector_norm(whole)) ** 2
        return math.sqrt(squares[1] / max(squares[0], 1e-60))
