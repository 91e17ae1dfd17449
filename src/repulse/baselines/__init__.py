"""Methods to compare with, one per file, all under one contract; `METHODS` lists them by name.

>>> import torch
>>> from repulse import baselines
>>> features, targets = torch.randn(200, 8), torch.randint(3, (200,))
>>> layer = baselines.LastLayer.fit(features, targets)
>>> method = baselines.build("KNN", baselines.Resources(layer)).fit(features, targets)
>>> method.score(torch.randn(5, 8)).shape
torch.Size([5])
>>> [name for name, method in baselines.METHODS.items() if method.uses_repulsion]
['discriminator', 'outlier exposure', 'tuned outlier exposure', 'fs-RLL-E', 'repulse']
"""

from repulse.baselines.contract import Method, Predictor
from repulse.baselines.ddu import DDU
from repulse.baselines.deep_ensemble import DeepEnsemble, RepulsiveDeepEnsemble
from repulse.baselines.detector import Detector
from repulse.baselines.discriminator import Discriminator
from repulse.baselines.energy import Energy, MaxLogit
from repulse.baselines.heads import LastLayerEnsemble
from repulse.baselines.knn import KNN
from repulse.baselines.laplace import Laplace
from repulse.baselines.last_layer import LastLayer
from repulse.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from repulse.baselines.map import MAP
from repulse.baselines.outlier_exposure import OutlierExposure
from repulse.baselines.react import ReAct
from repulse.baselines.registry import METHODS, build, import_methods, register
from repulse.baselines.resources import Resources
from repulse.baselines.sngp import SNGP
from repulse.baselines.temperature import Temperature
from repulse.baselines.vim import ViM

import_methods(__name__, __path__)  # those of files that are not named above

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
    "Predictor",
    "ReAct",
    "RelativeMahalanobis",
    "RepulsiveDeepEnsemble",
    "Resources",
    "Temperature",
    "ViM",
    "build",
    "register",
]
