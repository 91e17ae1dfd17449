"""Deep ensembles: several full networks, trained apart (Lakshminarayanan et al., 2017) or pushed apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from repulse._modes import evaluating
from repulse.baselines.contract import Method
from repulse.errors import DataError, expected
from repulse.particles.fit import fit_networks
from repulse.particles.heads import Networks
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import Recipe

BATCH = 500


@dataclass
class DeepEnsemble(Method):
    """Mean softmax of M networks; the score is their mutual information. Takes inputs, not features.

    Args:
        networks: the members.
        train: trains one member, `train(network, inputs, targets, number)`; None if they are trained already.
        prepare: what to do with a batch of inputs before a network sees it, such as normalisation.
    """

    networks: Sequence[nn.Module]
    train: Callable[[nn.Module, Tensor, Tensor, int], object] | None = None
    prepare: Callable[[Tensor], Tensor] = field(default=lambda batch: batch)

    takes: ClassVar[str] = "inputs"
    seeded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not len(self.networks):
            raise DataError(expected("networks", "at least one network", "none"))

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"DE-{len(self.networks)}"

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
    """M networks trained together, pushed apart in parameter or function space (D'Angelo and Fortuin, 2021).

    Args:
        networks: the members, trained in place.
        recipe: with `space="parameters"` or `"function"`; `RLL_E` and `FS_RLL_E` are such.
        repulsion: inputs on which to repel in function space. Batch normalisation would learn from them too: use
            networks without it.
        prepare: what to do with inputs before a network sees them, such as normalisation.
    """

    networks: Sequence[nn.Module]
    recipe: Recipe
    repulsion: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] = field(default=lambda batch: batch)
    particles: Networks = field(init=False, repr=False)

    takes: ClassVar[str] = "inputs"
    seeded: ClassVar[bool] = True

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"repulsive DE-{len(self.networks)} ({self.recipe.space})"

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
