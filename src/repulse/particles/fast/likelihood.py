"""Gradient of the likelihood in the outputs of heads in closed form, in place and without autograd.

Outputs come as `(n, O, S)`, samples last, of which the first B are the training batch. What is as small as one number a
head and sample is done by numpy, whose calls cost a fraction of those of torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from repulse.particles.tasks.multiregression import Multiregression
    from repulse.particles.tasks.regression import Regression


class CrossEntropy:
    """Turns logits into the gradient of `Classification.nll`, `(softmax - onehot) / B`.

    Args:
        outputs: the memory in which logits will come.
        batch: B.
        elsewhere: where the probabilities of the other samples are wanted, if they are; one softmax gives both.
    """

    def __init__(self, outputs: Float[Tensor, "n K S"], batch: int, elsewhere: Float[Tensor, "n K R"] | None) -> None:
        n, classes, samples = outputs.shape
        self.all = outputs if elsewhere is not None else outputs[..., :batch]
        self.near, self.far, self.elsewhere = outputs[..., :batch], outputs[..., batch:], elsewhere
        self.highest, self.total = (outputs.new_empty(n, 1, self.all.shape[2]) for _ in range(2))
        self.total_near, self.total_far = self.total.tensor_split([batch], dim=2)
        self.totals, self.flat = self.total.numpy(), outputs.numpy().reshape(-1)
        self.numerators = np.ones(self.all.shape[2], dtype=self.flat.dtype)
        self.numerators[:batch] = 1 / batch
        self.rows = samples
        self.first = classes * samples * np.arange(n)[:, None] + np.arange(batch)  # where the logits of class 0 are

    def __call__(self, targets: np.ndarray) -> float:
        """Replace outputs by the gradient; returns the mean over heads of what it is the gradient of."""
        batch = len(targets)
        at = self.first + self.rows * targets
        torch.amax(self.all, 1, keepdim=True, out=self.highest)
        self.all -= self.highest
        chosen = self.flat.take(at)
        self.all.exp_()
        torch.sum(self.all, 1, keepdim=True, out=self.total)
        nll = float(np.add.reduce(np.log(self.totals[:, 0, :batch]) - chosen, axis=None)) / at.size
        np.divide(self.numerators, self.totals, out=self.totals)
        self.near *= self.total_near
        self.flat[at] -= 1 / batch
        if self.elsewhere is not None:
            torch.mul(self.far, self.total_far, out=self.elsewhere)
        return nll


class Gaussian:
    """Turns means and logs of variances into the gradient of `Regression.nll`."""

    def __init__(self, outputs: Float[Tensor, "n O S"], batch: int, task: Regression) -> None:
        self.near, self.task = outputs[..., :batch], task

    def __call__(self, targets: np.ndarray) -> float:
        """Replace outputs by the gradient; returns the mean over heads of what it is the gradient of."""
        near, batch = self.near, len(targets)
        mean, log_variance = self.task.gaussian(near.transpose(1, 2))
        error, precision = mean - torch.from_numpy(targets), torch.exp(-log_variance)
        squared = error.square() * precision
        nll = 0.5 * (math.log(2 * math.pi) + float((log_variance + squared).mean()))
        if self.task.noise is None:
            inside = near[:, 1].abs() <= self.task.max_log_variance
            near[:, 1] = (1 - squared) * inside / (2 * batch)
        near[:, 0] = error * precision / batch
        return nll


class SoftCrossEntropy:
    """Turns logits into the gradient of the cross-entropy with class probabilities as targets, `(softmax - t) / B`."""

    def __init__(self, outputs: Float[Tensor, "n K S"], batch: int, elsewhere: Float[Tensor, "n K R"] | None) -> None:
        self.near, self.far, self.elsewhere = outputs[..., :batch], outputs[..., batch:], elsewhere

    def __call__(self, targets: np.ndarray) -> float:
        """Replace outputs by the gradient; returns the mean over heads of what it is the gradient of."""
        near, batch = self.near, len(targets)
        wanted = torch.from_numpy(targets).T.to(near)
        log_probs = near.log_softmax(dim=1)
        nll = -float((wanted * log_probs).sum()) / (len(near) * batch)
        torch.mul(log_probs.exp_().sub_(wanted), 1 / batch, out=near)
        if self.elsewhere is not None:
            torch.softmax(self.far, 1, out=self.elsewhere)
        return nll


class Bernoullis:
    """Turns logits of labels into the gradient of `Multilabel.nll`, `(sigmoid - y) / B`, zero where y is unknown."""

    def __init__(self, outputs: Float[Tensor, "n K S"], batch: int) -> None:
        self.near = outputs[..., :batch]

    def __call__(self, targets: np.ndarray) -> float:
        """Replace outputs by the gradient; returns the mean over heads of what it is the gradient of."""
        near, batch = self.near, len(targets)
        wanted = torch.from_numpy(targets).T.to(near)
        known = ~wanted.isnan()
        wanted = torch.where(known, wanted, torch.zeros_like(wanted))
        each = torch.nn.functional.softplus(near, threshold=50) - near * wanted
        nll = float((each * known).sum()) / (len(near) * batch)
        torch.mul(near.sigmoid().sub_(wanted), known.to(near) / batch, out=near)
        return nll


class Gaussians:
    """Turns means and logs of variances of several targets into the gradient of `Multiregression.nll`."""

    def __init__(self, outputs: Float[Tensor, "n O S"], batch: int, task: Multiregression) -> None:
        self.near, self.task = outputs[..., :batch], task

    def __call__(self, targets: np.ndarray) -> float:
        """Replace outputs by the gradient; returns the mean over heads of what it is the gradient of."""
        near, batch, count = self.near, len(targets), self.task.targets
        means, log_variances = (part.transpose(1, 2) for part in self.task.gaussian(near.transpose(1, 2)))
        error, precision = means - torch.from_numpy(targets).T, torch.exp(-log_variances)
        squared = error.square() * precision
        whole = float((log_variances + squared).sum()) / (len(near) * batch)
        if self.task.noise is None:
            inside = near[:, count:].abs() <= self.task.max_log_variance
            near[:, count:] = (1 - squared) * inside / (2 * batch)
        near[:, :count] = error * precision / batch
        return 0.5 * (math.log(2 * math.pi) * count + whole)
