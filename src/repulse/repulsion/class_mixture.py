"""Blends of two classes in feature space."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import RepulsionError, expected
from repulse.repulsion.feature_rows import sample_dtype, take
from repulse.repulsion.source import FeatureSource


class ClassMixture(FeatureSource):
    """Blend features of two samples of different classes, with weights between 0.3 and 0.7; in no default."""

    def sample_features(
        self,
        features: Float[Tensor, "N d"],
        count: int,
        generator: torch.Generator,
        targets: Tensor | None = None,
    ) -> Float[Tensor, "M d"]:
        if targets is None or targets.is_floating_point() or targets.ndim != 1:
            raise RepulsionError(expected("targets", "one class per sample for ClassMixture", "none"))
        classes = targets.cpu()
        order, sizes = classes.argsort(stable=True), classes.unique(return_counts=True)[1]
        if len(sizes) < 2:
            raise RepulsionError(expected("targets", "of at least two classes for ClassMixture", len(sizes)))
        ends = sizes.cumsum(0).repeat_interleave(sizes)  # in sorted order, where the class of a sample ends
        outside = len(classes) - sizes.repeat_interleave(sizes)
        one = torch.randint(len(classes), (count,), generator=generator, device="cpu")
        step = (torch.rand(count, generator=generator, device="cpu", dtype=torch.float64) * outside[one]).long()
        two = (ends[one] + step) % len(classes)  # any sample of the other classes
        weight = 0.3 + 0.4 * torch.rand(count, 1, generator=generator, device="cpu")
        a, b = take(features, order[one]), take(features, order[two])
        return (weight.to(a) * a + (1 - weight.to(a)) * b).to(sample_dtype(features))
