"""Selective prediction: the error rate if the most uncertain inputs are not predicted."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.metrics.inputs import check_share, vector


def risk_coverage(uncertainty: Float[Tensor, " B"], wrong: Tensor) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Compute the coverages 1/B, 2/B, ..., 1 and the error rates on these shares of the least uncertain samples.

    Samples of equal uncertainty each count with their mean error, so that the order of the data does not matter.
    """
    if isinstance(uncertainty, Tensor) and isinstance(wrong, Tensor) and uncertainty.shape != wrong.shape:
        shapes = f"shapes {tuple(uncertainty.shape)} and {tuple(wrong.shape)}"
        raise DataError(expected("uncertainty", "a non-empty vector like `wrong`", shapes))
    uncertainty, wrong = vector("uncertainty", uncertainty), vector("wrong", wrong)
    distinct, group, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    errors = torch.zeros_like(distinct).index_add_(0, group, wrong)
    kept = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return kept / len(wrong), (errors / size).repeat_interleave(size).cumsum(0) / kept


def aurc(uncertainty: Float[Tensor, " B"], wrong: Tensor) -> float:
    """Compute the area under the risk-coverage curve, the mean error rate over all coverages; smaller is better."""
    return float(risk_coverage(uncertainty, wrong)[1].mean())


def coverage_at_risk(uncertainty: Float[Tensor, " B"], wrong: Tensor, risk: float = 0.05) -> float:
    """Compute the largest coverage of `risk_coverage` whose error rate is at most `risk`; 0 if there is none.

    Examples:
        >>> coverage_at_risk(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 1, 1]), risk=0.4)
        0.75
    """
    check_share("risk", risk)
    coverage, rate = risk_coverage(uncertainty, wrong)
    allowed = coverage[rate <= risk + 1e-12]  # 1 wrong of 20 is 0.05, whatever its sum was rounded to
    return float(allowed[-1]) if len(allowed) else 0.0
