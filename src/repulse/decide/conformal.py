"""Guarantees for finite samples, as pure functions of scores: p-values, sets, intervals, error rates.

All of them rest on one assumption: the calibration samples and the new one are exchangeable (drawn alike). Nothing is
assumed of the network, of the scores, or of their distribution. Scores are larger for stranger samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repulse.prediction import RegressionPrediction

ClassSets = Literal["lac", "aps", "raps"]
Intervals = Literal["normalised", "cqr"]

RAPS_PENALTY, RAPS_FREE = 0.01, 5
"""What RAPS adds for each class beyond the first five; constants, so that no data is spent on them."""


def p_values(scores: Float[Tensor, " B"], calibration: Float[Tensor, " m"]) -> Float[Tensor, " B"]:
    """Compute `p = (1 + #{j: s_j >= s}) / (m + 1)`, for which `P(p <= a) <= a` for every `a`.

    Ties count against flagging, so that equal scores always get equal decisions: p is conservative where there are
    ties, and exact at multiples of `1 / (m + 1)` where there are none.

    Examples:
        >>> p_values(torch.tensor([0.0, 2.0, 9.0]), torch.tensor([1.0, 2.0, 3.0])).tolist()
        [1.0, 0.75, 0.25]
    """
    ordered = calibration.double().sort().values
    at_least = len(ordered) - torch.searchsorted(ordered, scores.double().contiguous())
    return (1 + at_least).double() / (len(ordered) + 1)


def randomised_p_values(
    scores: Float[Tensor, " B"], calibration: Float[Tensor, " m"], uniform: Float[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Compute `p = (#{s_j > s} + u (1 + #{s_j = s})) / (m + 1)`, which is uniform exactly, ties or not.

    Args:
        scores: of new samples.
        calibration: scores of calibration samples.
        uniform: `u`, one number from [0, 1) per new sample.
    """
    ordered, scores = calibration.double().sort().values, scores.double().contiguous()
    above = len(ordered) - torch.searchsorted(ordered, scores, right=True)
    equal = len(ordered) - torch.searchsorted(ordered, scores) - above
    return (above + uniform.double() * (1 + equal)) / (len(ordered) + 1)


def p_values_by_class(
    scores: Float[Tensor, " B"],
    classes: Int[Tensor, " B"],
    calibration: Float[Tensor, " m"],
    calibration_classes: Int[Tensor, " m"],
) -> Float[Tensor, " B"]:
    """Compute `p_values` within each class: `P(p <= a | class) <= a` (Mondrian).

    The p-value of a class that no calibration sample has is 1.
    """
    found = torch.ones(len(scores), dtype=torch.float64)
    for one in classes.unique():
        found[classes == one] = p_values(scores[classes == one], calibration[calibration_classes == one])
    return found


def benjamini_hochberg(p: Float[Tensor, " B"], level: float) -> Bool[Tensor, " B"]:
    """Choose which samples of a batch to flag, so that the expected share of wrong flags is at most `level`.

    Flags the k smallest p-values, for the largest k with `p_(k) <= level k / B`. Conformal p-values of one batch share
    their calibration data and so are not independent, but positively dependent (PRDS on the true nulls), and for these
    the level holds as it is: Bates, Candès, Lei, Romano and Sesia, Annals of Statistics 2023, theorem 2.

    Examples:
        >>> benjamini_hochberg(torch.tensor([0.01, 0.04, 0.5, 0.9]), 0.1).tolist()
        [True, True, False, False]
    """
    ordered = p.double().sort().values
    within = ordered <= level * torch.arange(1, len(p) + 1, dtype=torch.float64) / len(p) * (1 + 1e-12)
    return p <= ordered[within][-1] if bool(within.any()) else torch.zeros(len(p), dtype=torch.bool)


def allowed_above(count: int, alpha: float) -> int:
    """Return how many of `count + 1` exchangeable samples may lie above a threshold: `floor((count + 1) alpha)`."""
    return math.floor((count + 1) * alpha + 1e-9)


def threshold(calibration: Float[Tensor, " m"], alpha: float) -> float:
    """Return the `ceil((m + 1)(1 - alpha))`-th smallest score: a new one is above it with probability at most alpha.

    `score > threshold` is the same decision as `p_value <= alpha`. Infinite if there are too few samples.
    """
    above = allowed_above(len(calibration), alpha)
    return float(calibration.double().sort().values[len(calibration) - above]) if above else math.inf


def class_scores(probs: Float[Tensor, "B K"], kind: ClassSets) -> Float[Tensor, "B K"]:
    """Compute how strange each class would be as the label of each sample.

    lac: `1 - p_k`, the smallest sets on average (Sadinle, Lei and Wasserman, 2019). aps: the mass of all classes that
    are at least as probable, sets whose size follows the difficulty of the sample (Romano, Sesia and Candès, 2020).
    raps: the same with a penalty on long sets, for many classes (Angelopoulos, Bates, Malik and Jordan, 2021). None of
    them is randomised: the same input always gets the same set, for which those of aps and raps pay with classes that
    they need not hold where the network is very sure.
    """
    probs = probs.double()
    if kind == "lac":
        return 1 - probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.cumsum(dim=-1)
    if kind == "raps":
        mass = mass + RAPS_PENALTY * (torch.arange(1, probs.shape[-1] + 1) - RAPS_FREE).clamp_min(0)
    return torch.empty_like(mass).scatter_(-1, order, mass)


def class_sets(probs: Float[Tensor, "B K"], kind: ClassSets, limit: float) -> Bool[Tensor, "B K"]:
    """Return which classes are in the set of each sample: those that are not stranger than `limit`, and the likeliest.

    With `limit = threshold(class_scores of calibration labels, alpha)` a set holds the label with probability at least
    `1 - alpha`. The likeliest class is always in, so that no set is empty.
    """
    inside = class_scores(probs, kind) <= limit
    return inside.scatter(-1, probs.argmax(dim=-1, keepdim=True), True)


def interval_scores(
    prediction: RegressionPrediction, targets: Float[Tensor, " B"], kind: Intervals, alpha: float
) -> Float[Tensor, " B"]:
    """Compute how far targets lie outside the prediction.

    normalised: `|y - mean| / std`. cqr: how far y is outside the ensemble's own `1 - alpha` interval, negative inside
    (conformalised quantile regression of Romano, Patterson and Candès, 2019, on the quantiles of the ensemble).
    """
    targets = targets.double()
    if kind == "normalised":
        return (targets - prediction.mean.double()).abs() / prediction.std.double()
    low, high = (end.double() for end in prediction.interval(1 - alpha))
    return torch.maximum(low - targets, targets - high)


def intervals(prediction: RegressionPrediction, kind: Intervals, alpha: float, limit: float) -> Float[Tensor, "B 2"]:
    """Return the ends of each interval: all targets whose `interval_scores` are at most `limit`."""
    if kind == "normalised":
        middle, half = prediction.mean.double(), limit * prediction.std.double()
        return torch.stack([middle - half, middle + half], dim=1)
    low, high = (end.double() for end in prediction.interval(1 - alpha))
    low, high = low - limit, high + limit
    middle = (low + high) / 2  # a negative limit may turn a short interval round: it is then empty
    return torch.stack([torch.minimum(low, middle), torch.maximum(high, middle)], dim=1)


def binomial_cdf(successes: int, trials: int, rate: float) -> float:
    """Compute the probability of at most `successes` among `trials`."""
    if successes >= trials or rate <= 0:
        return 1.0
    if rate >= 1 or successes < 0:
        return 0.0
    k = torch.arange(successes + 1, dtype=torch.float64)
    n = torch.tensor(float(trials), dtype=torch.float64)
    log_terms = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_terms = log_terms + k * math.log(rate) + (n - k) * math.log1p(-rate)
    return min(1.0, float(log_terms.logsumexp(dim=0).exp()))


def clopper_pearson(errors: int, count: int, delta: float) -> float:
    """Return the upper bound of an error rate that holds with probability `1 - delta`; 1 without samples.

    Examples:
        >>> round(clopper_pearson(0, 149, 0.05), 4)  # 1 - 0.05 ** (1 / 149)
        0.0199
    """
    if errors >= count:
        return 1.0
    return _solve(lambda rate: binomial_cdf(errors, count, rate) > delta)


def threshold_range(count: int, alpha: float, level: float = 0.95) -> tuple[float, float]:
    """Return between which rates `threshold` really flags, in `level` of all draws of the calibration data.

    The rate of a threshold that was drawn has the distribution Beta(r, m + 1 - r), `r = allowed_above(m, alpha)`; its
    mean `r / (m + 1)` is what is promised.
    """
    above = allowed_above(count, alpha)
    if not above:
        return 0.0, 0.0
    miss = (1 - level) / 2
    low = _solve(lambda rate: binomial_cdf(above - 1, count, rate) > 1 - miss)
    return low, _solve(lambda rate: binomial_cdf(above - 1, count, rate) > miss)


def _solve(is_below: Callable[[float], bool]) -> float:
    """Return where a condition on a rate turns from true to false."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def fixed_sequence(
    errors: Sequence[int], counts: Sequence[int], risk: float, delta: float, starts: Sequence[int]
) -> int | None:
    """Return the loosest of a sequence of thresholds whose error rate is at most `risk`; None if none is shown to be.

    With probability at least `1 - delta` over calibration data, the rate of every threshold that passes is at most
    `risk`, and so is that of the one returned. Each is tested by the exact binomial tail, `P(Bin(n, risk) <= errors)`
    (which is at most a level exactly if the Clopper-Pearson bound at that level is at most `risk`). The level of each
    start is `delta / len(starts)`; a threshold that passes hands its level on to the next, which adds it to its own
    (the fallback procedure of Wiens, 2003: a fixed sequence with several starts). A single start would either stand
    where few samples are, and stop the sequence at once, or be chosen by looking, which the bound does not allow.

    Args:
        errors: among accepted calibration samples, for each threshold, from the strictest to the loosest.
        counts: how many are accepted.
        risk: bound on the error rate.
        delta: probability with which the bound may fail.
        starts: positions in the sequence, fixed before data is seen.
    """
    tails = [binomial_cdf(wrong, count, risk) for wrong, count in zip(errors, counts, strict=True)]
    return loosest(tails, delta, starts)


def loosest(p_values: Sequence[float], delta: float, starts: Sequence[int]) -> int | None:
    """Return the last of a sequence of tests that passes, as `fixed_sequence` tells; None if none does."""
    handed, found = 0.0, None
    for i, p_value in enumerate(p_values):
        level = handed + (delta / len(starts) if i in starts else 0.0)
        passes = level > 0 and p_value <= level
        handed, found = (level, i) if passes else (0.0, found)
    return found
