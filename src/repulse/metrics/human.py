"""Agreement of aleatoric uncertainty with the ambiguity that people see."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.metrics.inputs import vector


def human_correlation(aleatoric: Float[Tensor, " B"], soft_labels: Tensor) -> float:
    """Compute Spearman's rank correlation of aleatoric uncertainty with the entropy of the labels that people gave.

    Examples:
        >>> round(human_correlation(torch.tensor([0.1, 0.2, 0.5]), torch.tensor([[10, 0], [9, 1], [5, 5]])), 6)
        1.0

    Args:
        aleatoric: aleatoric uncertainty of each sample.
        soft_labels: for each sample and class, the number or the share of people who chose it, `(B, K)`.
    """
    aleatoric = vector("aleatoric", aleatoric)
    people = human_entropy(soft_labels)
    if len(people) != len(aleatoric):
        raise DataError(expected("soft_labels", f"{len(aleatoric)} rows, one per sample", len(people)))
    return spearman(aleatoric, people)


def human_entropy(soft_labels: Tensor) -> Float[Tensor, " B"]:
    """Compute the entropy of each row, in nats, to six digits, so that equal rows tie despite rounding errors."""
    if not isinstance(soft_labels, Tensor) or soft_labels.ndim != 2:
        got = f"shape {tuple(soft_labels.shape)}" if isinstance(soft_labels, Tensor) else type(soft_labels).__name__
        raise DataError(expected("soft_labels", "a tensor of shape (samples, classes)", got))
    labels = soft_labels.detach().double().cpu()
    if not bool((labels.isfinite() & (labels >= 0)).all()) or bool((labels.sum(dim=1) <= 0).any()):
        raise DataError(expected("soft_labels", "counts or shares, some in every row", "negative, NaN or empty rows"))
    return torch.special.entr(labels / labels.sum(dim=1, keepdim=True)).sum(dim=1).round(decimals=6)


def spearman(a: Tensor, b: Tensor) -> float:
    """Compute the correlation of the ranks of two vectors; equal values share the mean of their ranks."""
    ranked = [_mid_ranks(values) for values in (a, b)]
    deviations = [rank - rank.mean() for rank in ranked]
    norms = [float(deviation.norm()) for deviation in deviations]
    if not all(norms):
        raise DataError(expected("both vectors", "of at least two different values", "a constant one"))
    return max(-1.0, min(1.0, float(deviations[0] @ deviations[1]) / (norms[0] * norms[1])))


def _mid_ranks(values: Tensor) -> Tensor:
    _, group, size = torch.unique(values, return_inverse=True, return_counts=True)
    last = size.cumsum(0).double()
    return (last - (size - 1) / 2)[group]
