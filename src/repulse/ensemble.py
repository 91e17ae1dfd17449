"""Ensemble: a network and its heads, as one module that predicts with uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from repulse.backbone.features import feeding, inputs_of
from repulse.backbone.split import Backbone
from repulse.errors import DataError, expected
from repulse.particles.heads import Heads
from repulse.particles.history import Epoch
from repulse.particles.tasks import Classification
from repulse.prediction import Prediction, mean_log_probs
from repulse.recipe import Recipe


class Ensemble(nn.Module):
    """The network that was retrofitted, with an ensemble of heads in place of its last layer.

    Called like the network it returns the logarithm of the mean class probabilities (or, for regression, the mean), so
    that it drops in wherever the network's logits went. `predict` tells what it does not know.

    Attributes:
        backbone: the network, shared and unchanged, seen as features and last layer.
        heads: the fitted heads.
        repulsion: in words, where the heads were made to disagree.
    """

    def __init__(self, backbone: Backbone, heads: Heads, repulsion: str = "nowhere") -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = heads
        self.repulsion = repulsion

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the fit."""
        return self.heads.recipe

    @property
    def history(self) -> tuple[Epoch, ...]:
        """Diagnostics of the fit, one record an epoch."""
        return self.heads.history

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.backbone.model

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean class probabilities `(B, K)`, or for regression the mean `(B, 1)`; differentiable."""
        outputs = self.heads(self.backbone(x))
        if isinstance(self.heads.task, Classification):
            return mean_log_probs(outputs.log_softmax(dim=-1))
        return outputs[..., :1].mean(dim=0)

    def predict(self, x: Tensor | Iterable[Any], progress: bool = True) -> Prediction:
        """Predict with uncertainty.

        Args:
            x: a tensor of inputs, one batch `(inputs, targets)` as the loader gives it, or a whole loader (a list of
                tensors that are all inputs is a loader).
            progress: show a bar over a loader when it takes more than two seconds.
        """
        if isinstance(x, Tensor) or _is_batch(x):
            return self._predict(inputs_of(x))
        if isinstance(x, Mapping):
            raise DataError(expected("x", "a tensor, a batch that starts with one, or a loader", type(x).__name__))
        bar = tqdm(x, desc="predicting", unit="batch", delay=2.0, disable=not progress, leave=False)
        parts = [self._predict(inputs_of(batch)) for batch in bar]
        if not parts:
            raise DataError(expected("x", "a loader of at least one batch", "none"))
        return Prediction.cat(parts)

    def score(self, x: Tensor | Iterable[Any]) -> Tensor:
        """Epistemic uncertainty, `(B,)`: larger means further from what the network was trained on."""
        return self.predict(x).epistemic

    @torch.no_grad()
    def _predict(self, inputs: Tensor) -> Prediction:
        device = next(self.heads.parameters()).device
        with feeding(inputs, "x", DataError):
            features = self.backbone(inputs.to(device))
        return self.heads.predict(features)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.heads.parameters())
        return (
            f"Ensemble({self.heads.extra_repr()}; {count:,} parameters in place of `{self.backbone.last_name}` of "
            f"{type(self.model).__name__}; repelled {self.repulsion})"
        )


def _is_batch(x: Any) -> bool:
    """Whether a sequence is one batch `(inputs, targets, ...)` rather than a list of batches."""
    if not isinstance(x, tuple | list) or not x or not isinstance(x[0], Tensor):
        return False
    if len(x) == 1 or not isinstance(x[1], Tensor) or x[1].shape[1:] != x[0].shape[1:]:
        return True
    if len(x) == 2 and x[0].shape[1:] == (1,):
        raise DataError(expected("x", "a tensor of inputs", "two columns: one batch with its targets, or two batches?"))
    return False
