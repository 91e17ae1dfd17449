"""What a prediction holds, and how its uncertainty splits into aleatoric and epistemic parts.

The pure functions work on member log-probabilities `(n, B, K)`, so that extreme logits stay finite; the two frozen
classes are thin objects around them. Entropies are in nats.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import SupportsIndex, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import DataError, expected


def mean_log_probs(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, "B K"]:
    """Logarithm of the mean member probability: `logsumexp_i log p_i - log n`."""
    return torch.logsumexp(log_probs, dim=0) - math.log(log_probs.shape[0])


def entropy(log_probs: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """`-sum_k p_k log p_k`, with `0 log 0 = 0`."""
    return -_weighted(log_probs.exp(), log_probs).sum(dim=-1)


def expected_entropy(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Aleatoric uncertainty: the mean over members of their entropies, the doubt they share.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits.
    """
    return entropy(log_probs).mean(dim=0)


def mutual_information(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Epistemic uncertainty: `mean_i KL(p_i || mean p)`, how far members disagree; between 0 and log n.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits. The divergence form is used because the
    difference of entropies goes negative in float32.
    """
    log_mean = mean_log_probs(log_probs)
    divergence = _weighted(log_probs.exp(), log_probs - log_mean).sum(dim=-1).mean(dim=0)
    return divergence.clamp(0.0, math.log(log_probs.shape[0]))


def uncertainties(log_probs: Float[Tensor, "n B K"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """`expected_entropy` and `mutual_information`, both from one pass over a few samples at a time.

    What is computed on the way stays in the processor's cache, and needs little memory however many classes there are.
    """
    n, _, classes = log_probs.shape
    few = FEW if log_probs.device.type == "cpu" else MANY
    found = []
    for part in log_probs.split(max(few // max(n * classes, 1), 1), dim=1):
        probs = part.exp()
        entropies = -_weighted(probs, part).sum(dim=-1)
        divergences = _weighted(probs, part - mean_log_probs(part)).sum(dim=-1)
        found.append((entropies.mean(dim=0), divergences.mean(dim=0).clamp(0.0, math.log(n))))
    aleatoric, epistemic = zip(*found, strict=True)
    return torch.cat(aleatoric), torch.cat(epistemic)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """`weights * values`, where a zero weight gives zero even if the value is infinite or NaN."""
    return weights * values.nan_to_num()


FEW, MANY = 2**18, 2**26
"""Numbers that are looked at a time on the way to uncertainties, by a CPU and by a GPU."""

P = TypeVar("P", bound="Prediction")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """A batch of predictions with its uncertainty; batch axis first in every property.

    `total == aleatoric + epistemic`, always. Slicing (`prediction[:8]`, `prediction[mask]`) keeps the type.
    """

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """Uncertainty that all members share: the input is ambiguous."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """Uncertainty from disagreement: the model has seen nothing like this input."""

    @property
    def total(self) -> Tensor:
        """`aleatoric + epistemic`."""
        return self.aleatoric + self.epistemic

    @property
    def score(self) -> Tensor:
        """How far out-of-distribution each sample is, `(B,)`; larger is further.

        The epistemic uncertainty; the total uncertainty of a single member, which has nothing to disagree with.
        """
        return self.epistemic if self.members > 1 else self.total

    @abstractmethod
    def log_likelihood(self, targets: Tensor) -> Tensor:
        """Log of the predictive density of each target, shape `(B,)`."""

    def __len__(self) -> int:
        return getattr(self, fields(self)[0].name).shape[1]

    @property
    def members(self) -> int:
        """Number of members."""
        return getattr(self, fields(self)[0].name).shape[0]

    def __getitem__(self: P, index: SupportsIndex | slice | Tensor | Sequence[int]) -> P:
        """The predictions of some of the samples, as a prediction of the same type (of one sample for an integer)."""
        if (
            not isinstance(index, slice)
            and not (isinstance(index, Tensor) and index.ndim)
            and hasattr(index, "__index__")
        ):
            at = operator.index(index)  # pyright: ignore[reportArgumentType]
            if not -len(self) <= at < len(self):
                raise IndexError(f"sample {at} of a prediction of {len(self)}")
            index = slice(at, at + 1 or None)
        return type(self)(*(getattr(self, field.name)[:, index] for field in fields(self)))

    def cpu(self: P) -> P:
        """The same prediction on the CPU."""
        return type(self)(*(getattr(self, field.name).cpu() for field in fields(self)))

    @staticmethod
    def cat(parts: Sequence[P]) -> P:
        """One prediction from those of consecutive batches."""
        if not parts:
            raise DataError(expected("parts", "at least one prediction", "none"))
        kind = type(parts[0])
        if len(parts) == 1:
            return parts[0]
        return kind(*(torch.cat([getattr(part, f.name) for part in parts], dim=1) for f in fields(kind)))

    def __repr__(self) -> str:
        size = f"{type(self).__name__}({len(self)} sample{'' if len(self) == 1 else 's'}, {self.members} members"
        if not len(self):
            return size + ")"
        return f"{size}, mean aleatoric {self.aleatoric.mean():.4g}, mean epistemic {self.epistemic.mean():.4g})"


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction(Prediction):
    """Class probabilities of an ensemble.

    Examples:
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

    def log_likelihood(self, targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """`log mean_i p_i(target)`, floored at log 1e-12."""
        picked = self._once(mean_log_probs).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return picked.clamp_min(math.log(1e-12))

    def _once(self, function: Callable[[Tensor], T]) -> T:
        """What a function makes of the members, computed once, unless gradients are to flow through it."""
        if self.log_probs.requires_grad:
            return function(self.log_probs)
        kept, name = vars(self), f"_{function.__name__}"  # behind the frozen surface
        if name not in kept:
            kept[name] = function(self.log_probs)
        return kept[name]


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction(Prediction):
    """A mixture of Gaussians, one of each member. All three uncertainties are variances.

    Attributes:
        means: mean of every member, `(n, B)`.
        variances: variance of every member, `(n, B)`.
    """

    means: Float[Tensor, "n B"]
    variances: Float[Tensor, "n B"]

    @property
    def mean(self) -> Float[Tensor, " B"]:
        """Mean of the mixture."""
        return self.means.mean(dim=0)

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Mean variance of the members."""
        return self.variances.mean(dim=0)

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Variance of the members' means."""
        return (self.means - self.mean).square().mean(dim=0)

    @property
    def std(self) -> Float[Tensor, " B"]:
        """Standard deviation of the mixture, `sqrt(total)`."""
        return self.total.sqrt()

    def log_likelihood(self, targets: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """`log mean_i N(target; mean_i, variance_i)`."""
        normal = -0.5 * ((targets - self.means).square() / self.variances + (2 * math.pi * self.variances).log())
        return normal.logsumexp(dim=0) - math.log(self.means.shape[0])
