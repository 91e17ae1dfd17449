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
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse._extras import needs
from repulse._html import table
from repulse.errors import DataError, expected

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def mean_log_probs(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, "B K"]:
    """Compute the log of the mean member probability: `logsumexp_i log p_i - log n`."""
    return torch.logsumexp(log_probs, dim=0) - math.log(log_probs.shape[0])


def entropy(log_probs: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """Compute the entropy `-sum_k p_k log p_k`, with `0 log 0 = 0`."""
    return -_weighted(log_probs.exp(), log_probs).sum(dim=-1)


def expected_entropy(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Compute the aleatoric uncertainty: the mean over members of their entropies, the doubt they share.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits.
    """
    return entropy(log_probs).mean(dim=0)


def mutual_information(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Compute the epistemic uncertainty: `mean_i KL(p_i || mean p)`, how far members disagree; from 0 to log n.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits. The divergence form is used because the
    difference of entropies goes negative in float32.
    """
    log_mean = mean_log_probs(log_probs)
    divergence = _weighted(log_probs.exp(), log_probs - log_mean).sum(dim=-1).mean(dim=0)
    return divergence.clamp(0.0, math.log(log_probs.shape[0]))


def uncertainties(log_probs: Float[Tensor, "n B K"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Compute `expected_entropy` and `mutual_information` in one pass over a few samples at once.

    What is computed on the way stays in the processor's cache, and needs little memory however many classes there are.
    """
    if torch.compiler.is_compiling():  # a compiler cuts loops for itself, and sizes may be symbols
        return _uncertainties(log_probs, mean_log_probs(log_probs))
    n, _, classes = log_probs.shape
    few = MAX_ELEMENTS_CPU if log_probs.device.type == "cpu" else MAX_ELEMENTS_GPU
    parts = log_probs.split(max(few // max(n * classes, 1), 1), dim=1)
    found = [_uncertainties(part, mean_log_probs(part)) for part in parts]
    aleatoric, epistemic = zip(*found, strict=True)
    return torch.cat(aleatoric), torch.cat(epistemic)


def _uncertainties(log_probs: Float[Tensor, "n B K"], log_mean: Float[Tensor, "B K"]) -> tuple[Tensor, Tensor]:
    probs = log_probs.exp()
    entropies = -_weighted(probs, log_probs).sum(dim=-1)
    divergences = _weighted(probs, log_probs - log_mean).sum(dim=-1)
    return entropies.mean(dim=0), divergences.mean(dim=0).clamp(0.0, math.log(log_probs.shape[0]))


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Compute `weights * values`, where a zero weight gives zero even if the value is infinite or NaN."""
    return weights * values.nan_to_num()


MAX_ELEMENTS_CPU, MAX_ELEMENTS_GPU = 2**18, 2**26
"""Maximum number of elements processed at once, on a CPU and on a GPU."""

MAX_POINTS = 5000
"""Samples that a picture shows, at most; evenly spaced ones of more."""


def as_columns(name: str, values: Tensor) -> dict[str, np.ndarray]:
    """Return the column of a table or, for several values per sample, one for each, numbered."""
    if values.ndim not in (1, 2):
        got = f"shape {tuple(values.shape)}"
        raise DataError(expected("predictions for a table", "one, or a few, for each sample", got))
    known = values.detach().cpu().numpy()
    return {name: known} if known.ndim == 1 else {f"{name} {k}": known[:, k] for k in range(known.shape[1])}


class ClassAnswer(NamedTuple):
    """What a deployed classifier tells of each sample: `(B, K)`, and three times `(B,)`; see `ClassPrediction`."""

    probs: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor

    @classmethod
    def of(cls, log_probs: Float[Tensor, "n B K"]) -> ClassAnswer:
        """Compute it from the log-probabilities of members, without looking at their values."""
        log_mean = mean_log_probs(log_probs)
        aleatoric, epistemic = _uncertainties(log_probs, log_mean)
        return cls(log_mean.exp(), aleatoric, epistemic, aleatoric + epistemic)


class RegressionAnswer(NamedTuple):
    """What a deployed regression tells of each sample, each `(B,)`; see `RegressionPrediction`."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor


def _is_batched(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 1


P = TypeVar("P", bound="Prediction")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """A batch of predictions with its uncertainty; batch axis first in every property.

    `total == aleatoric + epistemic`, always. Slicing (`prediction[:8]`, `prediction[mask]`) keeps the type.

    Attributes:
        batch_axis: axis of the samples in the fields; the members are on the first, where they are kept.
    """

    batch_axis: ClassVar[int] = 1

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
        """Compute the log of the predictive density of each target, `(B,)`."""

    def __len__(self) -> int:
        return getattr(self, fields(self)[0].name).shape[self.batch_axis]

    @property
    def members(self) -> int:
        """Number of members."""
        return getattr(self, fields(self)[0].name).shape[0]

    def __getitem__(self: P, index: SupportsIndex | slice | Tensor | Sequence[int]) -> P:
        """Return the predictions of some of the samples, in the same type (of one sample for an integer)."""
        if (
            not isinstance(index, slice)
            and not (isinstance(index, Tensor) and index.ndim)
            and hasattr(index, "__index__")
        ):
            at = operator.index(index)  # pyright: ignore[reportArgumentType]
            if not -len(self) <= at < len(self):
                raise IndexError(f"sample {at} of a prediction of {len(self)}")
            index = slice(at, at + 1 or None)
        at = (slice(None),) * self.batch_axis + (index,)
        return type(self)(*(value[at] if _is_batched(value) else value for value in self._values()))

    def cpu(self: P) -> P:
        """Copy the prediction to the CPU."""
        return type(self)(*(value.cpu() if isinstance(value, Tensor) else value for value in self._values()))

    @staticmethod
    def cat(parts: Sequence[P]) -> P:
        """Concatenate the predictions of consecutive batches."""
        if not parts:
            raise DataError(expected("parts", "at least one prediction", "none"))
        kind = type(parts[0])
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._values() for part in kind.aligned(parts)), strict=True)
        axis = kind.batch_axis
        return kind(*(torch.cat(column, dim=axis) if _is_batched(column[0]) else column[0] for column in columns))

    @staticmethod
    def aligned(parts: Sequence[P]) -> Sequence[P]:
        """Return predictions whose other axes are equally long; most are already."""
        return parts

    def _values(self) -> list[Any]:
        """Return the fields: those with several axes have the batch on the second, others belong to all samples."""
        return [getattr(self, field.name) for field in fields(self)]

    def to_frame(self, class_names: Sequence[str] | None = None) -> DataFrame:
        """Return a pandas table with one row per sample: what is predicted, and its uncertainties.

        Args:
            class_names: names of the classes, such as `ensemble.class_names`, to stand in place of their numbers.
        """
        with needs("pandas", extra="files"):
            from pandas import DataFrame

        return DataFrame(self._columns(class_names))

    def plot(self, targets: Tensor | None = None, path: str | Path | None = None) -> Figure:
        """Plot the predictions: classes as a map of both uncertainties, numbers with their intervals.

        Args:
            targets: what was right; mistakes, or the targets themselves, are marked.
            path: where to write the figure, in the format of the suffix.
        """
        from repulse._pictures import save_picture

        if not len(self):
            raise DataError(expected("predictions for a picture", "at least one", "none"))
        if targets is not None and targets.shape != (len(self),):
            got = f"shape {tuple(targets.shape)}"
            raise DataError(expected("targets", f"{len(self)}, one for each sample", got))
        step = -(-len(self) // MAX_POINTS)
        figure = self[::step].cpu()._panels(None if targets is None else targets[::step].cpu())
        if path is not None:
            save_picture(figure, path)
        return figure

    def _panels(self, targets: Tensor | None) -> Figure:
        raise DataError(expected("predictions for a picture", "of classes or of numbers", type(self).__name__))

    def _columns(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the columns of a table: those of the kind of prediction, and the three uncertainties."""
        found = self._answers(class_names)
        for name in ("aleatoric", "epistemic", "total"):
            found |= as_columns(name, getattr(self, name))
        return found

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        return {}

    def _repr_html_(self) -> str:
        """Return the first predictions as a table."""
        few = self[:8]
        try:
            columns = few._columns()
        except DataError:
            return f"<code>{escape(repr(self))}</code>"
        rows = zip(*columns.values(), strict=True)
        cells = [
            [f"{value:.4g}" if isinstance(value, float | np.floating) else str(value) for value in r] for r in rows
        ]
        return table(list(columns), cells, repr(self) + (f"; the first {len(few)}" if len(few) < len(self) else ""))

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


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction(Prediction):
    """A number and how far it may be off. All three uncertainties are variances.

    Without `tail` the density is the mixture of the members' Gaussians. With it, it is `mean_k N(mean, total tail_k)`:
    one location, the variance of that mixture, and the tail of residuals on data that nothing was fitted to.

    Examples:
        >>> p = RegressionPrediction(torch.tensor([[1.0], [3.0]]), torch.ones(2, 1), torch.ones(1))
        >>> float(p.mean), float(p.aleatoric), float(p.epistemic)
        (2.0, 1.0, 1.0)
        >>> low, high = p.interval(0.9)
        >>> round(float(low), 3), round(float(high), 3)
        (-0.326, 4.326)

    Attributes:
        means: mean of every member, `(n, B)`.
        variances: variance of every member, `(n, B)`.
        tail: equally likely factors on the variance, of mean one, `(m,)`; None for the mixture of members.
    """

    means: Float[Tensor, "n B"]
    variances: Float[Tensor, "n B"]
    tail: Float[Tensor, " m"] | None = None

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

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        return {**as_columns("mean", self.mean), **as_columns("std", self.std)}

    def _panels(self, targets: Tensor | None) -> Figure:
        from repulse._pictures import number_panels

        return number_panels(self.mean, self.epistemic, self.interval(0.95), targets)

    def log_likelihood(self, targets: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the logarithm of the density at each target."""
        means, variances = self._gaussians()
        normal = -0.5 * ((targets - means).square() / variances + (2 * math.pi * variances).log())
        return normal.logsumexp(dim=0) - math.log(len(variances))

    def cdf(self, values: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the probability that the target is at most each value."""
        means, variances = self._gaussians()
        return torch.special.ndtr((values - means) / variances.sqrt()).mean(dim=0)

    def quantile(self, q: float) -> Float[Tensor, " B"]:
        """Return the value that the target is below with probability `q`, by bisection of the distribution function."""
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 < q < 1:
            raise DataError(expected("q", "a probability between 0 and 1", repr(q)))
        means, variances = (part.double() for part in self._gaussians())
        each = means + torch.special.ndtri(means.new_tensor(q)) * variances.sqrt()
        low, high = each.amin(dim=0), each.amax(dim=0)  # which enclose that of their mixture
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / variances.sqrt()).mean(dim=0) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return ((low + high) / 2).to(self.means)

    def interval(self, level: float) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return the ends of the central interval that holds the target with probability `level`."""
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise DataError(expected("level", "a probability between 0 and 1", repr(level)))
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _gaussians(self) -> tuple[Float[Tensor, "#c B"], Float[Tensor, "c B"]]:
        """Return means and variances of the equally likely Gaussians whose mixture the density is."""
        if self.tail is None:
            return self.means, self.variances
        return self.mean.unsqueeze(0), self.tail.unsqueeze(1) * self.total
