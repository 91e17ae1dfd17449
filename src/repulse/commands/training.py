"""What `fit` and `suggest` share: the training data and all that is like it, opened as the network takes it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from repulse._files import read_regular
from repulse.commands import options
from repulse.errors import DataError, expected
from repulse.files.batches import Batches, classes_of, targets_of
from repulse.files.columns import Columns
from repulse.files.networks import Network
from repulse.files.opening import Opening
from repulse.files.samples import Samples, read_samples


@dataclass(frozen=True)
class Training:
    """A network, its training data, and how both were opened.

    Attributes:
        network: the network.
        samples: the training data.
        opening: how they were opened.
    """

    network: Network
    samples: Samples
    opening: Opening

    @staticmethod
    def of(
        network: Network,
        model: str,
        checkpoint: Path | None,
        data: Path,
        columns: Columns,
        classes: Path | None,
        task: options.Task,
        batch_size: int,
    ) -> Training:
        """Read the training data, and find out what its columns and classes are."""
        samples = read_samples(data, columns, network.kind)
        opening = Opening(
            model=_whole_name(model),
            checkpoint=None if checkpoint is None else str(checkpoint.resolve()),
            kind=samples.kind,
            columns=dataclasses.replace(
                samples.columns, label=samples.columns.label or columns.label, key=columns.key
            ),  # a key that was found, not told, may be missing in other data
            classes=_classes(classes, network, samples, task),
            task=task.value,
            batch_size=batch_size,
            sources={"data": str(data.resolve())},
        )
        return Training(network, samples, opening)

    def batches(self) -> Batches:
        """Return the training data."""
        return self._labelled(self.samples)

    def validation(self, source: Path | None) -> Batches | None:
        """Return other data with labels, read in the same way."""
        return None if source is None else self._labelled(self._read(source))

    def unlabelled(self, source: str, seed: int) -> Batches:
        """Return data on which heads should disagree, in random order: of many samples the first ones are taken."""
        samples = self._read(source)
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
        prepare = self.network.prepare(self.opening.kind)
        return Batches(samples.some(order.tolist()), prepare, size=self.opening.batch_size)

    def _read(self, source: str | Path) -> Samples:
        return read_samples(source, self.opening.columns, self.opening.kind)

    def _labelled(self, samples: Samples) -> Batches:
        targets = targets_of(samples, self.opening.task, self.opening.classes)
        return Batches(samples, self.network.prepare(self.opening.kind), targets, self.opening.batch_size)


def _classes(file: Path | None, network: Network, samples: Samples, task: options.Task) -> tuple[str, ...] | None:
    """Return the names by which labels are understood: told, those of the network, or those in the data, sorted.

    Of several labels, those of their columns.
    """
    if file is not None:
        try:
            return tuple(read_regular(file, 2**24).decode().removesuffix("\n").split("\n"))
        except (OSError, UnicodeDecodeError) as reason:
            wanted = "a text file with the name of a class in each line"
            raise DataError(expected("--classes", wanted, file)) from reason
    if task is options.Task.multilabel and samples.columns.label is not None and "," in samples.columns.label:
        return tuple(name.strip() for name in samples.columns.label.split(","))
    if samples.labels is None or task is not options.Task.classification or samples.labels.ndim > 1:
        return None
    found, known = classes_of(samples.labels), network.class_names
    if found is None:
        return None
    return known if known is not None and set(found) <= set(known) else tuple(found)


def _whole_name(model: str) -> str:
    """Return a name that means the same in any folder."""
    where, colon, function = model.rpartition(":")
    if colon and where.endswith(".py"):
        return f"{Path(where).resolve()}:{function}"
    return str(Path(model).resolve()) if Path(model).is_dir() else model
