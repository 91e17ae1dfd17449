"""How uncertainty splits into aleatoric and epistemic parts: pure functions of member log-probabilities `(n, B, K)`.

Of logarithms, so that extreme logits stay finite. Entropies are in nats.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def mean_log_probs(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, "B K"]:
    """Compute the log of the mean member probability: `logsumexp_i log p_i - log n`."""
    return torch.logsumexp(log_probs, dim=0) - math.log(log_probs.shape[0])


def entropy(log_probs: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """Compute the entropy `-sum_k p_k log p_k`, with `0 log 0 = 0`."""
    return -_weighted(log_probs.exp(), log_probs).sum(dim=-1)


def expected_entropy(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Compute the aleatoric uncertainty: the mean over members of their entropies, the doubt they share.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits.
    """
    return entropy(log_probs).mean(dim=0)


def mutual_information(log_probs: Float[Tensor, "n B K"]) -> Float[Tensor, " B"]:
    """Compute the epistemic uncertainty: `mean_i KL(p_i || mean p)`, how far members disagree; from 0 to log n.

    Takes log-probabilities (`logits.log_softmax(dim=-1)`), not logits. The divergence form is used because the
    difference of entropies goes negative in float32.
    """
    log_mean = mean_log_probs(log_probs)
    divergence = _weighted(log_probs.exp(), log_probs - log_mean).sum(dim=-1).mean(dim=0)
    return divergence.clamp(0.0, math.log(log_probs.shape[0]))


def uncertainties(log_probs: Float[Tensor, "n B K"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Compute `expected_entropy` and `mutual_information` in one pass over a few samples at once.

    What is computed on the way stays in the processor's cache, and needs little memory however many classes there are.
    """
    if torch.compiler.is_compiling():  # a compiler cuts loops for itself, and sizes may be symbols
        return split_uncertainty(log_probs, mean_log_probs(log_probs))
    n, _, classes = log_probs.shape
    few = MAX_ELEMENTS_CPU if log_probs.device.type == "cpu" else MAX_ELEMENTS_GPU
    parts = log_probs.split(max(few // max(n * classes, 1), 1), dim=1)
    found = [split_uncertainty(part, mean_log_probs(part)) for part in parts]
    aleatoric, epistemic = zip(*found, strict=True)
    return torch.cat(aleatoric), torch.cat(epistemic)


def split_uncertainty(log_probs: Float[Tensor, "n B K"], log_mean: Float[Tensor, "B K"]) -> tuple[Tensor, Tensor]:
    """Compute both parts, given the log of the mean member probability."""
    probs = log_probs.exp()
    entropies = -_weighted(probs, log_probs).sum(dim=-1)
    divergences = _weighted(probs, log_probs - log_mean).sum(dim=-1)
    return entropies.mean(dim=0), divergences.mean(dim=0).clamp(0.0, math.log(log_probs.shape[0]))


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Compute `weights * values`, where a zero weight gives zero even if the value is infinite or NaN."""
    return weights * values.nan_to_num()


MAX_ELEMENTS_CPU, MAX_ELEMENTS_GPU = 2**18, 2**26
"""Maximum number of elements processed at once, on a CPU and on a GPU."""


def variance_over_members(means: Float[Tensor, "n ..."]) -> Float[Tensor, "..."]:
    """Compute the variance of means over members, at most half the largest number: squares overflow before means do."""
    most = torch.finfo(means.dtype).max / 2  # a sum with the aleatoric variance has room
    return (means - means.mean(dim=0)).square().mean(dim=0).clamp_max(most)
