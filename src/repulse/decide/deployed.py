"""What a gate decides as a plain module: for `ensemble.deploy()`, and inside an ONNX file."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from repulse.decide.calibration import Thresholds
from repulse.decide.decision import ACTIONS
from repulse.prediction import ClassAnswer, RegressionAnswer


class ClassVerdict(NamedTuple):
    """What a deployed classifier with a gate tells of each sample; `decision` counts in `ACTIONS`."""

    probs: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor
    p_value: Float[Tensor, " B"]
    decision: Int[Tensor, " B"]


class RegressionVerdict(NamedTuple):
    """What a deployed regression with a gate tells of each sample; `decision` counts in `ACTIONS`."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor
    p_value: Float[Tensor, " B"]
    decision: Int[Tensor, " B"]


class DeployedGate(nn.Module):
    """Adds p-value and decision to the answer of a deployed ensemble, as `Gate.decide` does to predictions.

    It looks at no values: scores are compared with all calibration scores at once. An input whose score is NaN is
    foreign.

    Args:
        thresholds: what the gate compares with.
        members: number of heads; the score of a single one is its total uncertainty.
    """

    calibration: Tensor
    classes: Tensor

    def __init__(self, thresholds: Thresholds, members: int) -> None:
        super().__init__()
        self.single = members == 1
        self.by_class = thresholds.promise.by_class
        self.false_alarms, self.most_doubt = thresholds.promise.false_alarms, thresholds.doubt
        self.most_score = thresholds.foreign if thresholds.promise.risk is not None else None
        self.register_buffer("calibration", thresholds.reference.score.clone())
        self.register_buffer("classes", thresholds.reference.predicted.clone())

    def forward(self, answer: ClassAnswer | RegressionAnswer) -> ClassVerdict | RegressionVerdict:
        """Return the answer with a p-value and a decision."""
        is_for_classes = isinstance(answer, ClassAnswer)
        score = (answer.total if self.single else answer.epistemic).double()
        above = self.calibration.double() >= score.unsqueeze(1)
        count = torch.full_like(score, len(self.calibration))
        if self.by_class and is_for_classes:
            same = self.classes == answer.probs.argmax(dim=1).unsqueeze(1)
            above, count = above & same, same.sum(dim=1).double()
        p_value = (above.sum(dim=1).double() + 1) / (count + 1)
        doubt = 1 - answer.probs.amax(dim=1) if is_for_classes else answer.total.sqrt()
        abstained = ~(doubt.double() <= self.most_doubt)
        if self.most_score is not None:
            abstained = abstained | ~(score < self.most_score)
        decision = torch.where(p_value <= self.false_alarms, ACTIONS.index("foreign"), abstained.long())
        kind = ClassVerdict if is_for_classes else RegressionVerdict
        return kind(*answer, p_value, decision)
