"""Our own heads under the same contract: LL-E, RLL-E, fs-RLL-E."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from repulse.baselines.contract import Method
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.prediction import Prediction
from repulse.recipe import Recipe


@dataclass
class LastLayerEnsemble(Method):
    """`repulse.fit_heads` as a method; the score is the mutual information of the heads.

    Args:
        outputs: number of classes.
        recipe: how to fit.
        repulsion: features of the repulsion samples, `(M, d)`, or None.
        taps: how many of the last columns of the features are taps.
    """

    outputs: int
    recipe: Recipe = field(default_factory=Recipe)
    repulsion: Tensor | None = None
    taps: int = 0
    heads: Heads = field(init=False, repr=False)

    name: ClassVar[str] = "last-layer ensemble"
    seeded: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return self.outputs

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        self.heads = fit_heads(
            features, targets, self.repulsion, self.recipe, classes=self.outputs, taps=self.taps, progress=False
        )

    def _predict(self, features: Tensor) -> Prediction:
        return self.heads.predict(features)
