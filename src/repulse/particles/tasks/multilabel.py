"""Several labels at once for each sample: one Bernoulli per label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from repulse._mapped import row_chunks
from repulse.errors import DataError, expected
from repulse.particles.fast.likelihood import Bernoullis
from repulse.particles.tasks.task import InPlaceLikelihood, Task
from repulse.prediction import ClassAnswer, MultilabelPrediction, Prediction
from repulse.prediction.multilabel import check_labels, label_mean_log_probs
from repulse.recipe import Recipe

RARE = 1.0
"""Labels that are added to those present, and to those absent, before their odds are taken: none is impossible."""


@dataclass(frozen=True)
class Multilabel(Task):
    """Outputs are the logits of several labels, each of which holds or does not.

    Attributes:
        log_odds: of each label in the training data: what is known of an input that is like none of it.
    """

    kind: ClassVar[str] = "multilabel"
    target_dtype: ClassVar[torch.dtype | None] = torch.float32
    has_closed_form: ClassVar[bool] = True
    answers: ClassVar[type[Any]] = ClassAnswer

    log_odds: tuple[float, ...]

    @classmethod
    def from_targets(cls, targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
        """Check targets `(N, K)` of 0, 1 and, where unknown, NaN; each label must hold somewhere and not elsewhere."""
        if targets.ndim != 2 or len(targets) != samples or (classes is not None and targets.shape[1] != classes):
            wanted = f"of shape ({samples}, {classes or 'labels'}), 0 or 1 for each label"
            raise DataError(expected("targets", wanted, f"shape {tuple(targets.shape)}"))
        present, absent = (torch.zeros(targets.shape[1], dtype=torch.float64) for _ in range(2))
        for rows in row_chunks(targets):
            part = rows.cpu().float()
            check_labels("targets", part, part.shape)
            present += (part == 1).sum(dim=0)
            absent += (part == 0).sum(dim=0)
        if bool((present + absent == 0).all()):
            raise DataError(expected("targets", "known for some label", "NaN everywhere"))
        odds = ((present + RARE) / (absent + RARE)).log()
        return targets, cls(tuple(odds.tolist()))

    @property
    def outputs(self) -> int:
        return len(self.log_odds)

    @property
    def class_count(self) -> int:
        return len(self.log_odds)

    def nll(self, outputs: Float[Tensor, "n B K"], targets: Float[Tensor, "B K"]) -> Float[Tensor, " n"]:
        """Compute the mean over the batch of `-sum_k log p_k(target_k)` over known labels, for every head."""
        known = ~targets.isnan()
        wanted = torch.where(known, targets, torch.zeros_like(targets)).to(outputs).expand_as(outputs)
        each = F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        return (each * known).sum(dim=2).mean(dim=1)

    def compared(self, outputs: Float[Tensor, "n R K"], on: str) -> Float[Tensor, "n R K"]:
        """Return the probabilities of labels, or their logits in all other spaces."""
        return outputs.sigmoid() if on == "probabilities" else outputs

    def comparison_space(self, on: str) -> str:
        """Return "label_probabilities" for probabilities, and otherwise "logits"."""
        return "label_probabilities" if on == "probabilities" else "logits"

    def combined(self, outputs: Float[Tensor, "n B K"]) -> Float[Tensor, "B K"]:
        """Return the log-odds of the mean probabilities, which take the place of the network's logits."""
        log_probs = label_mean_log_probs(outputs)
        return log_probs[..., 1] - log_probs[..., 0]

    def predict(self, outputs: Float[Tensor, "n B K"]) -> Prediction:
        return MultilabelPrediction(outputs.float())

    def around(
        self,
        middle: Float[Tensor, "B K"],
        deviations: Float[Tensor, "n B K"],
        release: Float[Tensor, " B"],
        temperature: float,
    ) -> Float[Tensor, "n B K"]:
        """Return `o + (middle / T - o) / s + deviations`, with the log-odds `o` of the labels.

        Outside the data the middle fades to these, not to even odds: of many labels, most are absent.
        """
        odds = middle.new_tensor(self.log_odds)
        return odds + (middle / temperature - odds) / release.unsqueeze(1) + deviations

    def calibration_cost(self, outputs: Float[Tensor, "n B K"], targets: Float[Tensor, "B K"]) -> float:
        """Return the total negative log-likelihood, and half the squared z-score of the number of labels that hold."""
        prediction = MultilabelPrediction(outputs)
        nll = -float(prediction.log_likelihood(targets).double().sum())
        probs = torch.where(targets.isnan(), 0.0, prediction.probs).double()
        surprise = float(probs.sum()) - float(targets.nansum())
        return nll + surprise**2 / (2 * float((probs * (1 - probs)).sum()) + 1)

    def in_place_likelihood(
        self, outputs: Float[Tensor, "n K S"], batch: int, probabilities: Float[Tensor, "n K R"] | None
    ) -> InPlaceLikelihood:
        return Bernoullis(outputs, batch)
