"""Samples as a network takes them: in batches, prepared when they are read, as often as they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.files.samples import Samples

Prepare = Callable[[Any], Any]
"""Turns the values of some samples into the inputs of a network."""


class Batches:
    """Batches of inputs, or of inputs and targets; can be read again and again.

    Attributes:
        samples: what is in them.
        prepare: turns values into inputs.
        targets: one for each sample, or None.
        size: number of samples in a batch, at most.
    """

    def __init__(self, samples: Samples, prepare: Prepare, targets: Tensor | None = None, size: int = 64) -> None:
        self.samples, self.prepare, self.targets, self.size = samples, prepare, targets, size

    def __len__(self) -> int:
        return math.ceil(len(self.samples) / self.size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.samples), self.size):
            part = slice(start, start + self.size)
            inputs = self.prepare(self.samples.values[part])
            yield inputs if self.targets is None else (inputs, self.targets[part])


def classes_of(labels: np.ndarray) -> list[str] | None:
    """Return the names of the classes in some labels, sorted; None for integers, which are numbers of classes."""
    return None if labels.dtype.kind in "iub" else sorted(set(labels.astype(str).tolist()))


def targets_of(samples: Samples, task: str, classes: Sequence[str] | None) -> Tensor:
    """Return the targets of samples: numbers of classes, otherwise their labels, of which each may have several.

    Args:
        samples: with labels.
        task: "classification", "multilabel" or "regression".
        classes: their names in the order of the network's outputs; None if labels are numbers of classes.
    """
    labels = samples.labels
    if labels is None:
        wanted = "labelled, by folders of classes or a column that --label names"
        columns = samples.columns.features or ()
        among = (
            f" among the columns {', '.join(columns[:12])}" + (", ..." if len(columns) > 12 else "") if columns else ""
        )
        named = samples.columns.label
        raise DataError(expected(samples.name, wanted, (f"none called {named!r}" if named else "no labels") + among))
    if task != "classification":
        wanted = (
            "numbers, for a regression" if task == "regression" else "0 or 1 in several columns, for several labels"
        )
        if labels.dtype.kind not in "fiub" or (task == "multilabel" and labels.ndim != 2):
            raise DataError(expected(f"the labels of {samples.name}", wanted, repr(labels[0])))
        return torch.from_numpy(labels.astype(np.float32))
    if labels.ndim != 1:
        got = f"{labels.shape[1]} of each sample (for several labels say --task multilabel)"
        raise DataError(expected(f"the labels of {samples.name}", "one class of each", got))
    if labels.dtype.kind == "f":
        got = "numbers with fractions (for a regression say --task regression)"
        raise DataError(expected(f"the labels of {samples.name}", "classes", got))
    if labels.dtype.kind in "iub":
        return torch.from_numpy(labels.astype(np.int64))
    if classes is None:
        got = f"names such as {str(labels[0])!r}"
        raise DataError(expected(f"the labels of {samples.name}", "numbers of classes, as in the fit", got))
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted(set(labels.tolist()) - set(numbers))
    if unknown:
        wanted = f"among the {len(numbers)} classes of the fit"
        raise DataError(expected(f"the labels of {samples.name}", wanted, f"{str(unknown[0])!r}"))
    return torch.tensor([numbers[name] for name in labels.tolist()])
