"""laplace-torch, which the fit and the prediction are measured against, and features for both."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

NEEDS_LAPLACE = "needs laplace-torch"
BATCH = 1024


@dataclass(frozen=True, eq=False)
class FeatureProblem:
    """Features, their classes, where to repel, and the last layer of the network that made them."""

    train: Tensor
    targets: Tensor
    repulsion: Tensor
    weight: Tensor
    bias: Tensor


def synthetic(samples: int, d: int, classes: int = 10) -> FeatureProblem:
    """Draw features of classes that overlap a little, with the means as last layer."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, d, generator=generator) * (9 / d) ** 0.5
    targets = torch.arange(samples) % classes
    train = torch.empty(samples, d)
    for part, chosen in zip(train.split(10_000), targets.split(10_000), strict=True):
        part.normal_(generator=generator).add_(means[chosen])
    away = 3 * torch.randn(min(samples, 10_000), d, generator=generator)
    return FeatureProblem(train, targets, away, means, -means.square().sum(dim=1) / 2)


def has_laplace() -> bool:
    return importlib.util.find_spec("laplace") is not None


def sliced(problem: FeatureProblem) -> DataLoader[Any]:
    """Cut batches out of the features whole, which costs nothing."""
    data = TensorDataset(problem.train, problem.targets)
    return DataLoader(data, sampler=BatchSampler(SequentialSampler(data), BATCH, drop_last=False), batch_size=None)


def collated(problem: FeatureProblem) -> DataLoader[Any]:
    """Put batches together sample by sample, as the documentation of laplace-torch does."""
    return DataLoader(TensorDataset(problem.train, problem.targets), batch_size=BATCH)


def fit_laplace(problem: FeatureProblem, batches: DataLoader[Any]) -> Any:
    """Fit the Kronecker posterior of the last layer by laplace-torch, without a search for the prior's precision."""
    classes, d = problem.weight.shape
    layer = nn.Linear(d, classes, device="meta").to_empty(device="cpu")  # drawing weights would change the random state
    with torch.no_grad():
        layer.weight.copy_(problem.weight)
        layer.bias.copy_(problem.bias)
    with warnings.catch_warnings(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of its dependencies about each other
        from repulse._operators import define_missing

        define_missing()
        import laplace

        posterior = laplace.Laplace(layer, "classification", subset_of_weights="all", hessian_structure="kron")
        posterior.fit(batches)
    return posterior


def predict_laplace(posterior: Any, features: Tensor, samples: int = 100) -> Tensor:
    """Compute mean probabilities over samples of the logits; in parts, for the Jacobians are large."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        how = {"pred_type": "glm", "link_approx": "mc", "n_samples": samples}
        return torch.cat([posterior(part, **how).detach() for part in features.split(BATCH)])
