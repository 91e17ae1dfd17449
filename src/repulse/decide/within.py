"""Which labels, or which positions, of an input to act upon: a bound on the share of wrong ones among those accepted.

Pixels of one image are wrong together, and so are labels of one input: inputs are what is drawn independently. With
`a_i` the share of the known parts of input i whose doubt is at most a limit, and `w_i` the share that is wrong as well,
the risk is `E[w] / E[a]`, and it is at most r exactly if `X_i = w_i + r (1 - a_i)`, which is from 0 to 1, has a mean of
at most r. That is tested by a bet on every input in turn (Waudby-Smith and Ramdas 2024), `K_t = prod_s (1 + b_s (r -
X_s))`, with stakes b that depend on what came before alone: if the mean is r or more, `P(max_t K_t >= 1/p) <= p`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repulse.backbone.batches import labelled_batches
from repulse.decide.calibration import POSITIONS, STARTS
from repulse.decide.conformal import loosest
from repulse.errors import DataError, expected
from repulse.metrics.inputs import check_share
from repulse.prediction import MultilabelPrediction, PositionPrediction, Prediction

if TYPE_CHECKING:
    from repulse.ensemble import Ensemble

LIMITS = (*(math.exp(position) / (1 + math.exp(position)) for position in POSITIONS), 1.0)
"""The fixed sequence of doubts, from strict to loose."""


@dataclass(frozen=True)
class GateWithin:
    """Accepts labels or positions of inputs, one by one.

    Among the parts that it accepts, of inputs like the calibration data, at most a share of `risk` is wrong, with
    probability `1 - delta` over draws of that data.

    Attributes:
        ensemble: what predicts.
        risk: largest share of wrong ones among those accepted.
        delta: probability with which that may fail.
        limit: largest doubt (`1 - max p`) that is accepted; minus infinity if no limit was shown to hold the risk.
        accepted: share of the known parts of the calibration data that it accepts.
        samples: number of calibration inputs.
    """

    ensemble: Ensemble
    risk: float
    delta: float
    limit: float
    accepted: float
    samples: int

    def __call__(self, x: Any) -> tuple[Prediction, Bool[Tensor, "B ..."]]:
        """Predict inputs; return which labels `(B, K)` or positions `(B, ...)` to act upon, too."""
        prediction = self.ensemble.predict(x)
        return prediction, self.accepts(prediction)

    def accepts(self, prediction: Prediction) -> Bool[Tensor, "B ..."]:
        """Return which labels or positions to act upon."""
        return doubt_within(prediction) <= self.limit

    def __repr__(self) -> str:
        said = f"at most {self.risk:.3g} of the parts it accepts are wrong, with confidence {1 - self.delta:.3g}"
        return f"GateWithin({said}; {self.accepted:.1%} of {self.samples:,} inputs accepted)"


@torch.no_grad()
def gate_within(ensemble: Ensemble, data: Any, *, risk: float = 0.05, delta: float = 0.05) -> GateWithin:
    """Find the loosest limit on the doubt of labels, or of positions, that holds a risk.

    Args:
        ensemble: of several labels, or with an output at every position.
        data: labelled data that neither the network nor the heads were fitted to: `(inputs, targets)` or a loader.
        risk: largest share of wrong ones among those accepted.
        delta: probability with which that may fail, over draws of the data.
    """
    check_share("risk", risk)
    check_share("delta", delta)
    found = []
    for inputs, targets in labelled_batches(ensemble.backbone.places.labelled(data), "data"):
        prediction = ensemble.predict(inputs)
        found.append(_shares(prediction, targets.to(prediction.of_inputs("total").device)))
    accepted, wrong = (torch.cat(part) for part in zip(*found, strict=True))
    order = torch.randperm(len(accepted), generator=torch.Generator().manual_seed(0))
    p_values = [betting_p_value((wrong + risk * (1 - accepted))[order, i], risk, delta) for i in range(len(LIMITS))]
    chosen = loosest(p_values, delta, STARTS)
    limit = -math.inf if chosen is None else LIMITS[chosen]
    share = 0.0 if chosen is None else float(accepted[:, chosen].mean())
    return GateWithin(ensemble, risk, delta, limit, share, len(accepted))


def doubt_within(prediction: Prediction) -> Float[Tensor, "B ..."]:
    """Return `1 - max p` of each label or position."""
    if isinstance(prediction, MultilabelPrediction):
        return torch.minimum(prediction.probs, 1 - prediction.probs)
    if isinstance(prediction, PositionPrediction):
        return 1 - prediction.confidence
    wanted = "of several labels, or with an output at every position"
    raise DataError(expected("ensemble", wanted, f"one that gives a {type(prediction).__name__}; it has `gate`"))


def betting_p_value(values: Float[Tensor, " m"], mean: float, delta: float) -> float:
    """Test that values between 0 and 1, independent draws, have a mean of at least this: small if theirs is smaller.

    Examples:
        >>> betting_p_value(torch.zeros(100), 0.05, 0.05) < 0.05, betting_p_value(torch.full((100,), 0.05), 0.05, 0.05)
        (True, 1.0)
    """
    values = values.double().cpu()
    counts = torch.arange(1, len(values) + 1, dtype=values.dtype)
    means = (mean + values.cumsum(dim=0)) / (counts + 1)
    variances = (mean * (1 - mean) + (values - means).square().cumsum(dim=0)) / (counts + 1)
    before = torch.cat([values.new_tensor([mean * (1 - mean)]), variances[:-1]])  # of what came before alone
    stakes = (2 * math.log(1 / delta) / (before * len(values))).sqrt().clamp_max(0.9 / (1 - mean))
    capital = torch.log1p(stakes * (mean - values)).cumsum(dim=0).max()
    return min(math.exp(-float(capital)), 1.0)


def _shares(prediction: Prediction, targets: Tensor) -> tuple[Float[Tensor, "B t"], Float[Tensor, "B t"]]:
    """Return, for each limit, the share of the known parts of each input that is accepted, and wrong as well."""
    doubt = doubt_within(prediction)
    if isinstance(prediction, MultilabelPrediction):
        prediction.label_log_likelihood(targets.float())  # which checks them
        known, wrong = ~targets.isnan(), prediction.labels != (targets == 1)
    else:
        assert isinstance(prediction, PositionPrediction)
        known, wrong = prediction.known(targets), prediction.labels != targets
    limits = torch.tensor(LIMITS, dtype=doubt.dtype, device=doubt.device)
    first = torch.searchsorted(limits, doubt.contiguous()).flatten(1)  # the first limit that accepts each part
    known, wrong = known.flatten(1), (wrong & known).flatten(1)
    counts = [torch.zeros(len(doubt), len(LIMITS) + 1, dtype=torch.float64, device=doubt.device) for _ in range(2)]
    for count, parts in zip(counts, (known, wrong), strict=True):
        count.scatter_add_(1, first, parts.double())
    size = known.sum(dim=1, keepdim=True)
    accepted, mistaken = (count[:, :-1].cumsum(dim=1)[(size > 0).flatten()] for count in counts)
    size = size[size > 0].unsqueeze(1)
    return (accepted / size).cpu(), (mistaken / size).cpu()
