"""Features that a fit was made from, kept so that heads can be fitted again, or explained, without the network.

`retrofit` leaves them with the ensemble; `ensemble.save(folder, features=True)` writes them next to the heads, as one
safetensors file whose name holds its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from repulse._files import write_whole
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


def write(kept: KeptFeatures | None, folder: Path) -> None:
    """Write features into the folder of an ensemble, in place of those that are there; None removes them."""
    old = set(folder.glob(PATTERN))
    if kept is not None:
        tensors = {name: value.contiguous().cpu() for name, value in vars(kept).items() if value is not None}
        content = safetensors.save(tensors)
        old.discard(write_whole(folder / f"features-{hashlib.sha256(content).hexdigest()}.safetensors", content))
    for stale in old:
        stale.unlink(missing_ok=True)


def read(folder: Path, width: int) -> KeptFeatures | None:
    """Read the features in the folder of an ensemble whose heads take this many; None if there are none.

    Raises:
        CheckpointError: they were cut short, changed, or are those of other heads.
    """
    for path in sorted(folder.glob(PATTERN)):
        digest = hashlib.sha256()
        for part in _parts(path):
            digest.update(part)
        if path.name != f"features-{digest.hexdigest()}.safetensors":
            raise CheckpointError(expected(str(path), "the features that were saved", "a file that was changed since"))
        try:
            kept = KeptFeatures(**safetensors.load_file(path))
        except (SafetensorError, TypeError) as reason:
            raise CheckpointError(expected(str(path), "features that `save` wrote", reason)) from reason
        if kept.train.ndim != 2 or kept.train.shape[1] != width or len(kept.targets) != len(kept.train):
            got = f"shape {tuple(kept.train.shape)} with {len(kept.targets)} targets"
            raise CheckpointError(expected(f"the features in {path}", f"{width} per sample", got))
        return kept
    return None


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(2**22):
            yield part
