"""Selective prediction: what is gained by leaving the most uncertain inputs to somebody else."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected


def risk_coverage(uncertainty: Float[Tensor, " B"], wrong: Tensor) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Coverage 1/B, 2/B, ..., 1 and the error rate on that share of the least uncertain samples.

    Samples of equal uncertainty each count with their mean error, so that the order of the data does not matter.
    """
    if uncertainty.shape != wrong.shape or uncertainty.ndim != 1 or not len(wrong):
        shapes = f"shapes {tuple(uncertainty.shape)} and {tuple(wrong.shape)}"
        raise DataError(expected("uncertainty", "a non-empty vector like `wrong`", shapes))
    if bool(torch.isnan(uncertainty).any()):
        raise DataError(expected("uncertainty", "free of NaN", f"{int(torch.isnan(uncertainty).sum())} NaN values"))
    uncertainty, wrong = uncertainty.cpu(), wrong.cpu()
    distinct, group = torch.unique(uncertainty, return_inverse=True)
    size = torch.zeros(len(distinct), dtype=torch.float64).index_add_(
        0, group, torch.ones(len(wrong), dtype=torch.float64)
    )
    errors = torch.zeros(len(distinct), dtype=torch.float64).index_add_(0, group, wrong.double())
    shared = (errors / size)[group.sort().values]
    kept = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return kept / len(wrong), shared.cumsum(0) / kept


def aurc(uncertainty: Float[Tensor, " B"], wrong: Tensor) -> float:
    """Area under the risk-coverage curve: the mean of the error rates over all coverages; smaller is better."""
    return float(risk_coverage(uncertainty, wrong)[1].mean())
