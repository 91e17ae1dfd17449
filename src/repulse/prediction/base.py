"""What every prediction has: both parts of its uncertainty, slices, tables and pictures.

Frozen classes, one per kind of output, are thin objects around what the members said.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex, TypeVar

import numpy as np
import torch
from torch import Tensor

from repulse._extras import needs
from repulse._html import table
from repulse.errors import DataError, expected

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


MAX_POINTS = 5000
"""Samples that a picture shows, at most; evenly spaced ones of more."""


def as_columns(name: str, values: Tensor) -> dict[str, np.ndarray]:
    """Return the column of a table or, for several values per sample, one for each, numbered."""
    if values.ndim not in (1, 2):
        got = f"shape {tuple(values.shape)}"
        raise DataError(expected("predictions for a table", "one, or a few, for each sample", got))
    known = values.detach().cpu().numpy()
    return {name: known} if known.ndim == 1 else {f"{name} {k}": known[:, k] for k in range(known.shape[1])}


def _is_batched(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 1


P = TypeVar("P", bound="Prediction")
Part = Literal["aleatoric", "epistemic", "total"]


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

    def of_inputs(self, part: Part) -> Tensor:
        """Return one of the three uncertainties as one number for each input, `(B,)`, whatever each of them has."""
        return getattr(self, part)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets that belong to these predictions."""
        return (len(self),)

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

        return DataFrame(self.columns(class_names))

    def plot(self, targets: Tensor | None = None, path: str | Path | None = None) -> Figure:
        """Plot the predictions: classes as a map of both uncertainties, numbers with their intervals.

        Args:
            targets: what was right; mistakes, or the targets themselves, are marked.
            path: where to write the figure, in the format of the suffix.
        """
        from repulse._pictures import save_picture

        if not len(self):
            raise DataError(expected("predictions for a picture", "at least one", "none"))
        if targets is not None and not (isinstance(targets, Tensor) and tuple(targets.shape) == self.target_shape):
            each = "one for each sample" if len(self.target_shape) == 1 else f"of shape {self.target_shape}"
            got = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
            raise DataError(expected("targets", f"{len(self)}, {each}", got))
        step = -(-len(self) // MAX_POINTS)
        figure = self[::step].cpu()._panels(None if targets is None else targets[::step].cpu())
        if path is not None:
            save_picture(figure, path)
        return figure

    def _panels(self, targets: Tensor | None) -> Figure:
        raise DataError(expected("predictions for a picture", "of classes or of numbers", type(self).__name__))

    def columns(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
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
            columns = few.columns()
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
