"""Confidence intervals of metrics by the percentile bootstrap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected
from repulse.metrics.inputs import check_share
from repulse.metrics.ranking import FORMULAS, cumulated, ranks

MAX_DRAWN = 100_000
"""Maximum number of samples drawn at once, so that they stay in the cache of the processor."""


class Interval(NamedTuple):
    """The value of a metric and the bounds of its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def bootstrap(
    metric: Callable[..., float],
    *arrays: Any,
    paired: bool = True,
    repeats: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute a metric and the quantiles of its values on resamples, drawn with replacement.

    Examples:
        >>> from repulse.metrics import auroc
        >>> inside, outside = torch.arange(100.0), torch.arange(50.0, 150.0)
        >>> print(bootstrap(auroc, inside, outside, paired=False))
        0.875 (0.825 to 0.9166)

    Args:
        metric: takes the arrays, returns a number. AUROC, AUPR and FPR@95 of all resamples are computed at once.
        *arrays: vectors, tensors or predictions; anything that can be indexed by a tensor of row numbers.
        paired: rows of all arrays belong together and are drawn together (a prediction and its targets); if False, each
            array is resampled on its own (in-distribution and out-of-distribution scores).
        repeats: number of resamples.
        level: share of the resamples between the bounds.
        seed: for the draws.
    """
    check_positive_integer("repeats", repeats)
    check_share("level", level)
    sizes = [len(array) for array in arrays]
    if not sizes or not all(sizes):
        raise DataError(expected("arrays", "at least one, none empty", f"sizes {sizes}"))
    if paired and len(set(sizes)) > 1:
        raise DataError(expected("paired arrays", "of one length", f"lengths {sizes}"))
    generator = torch.Generator().manual_seed(seed)
    value = float(metric(*arrays))
    if metric in FORMULAS and not paired and len(arrays) == 2:
        values = _by_counts(FORMULAS[metric], *arrays, repeats=repeats, generator=generator)
    else:
        draw = functools.partial(_rows, sizes, paired, generator)
        resampled = ([array[rows] for array, rows in zip(arrays, draw(), strict=True)] for _ in range(repeats))
        values = torch.tensor([float(metric(*sample)) for sample in resampled], dtype=torch.float64)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return Interval(value, *values.quantile(tails).tolist())


def _rows(sizes: list[int], paired: bool, generator: torch.Generator) -> list[Tensor]:
    drawn = [torch.randint(size, (size,), generator=generator) for size in (sizes[:1] if paired else sizes)]
    return drawn * len(sizes) if paired else drawn


def _by_counts(
    formula: Callable[[Tensor, Tensor], Tensor],
    inside: Tensor,
    outside: Tensor,
    repeats: int,
    generator: torch.Generator,
) -> Tensor:
    """Compute all resamples as counts over the distinct scores, which are sorted once."""
    *samples, distinct = ranks(inside, outside)
    values = []
    for start in range(0, repeats, step := max(1, MAX_DRAWN // (len(inside) + len(outside)))):
        number = min(step, repeats - start)
        offset = distinct * torch.arange(number).unsqueeze(1)
        counts = []
        for rank in samples:
            drawn = rank[torch.randint(len(rank), (number, len(rank)), generator=generator)] + offset
            counts.append(cumulated(drawn.flatten().bincount(minlength=number * distinct).view(number, distinct)))
        values.append(formula(*counts))
    return torch.cat(values)
