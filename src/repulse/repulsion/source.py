"""The contract of a source of repulsion samples, in input space or in feature space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import RepulsionError, expected


class Source(ABC):
    """Makes repulsion samples from a batch of training inputs.

    Attributes:
        takes_mappings: whether `sample` takes inputs in any form; if not, it is given one tensor, and the rest of a
            mapping or a tuple stays as it is.
        takes_copies: whether a batch may hold inputs more than once; sources that combine inputs must not meet copies.
        feature_share: share of the samples that `sample_features` draws instead of `sample`.
    """

    takes_mappings: bool = False
    takes_copies: bool = False
    feature_share: float = 0.0

    @abstractmethod
    def sample(self, batch: Any, generator: torch.Generator) -> Any:
        """Draw one input of the same shape, in the same space, for each input of a batch.

        Args:
            batch: training inputs `(B, ...)`, as the model takes them (normalised, if it wants them so).
            generator: on the CPU; the only source of randomness.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class FeatureSource(ABC):
    """Makes repulsion samples in feature space, from features of the training data: for inputs of any kind.

    Attributes:
        feature_share: share of the samples that are drawn in feature space: all of them.
    """

    feature_share: float = 1.0

    @abstractmethod
    def sample_features(
        self,
        features: Float[Tensor, "N d"],
        count: int,
        generator: torch.Generator,
        targets: Tensor | None = None,
    ) -> Float[Tensor, "M d"]:
        """Draw features of `count` samples.

        Args:
            features: features of the training data.
            count: M, how many to draw.
            generator: on the CPU; the only source of randomness.
            targets: classes of the training data, for sources that need them.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def sample_inputs(source: Source, inputs: Any, generator: torch.Generator) -> Any:
    """Draw samples for inputs in any form, and check their shapes.

    Of a mapping or a tuple, a source that takes tensors replaces the one tensor of floats (or of images in bytes).
    """
    if source.takes_mappings or isinstance(inputs, Tensor):
        samples = source.sample(inputs, generator)
        _check_alike(source, samples, inputs)
        return samples
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    keys = [key for key, value in items if isinstance(value, Tensor) and _is_content(value)]
    if len(keys) != 1:
        got = f"{len(keys)} in a {type(inputs).__name__}"
        raise RepulsionError(expected("inputs", f"one tensor of floats for {source}", got))
    (key,) = keys
    samples = sample_inputs(source, inputs[key], generator)
    if isinstance(inputs, Mapping):
        return {**inputs, key: samples}
    return tuple(samples if i == key else value for i, value in enumerate(inputs))


def tensors_of(inputs: Any) -> dict[Any, Tensor]:
    """Return all tensors of some inputs, by their name or position."""
    if isinstance(inputs, Tensor):
        return {0: inputs}
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return {key: value for key, value in items if isinstance(value, Tensor)}


def map_tensors(function: Callable[..., Tensor], inputs: Any, *others: Any) -> Any:
    """Return the same inputs with each tensor (and its namesakes in others of the same form) replaced."""
    if isinstance(inputs, Tensor):
        return function(inputs, *others)
    if isinstance(inputs, Mapping):
        return {
            key: function(value, *(other[key] for other in others)) if isinstance(value, Tensor) else value
            for key, value in inputs.items()
        }
    parts = zip(inputs, *others, strict=True)
    return tuple(function(value, *rest) if isinstance(value, Tensor) else value for value, *rest in parts)


def check_floats(name: str, batch: Tensor) -> None:
    """Refuse inputs that are not float, or no batch."""
    if not batch.ndim or not batch.numel():
        raise RepulsionError(expected("inputs", f"a batch of at least one for {name}", f"shape {tuple(batch.shape)}"))
    if not batch.is_floating_point():
        raise RepulsionError(expected("inputs", f"float for {name}", f"{batch.dtype}"))


def check_company(name: str, count: int) -> None:
    """Refuse a batch of a single input for a source that combines two."""
    if count < 2:
        raise RepulsionError(expected("inputs", f"at least two inputs per batch for {name}", count))


def other_rows(count: int, generator: torch.Generator) -> Tensor:
    """Draw, for each of `count` rows, the index of another one, uniformly."""
    shift = torch.randint(1, count, (count,), generator=generator, device="cpu")
    return (torch.arange(count, device="cpu") + shift) % count


def permutations(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `count` permutations of `size` things, uniformly over all but the identity."""
    order = torch.rand(count, size, generator=generator, device="cpu").argsort(dim=1)
    identity = torch.arange(size, device="cpu")
    while bool((same := (order == identity).all(dim=1)).any()):
        order[same] = torch.rand(int(same.sum()), size, generator=generator, device="cpu").argsort(dim=1)
    return order


def uniform(shape: Sequence[int], generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw uniform numbers in [0, 1) from a CPU generator, on the device of `like`."""
    return torch.rand(*shape, generator=generator, device="cpu").to(like)


def _is_content(value: Tensor) -> bool:
    return value.is_floating_point() or (value.dtype == torch.uint8 and value.ndim >= 3)


def _check_alike(source: Source, samples: Any, inputs: Any) -> None:
    if type(samples) is not type(inputs) and not (isinstance(samples, Mapping) and isinstance(inputs, Mapping)):
        raise RepulsionError(expected(f"samples of {source}", f"a {type(inputs).__name__}", type(samples).__name__))
    made = tensors_of(samples)
    for key, value in tensors_of(inputs).items():
        sample = made.get(key)
        if sample is None or sample.shape != value.shape:
            got = "nothing" if sample is None else tuple(sample.shape)
            raise RepulsionError(expected(f"samples of {source}", f"of shape {tuple(value.shape)}", got))
