"""What a problem is: a trained network, the data it was trained on, data it has not seen, and data from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Task = Literal["classification", "regression"]
Role = Literal["choosing", "reporting"]

BATCH = 250
"""Number of samples per batch of a pass through a network."""


def unchanged(batch: Any) -> Any:
    """Return a batch as it is."""
    return batch


def trimmed(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut the columns of a batch of token ids that are padding in every row."""
    longest = int(batch["attention_mask"].sum(dim=1).max())
    return {name: value[:, :longest] for name, value in batch.items()}


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs in memory and, where they are known, targets; iterating over it gives batches as a network takes them.

    Attributes:
        inputs: a tensor, or one tensor per name (token ids and their mask).
        targets: classes or numbers to regress on; None for unlabelled inputs.
        prepare: from a batch of `inputs` to what the network takes, such as normalisation of bytes.
    """

    inputs: Tensor | Mapping[str, Tensor]
    targets: Tensor | None = None
    prepare: Callable[[Any], Any] = unchanged

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.inputs if isinstance(self.inputs, Tensor) else next(iter(self.inputs.values())))

    def batch(self, index: Tensor) -> Any:
        """Return the inputs of some samples as the network takes them."""
        if isinstance(self.inputs, Tensor):
            return self.prepare(self.inputs[index])
        return self.prepare({name: value[index] for name, value in self.inputs.items()})

    def some(self, index: Tensor | slice) -> Samples:
        """Return a part of the samples."""
        rows = torch.arange(self.count)[index]
        inputs = self.inputs[rows] if isinstance(self.inputs, Tensor) else {k: v[rows] for k, v in self.inputs.items()}
        return replace(self, inputs=inputs, targets=None if self.targets is None else self.targets[rows])

    def at_most(self, count: int, seed: int = 0) -> Samples:
        """Return `count` samples drawn at random, or all of them in their order if there are no more."""
        if self.count <= count:
            return self
        chosen = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed))[:count]
        return self.some(chosen.sort().values)

    def digest(self) -> str:
        """Compute a digest of inputs and targets."""
        tensors = {"inputs": self.inputs} if isinstance(self.inputs, Tensor) else dict(self.inputs)
        return digest_of(tensors if self.targets is None else {**tensors, "targets": self.targets})

    def __len__(self) -> int:
        return (self.count + BATCH - 1) // BATCH

    def __iter__(self) -> Iterator[Any]:
        for index in torch.arange(self.count).split(BATCH):
            inputs = self.batch(index)
            yield inputs if self.targets is None else (inputs, self.targets[index])


@dataclass(frozen=True, eq=False)
class Trained:
    """A network and the data of one seed of a problem.

    Attributes:
        model: the trained network.
        train: what it was trained on.
        validation: labelled samples that it was not trained on.
        test: further labelled samples, used for measuring alone.
        near: unlabelled out-of-distribution sets that resemble the data, by name.
        far: unlabelled out-of-distribution sets that do not, by name.
        repulsion: out-of-distribution samples that a user might have; disjoint from `near` and `far`.
        member: trains a further network of the same kind, by its number; None where that takes too long.
        unit: of a regression, the target's standard deviation, so that errors are in the units of the table.
        slow: whether a pass through the network takes so long that features are kept.
    """

    model: nn.Module
    train: Samples
    validation: Samples
    test: Samples
    near: Mapping[str, Samples] = field(default_factory=dict)
    far: Mapping[str, Samples] = field(default_factory=dict)
    repulsion: Samples | None = None
    member: Callable[[int], nn.Module] | None = None
    unit: float = 1.0
    slow: bool = False

    @property
    def evaluated(self) -> dict[str, Samples]:
        """All sets on which a method is evaluated, by name."""
        outside = {f"{kind}: {name}": s for kind in ("near", "far") for name, s in getattr(self, kind).items()}
        return {"validation": self.validation, "test": self.test, **outside}


@dataclass(frozen=True)
class Problem:
    """A problem that can be put together from a seed.

    Attributes:
        name: as the command takes it.
        title: what it is, in one line.
        source: the data set; all problems of one data set have the same role.
        role: whether settings of the default may be chosen by it, or it is kept back for reporting.
        make: from a seed, the folder of the data sets and a folder for trained networks, to the network and its data.
        task: of the network.
    """

    name: str
    title: str
    source: str
    role: Role
    make: Callable[[int, Path, Path], Trained]
    task: Task = "classification"


def digest_of(tensors: Mapping[str, Tensor], *more: str) -> str:
    """Compute a digest of named tensors and of further strings."""
    total = sha256("|".join(more).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return total.hexdigest()[:16]
