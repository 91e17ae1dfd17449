"""One class out of several for each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from repulse._mapped import row_chunks
from repulse.errors import DataError, expected
from repulse.particles.fast.likelihood import CrossEntropy, SoftCrossEntropy
from repulse.particles.forces import in_space
from repulse.particles.tasks.task import InPlaceLikelihood, Task, check_target_shape
from repulse.prediction import ClassAnswer, ClassPrediction, Prediction, mean_log_probs
from repulse.recipe import Recipe


@dataclass(frozen=True)
class Classification(Task):
    """Outputs are the logits of `classes` classes."""

    kind: ClassVar[str] = "classification"
    target_dtype: ClassVar[torch.dtype | None] = torch.int64
    has_closed_form: ClassVar[bool] = True
    answers: ClassVar[type[Any]] = ClassAnswer

    classes: int

    @classmethod
    def from_targets(cls, targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
        """Check class indices `(N,)`, of at least two classes, or probabilities of classes `(N, K)`."""
        if targets.ndim == 2 and targets.is_floating_point() and _are_probabilities(targets):
            if len(targets) != samples or targets.shape[1] != (classes or targets.shape[1]) or targets.shape[1] < 2:
                wanted = f"of shape ({samples}, {classes or 'classes'}), probabilities of classes"
                raise DataError(expected("targets", wanted, f"shape {tuple(targets.shape)}"))
            return targets, SoftClassification(targets.shape[1])
        check_target_shape(targets, samples)
        if targets.is_floating_point() or targets.dtype == torch.bool or targets.is_complex():
            raise DataError(expected("targets", "integer class indices for classification", f"{targets.dtype}"))
        ends = [(int(part.min()), int(part.max())) for part in row_chunks(targets)]
        low, high = min(least for least, _ in ends), max(most for _, most in ends)
        if low < 0 or (classes is not None and high >= classes):
            wanted = f"between 0 and {classes - 1}" if classes is not None else "zero or larger"
            raise DataError(expected("targets", wanted, f"values from {low} to {high}"))
        if low == high:
            raise DataError(expected("targets", "of at least two classes", f"only class {low}"))
        return targets, cls(classes if classes is not None else high + 1)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def class_count(self) -> int:
        return self.classes

    def nll(self, outputs: Float[Tensor, "n B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " n"]:
        """Compute the mean over the batch of `-log softmax(outputs)[target]`, for every head."""
        n, batch, classes = outputs.shape
        repeated = targets.expand(n, batch).reshape(-1)
        return F.cross_entropy(outputs.reshape(-1, classes), repeated, reduction="none").view(n, batch).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R K"], on: str) -> Float[Tensor, "n R K"]:
        """Return all outputs, mapped to the space `on`."""
        return in_space(outputs, on)

    def combined(self, outputs: Float[Tensor, "n B K"]) -> Float[Tensor, "B K"]:
        """Return the log of the mean class probabilities."""
        return mean_log_probs(outputs.log_softmax(dim=-1))

    def predict(self, outputs: Float[Tensor, "n B K"]) -> Prediction:
        outputs = outputs.float()
        if outputs.stride(-1) > outputs.stride(-2):  # samples last in memory, where softmax is many times faster
            return ClassPrediction(outputs.mT.log_softmax(dim=-2).mT)
        return ClassPrediction(outputs.log_softmax(dim=-1))

    def answer(self, outputs: Float[Tensor, "n B K"]) -> ClassAnswer:
        return ClassAnswer.of(outputs.float())

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n K S"], batch: int, probabilities: Float[Tensor, "n K R"] | None
    ) -> InPlaceLikelihood:
        return CrossEntropy(outputs, batch, probabilities)


@dataclass(frozen=True)
class SoftClassification(Classification):
    """A classification that is fitted to a probability of each class, not to classes: several opinions, or a teacher.

    Only the fit knows the difference: what is fitted is a `Classification`.
    """

    target_dtype: ClassVar[torch.dtype | None] = torch.float32

    def nll(self, outputs: Float[Tensor, "n B K"], targets: Float[Tensor, "B K"]) -> Float[Tensor, " n"]:
        """Compute the mean over the batch of `-sum_k target_k log softmax(outputs)_k`, for every head."""
        return -(targets * outputs.log_softmax(dim=-1)).sum(dim=2).mean(dim=1)

    def in_original_units(self, fitted: Any, scale: Tensor) -> Task:
        return Classification(self.classes)

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n K S"], batch: int, probabilities: Float[Tensor, "n K R"] | None
    ) -> InPlaceLikelihood:
        return SoftCrossEntropy(outputs, batch, probabilities)


def _are_probabilities(rows: Float[Tensor, "N K"]) -> bool:
    """Check whether all rows are probabilities that sum to one."""
    parts = ((part >= 0).all() & ((part.double().sum(dim=1) - 1).abs() < 1e-3).all() for part in row_chunks(rows))
    return all(map(bool, parts))
