"""Methods to compare with, one a file, all under one contract; and a table of them by name.

>>> import torch
>>> from repulse import baselines
>>> features, targets = torch.randn(200, 8), torch.randint(3, (200,))
>>> layer = baselines.LastLayer.fit(features, targets)
>>> method = baselines.build("KNN", baselines.Setting(layer)).fit(features, targets)
>>> method.score(torch.randn(5, 8)).shape
torch.Size([5])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from repulse.baselines.contract import Detector, LastLayer, Method
from repulse.baselines.ddu import DDU
from repulse.baselines.deep_ensemble import DeepEnsemble, RepulsiveDeepEnsemble
from repulse.baselines.energy import Energy, MaxLogit
from repulse.baselines.heads import LastLayerEnsemble
from repulse.baselines.knn import KNN
from repulse.baselines.laplace import Laplace
from repulse.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from repulse.baselines.map import MAP
from repulse.baselines.outliers import Discriminator, OutlierExposure
from repulse.baselines.react import ReAct
from repulse.baselines.sngp import SNGP
from repulse.baselines.temperature import Temperature
from repulse.baselines.vim import ViM
from repulse.errors import DataError, check_choice, expected
from repulse.recipe import NAMED, Recipe


@dataclass(frozen=True)
class Setting:
    """What methods start from, beside the training features.

    Attributes:
        layer: the network's last layer.
        repulsion: features of the repulsion samples, for the methods that use them.
        taps: how many of the last columns of the features are taps.
        seed: of whatever is random.
    """

    layer: LastLayer
    repulsion: Tensor | None = None
    taps: int = 0
    seed: int = 0

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.layer.classes

    @property
    def outside(self) -> Tensor:
        """The repulsion samples, which must be there."""
        if self.repulsion is None:
            raise DataError(expected("repulsion", "features of samples that are outside", "None"))
        return self.repulsion


def _heads(recipe: Recipe) -> Callable[[Setting], Method]:
    repelled = recipe.space == "function"
    return lambda s: LastLayerEnsemble(s.classes, recipe.replace(seed=s.seed), s.outside if repelled else None, s.taps)


METHODS: dict[str, Callable[[Setting], Method]] = {
    "MAP": lambda s: MAP(s.layer),
    "MAP + temperature": lambda s: Temperature(MAP(s.layer), seed=s.seed),
    "MaxLogit": lambda s: MaxLogit(s.layer),
    "Energy": lambda s: Energy(s.layer),
    "ReAct": lambda s: ReAct(s.layer),
    "KNN": lambda s: KNN(s.layer),
    "Mahalanobis": lambda s: Mahalanobis(s.layer),
    "relative Mahalanobis": lambda s: RelativeMahalanobis(s.layer),
    "ViM": lambda s: ViM(s.layer),
    "DDU": lambda s: DDU(s.layer),
    "SNGP": lambda s: SNGP(s.classes, seed=s.seed),
    "LL-Laplace": lambda s: Laplace(s.layer, seed=s.seed),
    "LL-Laplace (full)": lambda s: Laplace(s.layer, "full", seed=s.seed),
    "LL-Laplace (diagonal)": lambda s: Laplace(s.layer, "diag", seed=s.seed),
    "discriminator": lambda s: Discriminator(s.layer, s.outside, s.taps),
    "outlier exposure": lambda s: OutlierExposure(s.outside, s.classes, taps=s.taps, seed=s.seed),
    **{name: _heads(recipe) for name, recipe in NAMED.items()},
}
"""Every method that works on features, by name: what to build from a `Setting`."""


def build(name: str, setting: Setting) -> Method:
    """A method by its name, ready to be fitted."""
    check_choice("name", name, METHODS)
    return METHODS[name](setting)


__all__ = [
    "DDU",
    "KNN",
    "MAP",
    "METHODS",
    "SNGP",
    "DeepEnsemble",
    "Detector",
    "Discriminator",
    "Energy",
    "Laplace",
    "LastLayer",
    "LastLayerEnsemble",
    "Mahalanobis",
    "MaxLogit",
    "Method",
    "OutlierExposure",
    "ReAct",
    "RelativeMahalanobis",
    "RepulsiveDeepEnsemble",
    "Setting",
    "Temperature",
    "ViM",
    "build",
]
