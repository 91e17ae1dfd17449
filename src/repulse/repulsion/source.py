"""The contract of a source, the trivial source, and the mixture of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_number, expected


class Source(ABC):
    """Makes repulsion samples from a batch of training inputs."""

    @abstractmethod
    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """As many inputs, of the same shape and in the same space, as `batch` holds.

        Args:
            batch: training inputs `(B, ...)`, as the model takes them (normalised, if it wants them so).
            generator: on the CPU; the only source of randomness.
        """

    def sample_inputs(self, inputs: Any, generator: torch.Generator) -> Any:
        """Samples for inputs in any form: in a mapping or a tuple, the one tensor of floats is replaced."""
        if isinstance(inputs, Tensor):
            return draw(self, inputs, generator)
        items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
        floats = [key for key, value in items if isinstance(value, Tensor) and value.is_floating_point()]
        if len(floats) != 1:
            got = f"{len(floats)} in a {type(inputs).__name__}"
            raise RepulsionError(expected("inputs", f"one tensor of floats for {self}", got))
        (key,) = floats
        drawn = draw(self, inputs[key], generator)
        if isinstance(inputs, Mapping):
            return {**inputs, key: drawn}
        return tuple(drawn if i == key else value for i, value in enumerate(inputs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TrainingData(Source):
    """The training inputs themselves: what the paper warns of, kept for comparison."""

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        return batch

    def sample_inputs(self, inputs: Any, generator: torch.Generator) -> Any:
        return inputs


class Mixture(Source):
    """Each sample from one of several sources, chosen at random.

    Args:
        sources: the sources.
        weights: relative frequencies; equal if not given.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float] | None = None) -> None:
        self.sources = list(sources)
        if not self.sources:
            raise RecipeError(expected("sources", "at least one source", "none"))
        for source in self.sources:
            if not isinstance(source, Source):
                raise RecipeError(expected("sources", "repulsion sources", f"{type(source).__name__}"))
        self.weights = [1.0] * len(self.sources) if weights is None else list(weights)
        if len(self.weights) != len(self.sources):
            raise RecipeError(expected("weights", f"{len(self.sources)} numbers, one a source", len(self.weights)))
        for weight in self.weights:
            check_number("weights", weight, positive=True)

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        chosen = torch.multinomial(
            torch.tensor(self.weights, dtype=torch.float64), len(batch), replacement=True, generator=generator
        )
        chosen = chosen.to(batch.device)
        samples = torch.empty_like(batch)
        for i, source in enumerate(self.sources):
            mask = chosen == i
            count = int(mask.sum())
            if count == 1:  # some sources need company
                samples[mask] = draw(source, batch, generator)[mask]
            elif count:
                samples[mask] = draw(source, batch[mask], generator)
        return samples

    def __repr__(self) -> str:
        return "Mixture([" + ", ".join(map(repr, self.sources)) + "])"


def check_images(name: str, batch: Tensor) -> tuple[int, int, int, int]:
    """The shape of a batch of images, or an error that says which source wanted images."""
    if batch.ndim != 4 or not batch.is_floating_point():
        wanted = f"float images of shape (batch, channels, height, width) for {name}"
        raise RepulsionError(expected("inputs", wanted, f"{batch.dtype} of shape {tuple(batch.shape)}"))
    return batch.shape[0], batch.shape[1], batch.shape[2], batch.shape[3]


def check_floats(name: str, batch: Tensor) -> None:
    """Refuse inputs that are not float."""
    if not batch.is_floating_point():
        raise RepulsionError(expected("inputs", f"float for {name}", f"{batch.dtype}"))


def draw(source: Source, batch: Tensor, generator: torch.Generator) -> Tensor:
    """Samples of a source, checked."""
    samples = source.sample(batch, generator)
    if not isinstance(samples, Tensor) or samples.shape != batch.shape:
        got = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
        raise RepulsionError(expected(f"samples of {source}", f"of shape {tuple(batch.shape)}", got))
    return samples


def uniform(shape: Sequence[int], generator: torch.Generator, like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) from a CPU generator, on the device of `like`."""
    return torch.rand(*shape, generator=generator, device="cpu").to(like)
