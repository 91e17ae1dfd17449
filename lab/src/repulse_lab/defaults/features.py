"""Features of all sets of a problem, computed once: the penultimate ones, and after them the taps that repulse sees."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from repulse._tensors import kept_tensors, write_tensors
from repulse.backbone import Backbone, split
from repulse.baselines import LastLayer
from repulse_lab.defaults.problem import Samples, Trained, digest_of

MOST_COLUMNS = 3000
"""Width of features with taps beyond which other methods are not fitted on them: their covariances get too large."""


@torch.no_grad()
def features_of(backbone: Backbone, samples: Samples) -> Tensor:
    """Compute the features of all samples."""
    unlabelled = Samples(samples.inputs, None, samples.prepare)
    return torch.cat([backbone(batch) for batch in unlabelled])


class FeatureSets:
    """The features of every set of a problem, with their taps standardised to the spread of the penultimate ones.

    Args:
        trained: network and data.
        folder: where to keep features; None keeps them in memory alone.
    """

    def __init__(self, trained: Trained, folder: Path | None) -> None:
        self.trained = trained
        self.folder = folder
        self._computed: dict[str, Tensor] = {}

    @cached_property
    def backbone(self) -> Backbone:
        """The network with the taps that repulse would choose, or without taps if they are too wide for others."""
        first = self.trained.train.batch(torch.arange(min(8, self.trained.train.count)))
        tapped = split(self.trained.model, first, layers="auto")
        return tapped if tapped.width <= MOST_COLUMNS else split(self.trained.model, first, layers="last")

    @property
    def has_taps(self) -> bool:
        """Whether there is anything beyond the penultimate features."""
        return self.backbone.width > self.backbone.penultimate

    @cached_property
    def layer(self) -> LastLayer:
        """The network's own last layer."""
        weight, bias = self.backbone.weights
        return LastLayer(weight.detach(), bias.detach())

    @cached_property
    def wide_layer(self) -> LastLayer:
        """The network's own last layer on features with taps, which it ignores."""
        blank = torch.zeros(self.layer.classes, self.backbone.width - self.backbone.penultimate)
        return LastLayer(torch.cat([self.layer.weight, blank], dim=1), self.layer.bias)

    def penultimate(self, name: str) -> Tensor:
        """Return the penultimate features of the set of this name (`train`, or one of `Trained.evaluated`)."""
        return self._all(name)[:, : self.backbone.penultimate]

    def with_taps(self, name: str) -> Tensor:
        """Return the penultimate features and the taps, whose columns are standardised on the training samples."""
        features, cut = self._all(name), self.backbone.penultimate
        mean, std, spread = self._scales
        return torch.cat([features[:, :cut], (features[:, cut:] - mean) / std * spread], dim=1)

    @cached_property
    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        train, cut = self._all("train"), self.backbone.penultimate
        taps = train[:, cut:]
        return taps.mean(dim=0), taps.std(dim=0).clamp_min(1e-6), train[:, :cut].std(dim=0).mean()

    def _all(self, name: str) -> Tensor:
        if name not in self._computed:
            sets: Mapping[str, Samples] = {"train": self.trained.train, **self.trained.evaluated}
            self._computed[name] = self._kept(sets[name])
        return self._computed[name]

    def _kept(self, samples: Samples) -> Tensor:
        if self.folder is None:
            return features_of(self.backbone, samples)
        taps = [f"{tap.name}:{tap.columns}" for tap in self.backbone.taps]
        path = self.folder / f"{digest_of({}, samples.digest(), self._network, *taps)}.safetensors"
        if (kept := kept_tensors(path)) is None:
            kept = {"features": features_of(self.backbone, samples)}
            write_tensors(path, kept)
        return kept["features"]

    @cached_property
    def _network(self) -> str:
        return digest_of(self.trained.model.state_dict())
