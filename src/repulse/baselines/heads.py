"""Our own heads under the same contract: LL-E, RLL-E, fs-RLL-E of the paper, and the default of this library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from repulse.baselines import _checks
from repulse.baselines.contract import Method
from repulse.baselines.last_layer import LastLayer
from repulse.baselines.registry import register
from repulse.baselines.resources import Resources
from repulse.particles.calibrate import recentre
from repulse.particles.centred import CentredHeads
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.prediction import Prediction
from repulse.recipe import NAMED, Recipe

H = TypeVar("H", bound="LastLayerEnsemble")


@dataclass
class LastLayerEnsemble(Method):
    """Fit heads by `repulse.fit_heads`; score by their mutual information.

    With `centre="network"` in the recipe, heads are put around the network's last layer as it is; if there are data
    that it has not seen, pass them to `calibrate`.

    Args:
        outputs: number of classes.
        recipe: how to fit.
        repulsion: features of the repulsion samples, `(M, d)`, or None.
        taps: number of columns of the features, the last ones, that are taps.
        layer: the network's own last layer, which sees the first features; None puts heads around their own mean.
    """

    outputs: int
    recipe: Recipe = field(default_factory=Recipe)
    repulsion: Tensor | None = None
    taps: int = 0
    layer: LastLayer | None = None
    heads: Heads = field(init=False, repr=False)

    name = "last-layer ensemble"
    family = "heads"
    random = True
    in_paper = False
    """Whether the paper describes it."""

    @classmethod
    def build(cls: type[H], resources: Resources) -> H:
        """Return heads with the recipe that tables know by the name of the class."""
        method = super().build(resources)
        method.recipe = NAMED[cls.name].replace(seed=resources.seed)
        return method

    @property
    def classes(self) -> int:
        return self.outputs

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        start = None if self.layer is None else (self.layer.weight, self.layer.bias)
        self.heads = fit_heads(
            features,
            targets,
            self.repulsion,
            self.recipe,
            classes=self.outputs,
            start=start,
            taps=self.taps,
            progress=False,
        )
        self.calibrates = isinstance(self.heads, CentredHeads)

    def calibrate(self: H, features: Tensor, targets: Tensor) -> H:
        """Choose the centre of the fitted heads on these samples; heads that were left as fitted stay so."""
        _checks.check_fitted(self)
        _checks.check_features(self, features)
        _checks.check_targets(self, features, targets)
        if isinstance(self.heads, CentredHeads):
            recentre(self.heads, (features.detach(), targets.long()))
        return self

    def _predict(self, features: Tensor) -> Prediction:
        return self.heads.predict(features)


@register
class IndependentHeads(LastLayerEnsemble):
    """Heads that differ by their start alone."""

    name = "LL-E"
    in_paper = True
    seconds = 8.0


@register
class ParameterRepulsiveHeads(LastLayerEnsemble):
    """Heads whose parameters repel each other."""

    name = "RLL-E"
    in_paper = True
    seconds = 12.0


@register
class FunctionRepulsiveHeads(LastLayerEnsemble):
    """Heads whose predictions on repulsion samples repel each other, with one kernel per batch."""

    name = "fs-RLL-E"
    in_paper = True
    uses_repulsion = True
    seconds = 15.0


@register
class DefaultHeads(LastLayerEnsemble):
    """The default recipe of this library: predictions repel each other, with one kernel per repulsion sample."""

    name = "repulse"
    uses_repulsion = True
    calibrates = True
    seconds = 25.0
