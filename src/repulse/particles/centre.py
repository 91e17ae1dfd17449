"""Where the members of an ensemble are centred: on the network inside the data, on nothing outside of it.

With `h_i` the outputs of the heads as fitted, `z_0` those of the network, `s(x) >= 1` the release (`distance.py`) and
`t(x)` the growth (`growth.py`),

    z_i(x) = (alpha z_0(x) + (1 - alpha) mean_j h_j(x)) / (T s(x)) + g t(x) (h_i(x) - mean_j h_j(x))

so that heads carry nothing but disagreement, which grows with the distance. Inside the data
`s = 1` and the mean prediction is the network's, once calibrated; outside, the network's own confidence, which grows
without bound along a ray, fades, and disagreement shows. `alpha` and `T` are chosen on labels that the network has not
seen, and the gain `g` is then a quarter: disagreement blurs predictions, but ranks inputs nearly as well when it is
smaller. Without labels, `alpha = T = 1` keeps the network, and `g` is one half.

If labels show that the network is still right where it is let go of first, that begins further out: `s(x)` is divided
by a reach of 2, 8, 32 or 256, and stays at least 1.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import check_number

if TYPE_CHECKING:
    from repulse.particles.tasks.task import Task

ALPHAS = (1.0, 0.5, 0.0)
"""Shares of the network in the centre that are tried; the network alone comes first, and stays unless beaten."""

MARGIN = 2.0
"""Nats, in total over the validation data, by which another centre must beat the network's: few labels cannot tell."""

REACHES = 2.0, 8.0, 32.0, 256.0
"""Reaches that are tried besides 1: the network is let go of at so many times the distance (of squares)."""

LATER_PRICE = 0.5, 0.002
"""Nats in all, and per label, that each factor of two in the reach must gain: within it, disagreement shows less."""

GAIN, GAIN_WITHOUT_LABELS = 0.25, 0.5
"""Factors on the deviations of a classifier's heads, whose whitened features are smaller where there are no labels."""

LOG_TEMPERATURES = (-2.0, 2.5, 46)
"""First, last and number of the logarithms of temperatures that are tried."""

NEARBY = 0.45
"""Distance of the logarithm of a temperature from an earlier one, up to which others are tried again."""

FINER = 5
"""Into so many parts the step between these is divided around the best of them."""

LOG_TEMPERATURE_SPREAD = 0.2
"""Standard deviation of the prior of the logarithm of the temperature: that of few labels is mostly chance."""


@dataclass(frozen=True)
class Centre:
    """How much of the centre is the network, and by what it is divided.

    Attributes:
        alpha: share of the network; the rest is the mean of the heads.
        temperature: T, by which the centre of logits is divided.
        gain: factor on the deviations of the heads; chosen with the noise for regression.
        reach: factor on the distance from which on the network is let go.
        cost: what the choice minimised, in nats over all validation samples; None where nothing was chosen.
    """

    alpha: float = 1.0
    temperature: float = 1.0
    gain: float = 1.0
    reach: float = 1.0
    cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "temperature", "gain", "reach"):
            check_number(name, getattr(self, name), positive=name in ("temperature", "reach"))

    def let_go(self, release: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the release that begins at the reach: `max(1, s / reach)`."""
        return release if self.reach == 1 else (release / self.reach).clamp_min(1.0)


def calibration_cost(log_probs: Float[Tensor, "n B K"], targets: Int[Tensor, " B"] | Float[Tensor, "B K"]) -> float:
    """Return the total negative log-likelihood, and half the squared z-score of the number of correct predictions.

    The second term asks whether as many predictions are right as their confidences say, which the likelihood alone
    gives up where labels are noisy: `(sum c - hits)^2 / (2 sum c (1 - c) + 1)`, with confidences `c`. Targets are
    classes, or a probability of each class: then so many samples of a class are hits.
    """
    mean = torch.logsumexp(log_probs, dim=0) - math.log(len(log_probs))
    confidence, labels = mean.exp().max(dim=1)
    if targets.ndim == 2:
        nll, hits = -float((targets * mean).nansum()), float(targets.gather(1, labels.unsqueeze(1)).sum())
    else:
        nll, hits = -float(mean.gather(1, targets.unsqueeze(1)).sum()), float((labels == targets).sum())
    surprise = float(confidence.sum()) - hits
    return nll + surprise**2 / (2 * float((confidence * (1 - confidence)).sum()) + 1)


def choose_centre(
    network: Float[Tensor, "B K"] | None,
    heads: Float[Tensor, "n B K"],
    release: Float[Tensor, " B"],
    targets: Tensor,
    task: Task,
    earlier: Centre | None = None,
) -> Centre:
    """Choose `alpha`, `T` and the reach by the task's cost, plus `(log T)^2 / (2 spread^2)`, on labels it has not seen.

    Args:
        network: logits of the network, or None where there is no network: then the heads' mean is the centre.
        heads: outputs of the heads as fitted.
        release: `s(x)` of each sample.
        targets: as the task has them.
        task: what the outputs mean.
        earlier: the centre that was chosen before the heads learnt a little more: it stays unless beaten, and
            temperatures near its own are enough.
    """

    def with_temperature(centre: Centre) -> Centre:
        return _best_temperature(network, heads, release, targets, task, centre, earlier)

    first = Centre(0.0) if network is None else Centre(1.0 if earlier is None else earlier.alpha, gain=GAIN)
    best, margin = with_temperature(first), 0.0
    for alpha in (one for one in ALPHAS if one != first.alpha) if network is not None else ():
        other = with_temperature(dataclasses.replace(first, alpha=alpha))
        if _cost(other) + MARGIN < _cost(best) + margin:
            best, margin = other, MARGIN
    price = max(LATER_PRICE[0], LATER_PRICE[1] * len(release))
    found = [(best, margin)]
    found += [
        (with_temperature(dataclasses.replace(best, reach=reach)), margin + price * math.log2(reach))
        for reach in REACHES
        if 2 * float(release.max()) > reach
    ]
    best, margin = min(found, key=lambda one: _cost(one[0]) + one[1])
    return dataclasses.replace(best, cost=_cost(best) + margin)


def _best_temperature(
    network: Tensor | None,
    heads: Tensor,
    release: Tensor,
    targets: Tensor,
    task: Task,
    centre: Centre,
    earlier: Centre | None,
) -> Centre:
    """Return a centre with its best temperature, and what that costs."""
    low, high, count = LOG_TEMPERATURES
    step = (high - low) / (count - 1)

    def at(log_t: float) -> Centre:
        one = dataclasses.replace(centre, temperature=math.exp(log_t))
        outputs = task.recentred(heads, network, centre.let_go(release), one)
        cost = task.calibration_cost(outputs, targets) + log_t**2 / (2 * LOG_TEMPERATURE_SPREAD**2)
        return dataclasses.replace(one, cost=cost)

    tried = [low + i * step for i in range(count)]
    if earlier is not None:
        tried = [log_t for log_t in tried if abs(log_t - math.log(earlier.temperature)) <= NEARBY]
    coarse = min(map(at, tried), key=_cost)
    around = math.log(coarse.temperature)
    return min((coarse, *(at(around + i * step / FINER) for i in range(1 - FINER, FINER) if i)), key=_cost)


def _cost(centre: Centre) -> float:
    return math.inf if centre.cost is None else centre.cost
