"""Honest uncertainty for a network that is already trained.

>>> import torch, repulse
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
>>> batches = [(torch.randn(64, 2), torch.randint(3, (64,))) for _ in range(4)]
>>> ensemble = repulse.retrofit(network, batches, repulsion=repulse.repulsion.UniformBox(-5, 5), progress=False)
>>> p = ensemble.predict(torch.randn(8, 2))
>>> p.probs.shape, p.aleatoric.shape, p.epistemic.shape
(torch.Size([8, 3]), torch.Size([8]), torch.Size([8]))
"""

from repulse import decide, functional, metrics, repulsion, scale
from repulse._version import __version__
from repulse.active import Acquisition, ActiveLearning, Audit, acquire, audit, batchbald
from repulse.decide import Decision, Gate, Promise, Watch
from repulse.ensemble import Ensemble, load
from repulse.errors import (
    BackboneError,
    CacheError,
    CacheWarning,
    CheckpointError,
    DataError,
    DataWarning,
    FitWarning,
    NonFiniteLossError,
    PromiseWarning,
    RecipeError,
    RepulseError,
    RepulsionError,
)
from repulse.evaluation import Evaluation, evaluate
from repulse.particles import tasks
from repulse.particles.fit import fit_heads
from repulse.particles.fit_networks import fit_networks
from repulse.particles.heads import Heads, Networks
from repulse.particles.history import Epoch
from repulse.prediction import (
    ClassPrediction,
    DensePrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    Prediction,
    RegressionPrediction,
    TokenPrediction,
)
from repulse.recipe import FS_RLL_E, LL_E, PAPER_TRAINING, RLL_E, Recipe
from repulse.retrofit import retrofit
from repulse.suggest import Suggestion, suggest
from repulse.summary import Summary

__all__ = [
    "FS_RLL_E",
    "LL_E",
    "PAPER_TRAINING",
    "RLL_E",
    "Acquisition",
    "ActiveLearning",
    "Audit",
    "BackboneError",
    "CacheError",
    "CacheWarning",
    "CheckpointError",
    "ClassPrediction",
    "DataError",
    "DataWarning",
    "Decision",
    "DensePrediction",
    "Ensemble",
    "Epoch",
    "Evaluation",
    "FitWarning",
    "Gate",
    "Heads",
    "MultilabelPrediction",
    "MultiregressionPrediction",
    "Networks",
    "NonFiniteLossError",
    "Prediction",
    "Promise",
    "PromiseWarning",
    "Recipe",
    "RecipeError",
    "RegressionPrediction",
    "RepulseError",
    "RepulsionError",
    "Suggestion",
    "Summary",
    "TokenPrediction",
    "Watch",
    "__version__",
    "acquire",
    "audit",
    "batchbald",
    "decide",
    "evaluate",
    "fit_heads",
    "fit_networks",
    "functional",
    "load",
    "metrics",
    "repulsion",
    "retrofit",
    "scale",
    "suggest",
    "tasks",
]
