"""Mixtures of sources, also of those in input space with those in feature space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import RecipeError, RepulsionError, check_number, expected
from repulse.repulsion.source import FeatureSource, Source, map_tensors, sample_inputs, tensors_of


class Mixture(Source, FeatureSource):
    """Draw each sample from one of several sources, chosen at random.

    Sources in input space and in feature space may be mixed: `sample` draws from the former, `sample_features` from the
    latter, and `feature_share` says how many of all samples should be drawn in feature space.

    Args:
        sources: the sources.
        weights: relative frequencies; equal if not given.
    """

    takes_mappings = True

    def __init__(self, sources: Sequence[Source | FeatureSource], weights: Sequence[float] | None = None) -> None:
        self.sources = list(sources)
        if not self.sources:
            raise RecipeError(expected("sources", "at least one source", "none"))
        for source in self.sources:
            if not isinstance(source, Source | FeatureSource):
                raise RecipeError(expected("sources", "repulsion sources", f"{type(source).__name__}"))
        self.weights = [1.0] * len(self.sources) if weights is None else list(weights)
        if len(self.weights) != len(self.sources):
            raise RecipeError(expected("weights", f"{len(self.sources)} numbers, one per source", len(self.weights)))
        for weight in self.weights:
            check_number("weights", weight, positive=True)
        self.takes_copies = all(source.takes_copies for source in self.sources if isinstance(source, Source))
        self.feature_share = sum(self._weights("features")) / sum(self.weights)

    def sample(self, batch: Any, generator: torch.Generator) -> Any:
        weights = self._weights("inputs")
        count = next((len(value) for value in tensors_of(batch).values() if value.ndim), 0)
        chosen = self._chosen(weights, count, generator, "inputs")
        parts, rows = [], []
        for i, source in enumerate(self.sources):
            index = (chosen == i).nonzero().flatten()
            if not len(index):
                continue
            assert isinstance(source, Source)
            if len(index) == 1:  # some sources need company
                parts.append(_rows(sample_inputs(source, batch, generator), index, count))
            else:
                parts.append(sample_inputs(source, _rows(batch, index, count), generator))
            rows.append(index)
        order = torch.cat(rows).argsort()
        return map_tensors(lambda *made: _joined(made, order, count), parts[0], *parts[1:])

    def sample_features(
        self,
        features: Float[Tensor, "N d"],
        count: int,
        generator: torch.Generator,
        targets: Tensor | None = None,
    ) -> Float[Tensor, "M d"]:
        chosen = self._chosen(self._weights("features"), count, generator, "features")
        samples = features.new_empty(0)
        for i, source in enumerate(self.sources):
            index = (chosen == i).nonzero().flatten().to(features.device)
            if len(index):
                assert isinstance(source, FeatureSource)
                made = source.sample_features(features, len(index), generator, targets)
                if not samples.numel():
                    samples = made.new_empty(count, made.shape[1])
                samples[index] = made
        return samples

    def _weights(self, space: str) -> list[float]:
        """Return how often each source is drawn from in one of the two spaces, "inputs" or "features"."""
        shares = [source.feature_share for source in self.sources]
        if space == "inputs":
            shares = [1.0 - share for share in shares]
        return [weight * share for weight, share in zip(self.weights, shares, strict=True)]

    def _chosen(self, weights: list[float], count: int, generator: torch.Generator, space: str) -> Tensor:
        if not any(weights):
            raise RepulsionError(expected("sources", f"a source that draws {space}", f"{self}"))
        weight = torch.tensor(weights, dtype=torch.float64, device="cpu")
        return torch.multinomial(weight, count, replacement=True, generator=generator)

    def __repr__(self) -> str:
        if len(set(self.weights)) == 1:
            return "Mixture([" + ", ".join(map(repr, self.sources)) + "])"
        whole = sum(self.weights)
        parts = (f"{w / whole:.0%} {source!r}" for w, source in zip(self.weights, self.sources, strict=True))
        return "Mixture(" + ", ".join(parts) + ")"


def _rows(inputs: Any, index: Tensor, count: int) -> Any:
    """Return some rows of all tensors that have one row per input; other tensors stay as they are."""
    return map_tensors(lambda v: v[index.to(v.device)] if v.ndim and len(v) == count else v, inputs)


def _joined(parts: Sequence[Tensor], order: Tensor, count: int) -> Tensor:
    """Put the rows of several parts into one tensor, in the order in which their inputs came."""
    if not parts[0].ndim or sum(map(len, parts)) != count:
        return parts[0]  # belongs to the batch as a whole
    return torch.cat(list(parts))[order.to(parts[0].device)]
