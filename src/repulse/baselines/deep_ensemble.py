"""Deep ensembles: networks trained independently (Lakshminarayanan et al., 2017) or with repulsion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from repulse._modes import evaluating
from repulse.baselines.contract import Method
from repulse.errors import DataError, expected
from repulse.particles.fit_networks import fit_networks
from repulse.particles.heads import Networks
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import Recipe

BATCH = 500
"""Maximum number of inputs that a network sees at once."""


@dataclass
class DeepEnsemble(Method):
    """Predict the mean softmax of M networks; score by their mutual information.

    Args:
        networks: the members.
        train: trains one member, `train(network, inputs, targets, number)`; None if they are trained already.
        prepare: applied to a batch of inputs before a network sees it, such as normalisation.
    """

    networks: Sequence[nn.Module]
    train: Callable[[nn.Module, Tensor, Tensor, int], object] | None = None
    prepare: Callable[[Tensor], Tensor] = field(default=lambda batch: batch)

    name = "DE"
    family = "networks"
    takes = "inputs"

    def __post_init__(self) -> None:
        if not len(self.networks):
            raise DataError(expected("networks", "at least one network", "none"))
        self.name = f"DE-{len(self.networks)}"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        if self.train is None:
            return
        for number, network in enumerate(self.networks):
            with torch.enable_grad():
                self.train(network, features, targets, number)

    def _predict(self, features: Tensor) -> ClassPrediction:
        members = []
        for network in self.networks:
            with evaluating(network):
                logits = [network(self.prepare(part)) for part in features.split(BATCH)]
            members.append(torch.cat(logits).log_softmax(dim=-1))
        return ClassPrediction(torch.stack(members))


@dataclass
class RepulsiveDeepEnsemble(Method):
    """Train M networks together that repel each other in parameter or function space (D'Angelo and Fortuin, 2021).

    Args:
        networks: the members, trained in place.
        recipe: with `space="parameters"` or `"function"`, such as `RLL_E` or `FS_RLL_E`.
        repulsion: inputs on which to repel in function space. Use networks without batch normalisation, whose
            statistics would include these inputs.
        prepare: applied to inputs before a network sees them, such as normalisation.
    """

    networks: Sequence[nn.Module]
    recipe: Recipe
    repulsion: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] = field(default=lambda batch: batch)
    particles: Networks = field(init=False, repr=False)

    name = "repulsive DE"
    family = "networks"
    takes = "inputs"
    random = True

    def __post_init__(self) -> None:
        self.name = f"repulsive DE-{len(self.networks)} ({self.recipe.space})"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        for network in self.networks:
            network.train()
        outside = None if self.repulsion is None else self.prepare(self.repulsion)
        with torch.random.fork_rng():  # dropout draws from the global generator
            torch.manual_seed(self.recipe.seed)
            self._fit_together(self.prepare(features), targets, outside)
        for network in self.networks:
            network.eval()

    def _fit_together(self, inputs: Tensor, targets: Tensor, outside: Tensor | None) -> None:
        self.particles = fit_networks(self.networks, inputs, targets, outside, self.recipe, progress=False)

    def _predict(self, features: Tensor) -> Prediction:
        return Prediction.cat([self.particles.predict(self.prepare(part)) for part in features.split(BATCH)])
