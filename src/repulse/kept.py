"""Features that a fit was made from, kept so that heads can be fitted again, or explained, without the network.

`retrofit` leaves them with the ensemble; `ensemble.save(folder, features=True)` writes them next to the heads, as one
safetensors file whose name holds its digest and that of the heads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from repulse._files import explaining_writes, open_regular, write_whole
from repulse.backbone.split import Backbone
from repulse.backbone.taps import INPUTS
from repulse.errors import CheckpointError, expected
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.recipe import Recipe
from repulse.summary import Summary, summarise

PATTERN = "features-*.safetensors"
"""Names of files of kept features."""

NO_LOGIT = -30.0
"""Logit that the network gives to a class it was not trained on."""


@dataclass(frozen=True, eq=False)
class KeptFeatures:
    """What heads were fitted on.

    Attributes:
        train: features of the training data, `(N, d)`.
        targets: its targets, `(N,)`.
        repulsion: features of the repulsion samples, `(M, d)`, or None.
        validation: features of the validation data, or None.
        validation_targets: its targets, or None.
    """

    train: Tensor
    targets: Tensor
    repulsion: Tensor | None = None
    validation: Tensor | None = None
    validation_targets: Tensor | None = None

    @property
    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Features and targets of the validation data."""
        if self.validation is None or self.validation_targets is None:
            return None
        return self.validation, self.validation_targets

    def plus(self, features: Tensor, targets: Tensor) -> KeptFeatures:
        """Return these features with more training data after them."""
        train = torch.cat([self.train, features.to(self.train)])
        return replace(self, train=train, targets=torch.cat([self.targets, targets.to(self.targets)]))

    def repelled_on(self, features: Tensor, share: float) -> KeptFeatures:
        """Return these features with more repulsion samples, repeated until they are at least this share of all."""
        if self.repulsion is None:
            return replace(self, repulsion=features.to(self.train))
        wanted = round(len(self.repulsion) * share / (1 - share))
        times = max(-(-wanted // len(features)), 1)
        return replace(self, repulsion=torch.cat([self.repulsion, features.to(self.repulsion).repeat(times, 1)]))

    def sampled(self, count: int, newest: int, seed: int) -> KeptFeatures:
        """Return these features with the newest rows of the training data, and others drawn at random: so many."""
        old = len(self.train) - newest
        if count >= len(self.train) or old < 1:
            return self
        drawn = torch.randperm(old, generator=torch.Generator().manual_seed(seed))[: max(count - newest, 1)]
        rows = torch.cat([drawn.sort().values, torch.arange(old, len(self.train))])
        return replace(
            self, train=self.train[rows.to(self.train.device)], targets=self.targets[rows.to(self.targets.device)]
        )

    def without(self, indices: Tensor) -> KeptFeatures:
        """Return these features without some rows of the training data."""
        left = torch.ones(len(self.train), dtype=torch.bool, device=self.targets.device)
        left[indices.to(left.device)] = False
        return replace(self, train=self.train[left.to(self.train.device)], targets=self.targets[left])

    def fit(
        self,
        backbone: Backbone,
        recipe: Recipe,
        *,
        classes: int | None = None,
        warm: Heads | None = None,
        progress: bool = True,
    ) -> Heads:
        """Fit heads for a network on what was kept of it.

        Args:
            backbone: the network.
            recipe: how to fit.
            classes: number of classes, if there are more than the network has outputs: then it cannot be the centre.
            warm: heads of an earlier fit, to start from.
            progress: show a bar when it takes more than two seconds.
        """
        weight, bias = last_layer_of(backbone, recipe)
        grown = classes is not None and classes > len(weight)
        return fit_heads(
            self.train,
            self.targets,
            self.repulsion,
            recipe,
            classes=None if recipe.task == "regression" else classes if grown else len(weight),
            start=None if grown else (weight, bias),
            taps=backbone.width - backbone.penultimate,
            validation=self.held_out,
            inputs=_tapped_inputs(backbone, self.train) if recipe.task == "regression" else None,
            warm=warm,
            positions=bool(backbone.ending.positions),
            progress=progress,
        )

    def summary(self, heads: Heads, backbone: Backbone) -> Summary:
        """Measure the network and heads that were fitted on these features."""
        weight, bias = last_layer_of(backbone, heads.recipe or Recipe())
        missing = (heads.task.class_count or 0) - len(weight)
        if missing > 0:
            weight = torch.cat([weight, weight.new_zeros(missing, weight.shape[1])])
            bias = torch.cat([bias, bias.new_full((missing,), NO_LOGIT)])
        return summarise(heads, (weight, bias), self.train, self.targets, self.held_out, self.repulsion)


def last_layer_of(backbone: Backbone, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the network's last layer, as heads have them: one logit z is two, -z/2 and z/2."""
    weight, bias = backbone.weights
    if recipe.task == "classification" and backbone.outputs == 1:
        weight, bias = (torch.cat([-part / 2, part / 2]) for part in (weight, bias))
    return weight, bias


def _tapped_inputs(backbone: Backbone, features: Tensor) -> Tensor | None:
    """Return the columns of features that are the network's inputs themselves, if these are tapped."""
    begin = backbone.penultimate
    for tap in backbone.taps:
        if tap.reads == INPUTS:
            return features[:, begin : begin + tap.columns].float()
        begin += tap.columns
    return None


@dataclass(frozen=True)
class KeptIn:
    """Where the features of saved heads are, if they are kept.

    Attributes:
        folder: of the ensemble.
        heads: fingerprint of the heads, which is in the name of the file: a save that was cut short may leave the
            features of others beside it.
    """

    folder: Path
    heads: str

    def files(self) -> list[Path]:
        """Return the files of these heads; one, or none."""
        return sorted(self.folder.glob(f"features-{self.heads[:16]}-*.safetensors"))

    def write(self, kept: KeptFeatures) -> list[Path]:
        """Write features, and return their file; to be done before the heads, so that these never lack them."""
        tensors = {name: value.contiguous().cpu() for name, value in vars(kept).items() if value is not None}
        content = safetensors.save(tensors)
        with explaining_writes(self.folder, "folder"):
            return [write_whole(self.folder / self._name(hashlib.sha256(content)), content)]

    def sweep(self, but: list[Path]) -> None:
        """Remove all features but some, and what killed writers left of any."""
        with explaining_writes(self.folder, "folder"):
            for stale in (*self.folder.glob(PATTERN), *self.folder.glob(f".{PATTERN}.*")):
                if stale not in but:
                    stale.unlink(missing_ok=True)

    def read(self, width: int) -> KeptFeatures | None:
        """Read the features of heads that take this many; None if there are none.

        Raises:
            CheckpointError: they were cut short, changed, or are those of other heads.
        """
        for path in self.files():
            digest = hashlib.sha256()
            try:
                with open_regular(path) as file:
                    while part := file.read(2**22):
                        digest.update(part)
            except OSError as reason:
                got = f"one where {reason.strerror or reason}"
                raise CheckpointError(expected(str(path), "the features that were saved", got)) from reason
            if path.name != self._name(digest):
                got = "a file that was changed since"
                raise CheckpointError(expected(str(path), "the features that were saved", got))
            try:
                kept = KeptFeatures(**safetensors.load_file(path))
            except (SafetensorError, TypeError) as reason:
                raise CheckpointError(expected(str(path), "features that `save` wrote", reason)) from reason
            if kept.train.ndim != 2 or kept.train.shape[1] != width or len(kept.targets) != len(kept.train):
                got = f"shape {tuple(kept.train.shape)} with {len(kept.targets)} targets"
                raise CheckpointError(expected(f"the features in {path}", f"{width} per sample", got))
            return kept
        return None

    def _name(self, digest: Any) -> str:
        return f"features-{self.heads[:16]}-{digest.hexdigest()}.safetensors"
