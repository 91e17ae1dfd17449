"""What a classifier's ensemble predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.prediction.base import Prediction, as_columns
from repulse.prediction.uncertainty import mean_log_probs, uncertainties

if TYPE_CHECKING:
    from matplotlib.figure import Figure


T = TypeVar("T")

SMALLEST = torch.finfo(torch.float32).tiny
"""Probability below which a class has none."""


class ClassAnswer(NamedTuple):
    """What a deployed classifier tells of each sample: `(B, K)`, and three times `(B,)`; see `ClassPrediction`."""

    probs: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor

    @classmethod
    def of(cls, logits: Float[Tensor, "n B K"]) -> ClassAnswer:
        """Compute it from the logits of members in few operations, none of which looks at values."""
        log_probs = logits.mT.log_softmax(dim=1)  # samples last, where it is many times faster for few classes
        shares = log_probs.exp() / len(logits)
        probs = shares.sum(dim=0)
        log_mean = probs.clamp_min(SMALLEST).log()
        aleatoric = -(shares * log_probs).sum(dim=(0, 1))
        epistemic = (shares * (log_probs - log_mean)).sum(dim=(0, 1)).clamp(0.0, math.log(len(logits)))
        return cls(probs.mT, aleatoric, epistemic, aleatoric + epistemic)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction(Prediction):
    """Class probabilities of an ensemble.

    Examples:
        >>> import torch
        >>> agree = ClassPrediction(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]).log())
        >>> [round(float(u), 3) for u in (agree.aleatoric, agree.epistemic)]
        [0.693, 0.0]
        >>> differ = ClassPrediction(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log())
        >>> [round(float(u), 3) for u in (differ.aleatoric, differ.epistemic)]
        [0.0, 0.693]

    Attributes:
        log_probs: log-probabilities of every member, `(n, B, K)`.
    """

    log_probs: Float[Tensor, "n B K"]

    def __post_init__(self) -> None:
        if self.log_probs.numel() and not bool(self.log_probs.max() <= 1e-3):  # nor is NaN
            wanted = "log-probabilities, none above 0 (`logits.log_softmax(dim=-1)`)"
            raise DataError(expected("log_probs", wanted, f"values up to {float(self.log_probs.max()):.3g}"))

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        """Mean member probabilities."""
        return self._once(mean_log_probs).exp()

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Mean entropy of the members, in nats."""
        return self._once(uncertainties)[0].clone()

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Mutual information between class and member, in nats; at most `log n`."""
        return self._once(uncertainties)[1].clone()

    @property
    def labels(self) -> Int[Tensor, " B"]:
        """The most probable class."""
        return self._once(mean_log_probs).argmax(dim=-1)

    @property
    def confidence(self) -> Float[Tensor, " B"]:
        """Probability of the most probable class."""
        return self.probs.amax(dim=-1)

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        labels = self.labels.tolist()
        if class_names is not None:
            if isinstance(class_names, str) or len(class_names) != self.log_probs.shape[-1]:
                wanted = f"{self.log_probs.shape[-1]} strings, one per class"
                raise DataError(expected("class_names", wanted, repr(class_names)[:80]))
            labels = [class_names[label] for label in labels]
        return {"label": labels, **as_columns("confidence", self.confidence)}

    def _panels(self, targets: Tensor | None) -> Figure:
        from repulse._pictures import class_panels

        return class_panels(self.aleatoric, self.epistemic, None if targets is None else self.labels == targets)

    def log_likelihood(self, targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Compute `log mean_i p_i(target)`, floored at log 1e-12."""
        picked = self._once(mean_log_probs).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return picked.clamp_min(math.log(1e-12))

    def _once(self, function: Callable[[Tensor], T]) -> T:
        """Compute a function of the members once and keep it, unless gradients are to flow through it."""
        if self.log_probs.requires_grad:
            return function(self.log_probs)
        kept, name = vars(self), f"_{function.__name__}"  # behind the frozen surface
        if name not in kept:
            kept[name] = function(self.log_probs)
        return kept[name]
