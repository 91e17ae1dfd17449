"""The contract of a task: what the outputs of a head mean. A new kind of output is one new file that keeps it.

The fit, the loop, the closed form, the ensemble and the checkpoint know tasks only through this class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.particles.centre import Centre, calibration_cost
from repulse.prediction import Prediction, RegressionAnswer
from repulse.recipe import Recipe

if TYPE_CHECKING:
    from repulse.particles.heads import Heads

InPlaceLikelihood = Callable[[np.ndarray], float]
"""Replaces the outputs of a batch by the gradient of their mean `nll`, given targets; returns that mean over heads."""


@dataclass(frozen=True)
class Task(ABC):
    """What outputs `(n, B, O)` of n heads mean; subclasses are frozen dataclasses whose fields are saved.

    Attributes:
        kind: name of the task in a recipe and in saved ensembles.
        target_dtype: type of the targets, or None for the type of the features.
        has_closed_form: whether `in_place_likelihood` is there, so that linear heads can be fitted without autograd.
        answers: the `NamedTuple` that a deployed ensemble returns; its fields are the outputs of an export.
    """

    kind: ClassVar[str]
    target_dtype: ClassVar[torch.dtype | None] = None
    has_closed_form: ClassVar[bool] = False
    answers: ClassVar[type[Any]] = RegressionAnswer

    @classmethod
    @abstractmethod
    def from_targets(cls, targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
        """Check the targets of a fit, and return them in the shape that `nll` takes, with their task."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of a head."""

    @property
    def class_count(self) -> int | None:
        """Number of classes, or None where there are none."""
        return None

    @property
    def compared_outputs(self) -> int:
        """Number of outputs, the first ones, that heads are compared on, and that the network's last layer has too."""
        return self.outputs

    @abstractmethod
    def nll(self, outputs: Float[Tensor, "n B O"], targets: Tensor) -> Float[Tensor, " n"]:
        """Compute the negative log-likelihood of each head, mean over the batch."""

    @abstractmethod
    def compared(self, outputs: Float[Tensor, "n R O"], on: str) -> Float[Tensor, "n R ..."]:
        """Return what the kernel sees of the outputs, in the space `on` of the recipe."""

    def comparison_space(self, on: str) -> str:
        """Return the space in which `compared` maps its first `compared_outputs`, as `forces.in_space` names it."""
        return on

    @abstractmethod
    def combined(self, outputs: Float[Tensor, "n B O"]) -> Float[Tensor, "B o"]:
        """Return the one output of all heads that takes the place of the network's own."""

    @abstractmethod
    def predict(self, outputs: Float[Tensor, "n B O"]) -> Prediction:
        """Return the prediction with its uncertainty."""

    def answer(self, outputs: Float[Tensor, "n B O"]) -> Any:
        """Return what a deployed ensemble tells of each sample, as `answers`: properties of the prediction by name.

        It is traced for exports, so nothing may depend on values; a task whose predictions do look at them has its own.
        """
        prediction = self.predict(outputs)
        return self.answers(*(getattr(prediction, name) for name in self.answers._fields))

    def recentred(
        self,
        outputs: Float[Tensor, "n B O"],
        network: Float[Tensor, "B o"] | None,
        release: Float[Tensor, " B"],
        centre: Centre,
    ) -> Float[Tensor, "n B O"]:
        """Put the outputs of heads around a centre: `z_i` of `particles/centre.py`; predicted variances stay."""
        first, rest = outputs[..., : self.compared_outputs], outputs[..., self.compared_outputs :]
        share, gain = self.share_and_gain(centre, outputs)
        mean = first.mean(dim=0)
        middle = mean if network is None else share * network + (1 - share) * mean
        placed = self.around(middle, gain * (first - mean), release, centre.temperature)
        return torch.cat([placed, rest], dim=-1) if rest.shape[-1] else placed

    def share_and_gain(self, centre: Centre, like: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """Return which share of the centre is the network, and the factor on deviations: numbers, or one per output."""
        return centre.alpha, centre.gain

    def around(
        self,
        middle: Float[Tensor, "B o"],
        deviations: Float[Tensor, "n B o"],
        release: Float[Tensor, " B"],
        temperature: float,
    ) -> Float[Tensor, "n B o"]:
        """Put deviations around a middle that is let go of: `middle / (T s) + deviations`, for logits."""
        return middle / (temperature * release).unsqueeze(1) + deviations

    def calibration_cost(self, outputs: Float[Tensor, "n B O"], targets: Tensor) -> float:
        """Return what the choice of a centre minimises, in nats over all samples: `calibration_cost`, for logits."""
        log_probs = outputs.transpose(1, 2).log_softmax(dim=1)  # with samples last in memory: ten times as fast
        return calibration_cost(log_probs.transpose(1, 2), targets)

    def scale_targets(self, targets: Tensor) -> tuple[Task, Tensor, Tensor, Tensor]:
        """Return the task and the targets in the units of the fit, with the shift and the scale of these units."""
        return self, targets, torch.zeros((), device=targets.device), torch.ones((), device=targets.device)

    def warm_start(self, heads: Heads, features: Tensor, prepare: Callable[[Tensor], Tensor], targets: Tensor) -> Task:
        """Move freshly drawn heads to a better start, if there is one; return the task to fit them with."""
        return self

    def in_original_units(self, fitted: Any, scale: Tensor) -> Task:
        """Return this task with what `warm_start` added to `fitted`, its twin in the units of the fit."""
        return self

    def fold_targets(self, heads: Heads, shift: Tensor, scale: Tensor) -> None:  # noqa: B027 (most have nothing to do)
        """Make heads that were fitted on scaled targets predict the targets themselves."""

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n O S"], batch: int, probabilities: Float[Tensor, "n O R"] | None
    ) -> InPlaceLikelihood:
        """Return the closed form of the gradient of `nll`, for outputs with samples last.

        Args:
            outputs: the memory in which outputs will come; the first `batch` samples are the training batch.
            batch: size of the training batch.
            probabilities: where to write the probabilities of the other samples, if they are wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form.")


def target_hint(targets: Tensor) -> str:
    """Return what to do about targets in several columns, as the end of an error message."""
    if targets.ndim != 2:
        return ""
    if targets.shape[1] == 1:
        return "; for a column use `targets.squeeze(1)`"
    one_hot = bool((targets.sum(dim=1) == 1).all())
    several = "; for several labels at once say `Recipe(task='multilabel')`"
    return "; for one-hot targets use `targets.argmax(dim=1)`" if one_hot else several


def check_target_shape(targets: Tensor, samples: int) -> None:
    """Refuse targets that are not one number for each sample."""
    if targets.shape != (samples,):
        wanted = f"of shape ({samples},), one for each sample{target_hint(targets)}"
        raise DataError(expected("targets", wanted, f"shape {tuple(targets.shape)}"))
