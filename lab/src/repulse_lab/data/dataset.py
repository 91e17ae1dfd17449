"""What reading a data set gives: inputs, targets and where they came from."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsIndex

import torch
from torch import Tensor

from repulse.errors import DataError, expected


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader takes out of files.

    Attributes:
        inputs: `uint8` images `(N, C, H, W)`, float features `(N, D)`, or texts.
        targets: class numbers, floats to regress on, or None where nobody has labelled.
        classes: names of the classes, where the files tell.
        soft: shares `(N, K)` of people who chose each class, where they were asked.
    """

    inputs: Tensor | list[str]
    targets: Tensor | None = None
    classes: tuple[str, ...] = ()
    soft: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """One split of a data set, in memory. Slicing (`data[:8]`, `data[mask]`) gives a data set.

    Attributes:
        name: as in `repulse_lab.data.names()`.
        split: which part of it.
        inputs: `uint8` images `(N, C, H, W)`, float features `(N, D)`, or texts.
        targets: class numbers, floats to regress on, or None.
        classes: names of the classes; empty where they have none.
        files: what it was read from; empty where it was drawn from a seed.
        soft: shares `(N, K)` of people who chose each class, or None.
    """

    name: str
    split: str
    inputs: Tensor | list[str]
    targets: Tensor | None = None
    classes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    soft: Tensor | None = None

    def __post_init__(self) -> None:
        for field in ("targets", "soft"):
            value = getattr(self, field)
            if value is not None and len(value) != len(self.inputs):
                raise DataError(expected(field, f"as many as the {len(self.inputs)} inputs", f"{len(value)} of them"))
        for value in (self.inputs, self.targets, self.soft):
            if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
                raise DataError(expected(f"the data set {self.name}", "finite", "NaN or infinite values"))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: SupportsIndex | slice | Tensor | Sequence[int]) -> DataSet:
        """Return some of the samples, as a data set (of one sample for an integer)."""
        if hasattr(index, "__index__") and not (isinstance(index, Tensor) and index.ndim):
            at = operator.index(index)  # pyright: ignore[reportArgumentType]
            if not -len(self) <= at < len(self):
                raise IndexError(f"sample {at} of a data set of {len(self)}")
            index = slice(at, at + 1 or None)
        rows = torch.arange(len(self))[index]  # pyright: ignore[reportArgumentType]
        inputs = self.inputs[rows] if isinstance(self.inputs, Tensor) else [self.inputs[i] for i in rows.tolist()]
        targets, soft = (None if value is None else value[rows] for value in (self.targets, self.soft))
        return replace(self, inputs=inputs, targets=targets, soft=soft)

    @property
    def images(self) -> Tensor:
        """Return the inputs, which must be a tensor."""
        if not isinstance(self.inputs, Tensor):
            raise DataError(expected(f"the data set {self.name}", "one of images or numbers", "texts"))
        return self.inputs

    @property
    def labelled(self) -> tuple[Tensor, Tensor]:
        """Return the images and their targets, which must be there."""
        if self.targets is None:
            raise DataError(expected(f"the data set {self.name}", "one with targets", f"none in {self.split!r}"))
        return self.images, self.targets

    def __repr__(self) -> str:
        kind = f"inputs {tuple(self.inputs.shape[1:])}" if isinstance(self.inputs, Tensor) else "texts"
        named = f", {len(self.classes)} classes" if self.classes else ""
        return f"DataSet({self.name} {self.split}: {len(self)} {kind}{named})"
