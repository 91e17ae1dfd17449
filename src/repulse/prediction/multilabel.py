"""What a prediction of several labels at once holds: one Bernoulli per label, given the member."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from repulse.errors import DataError, expected
from repulse.prediction.base import Prediction
from repulse.prediction.classes import T
from repulse.prediction.uncertainty import mean_log_probs, uncertainties

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def label_log_probs(logits: Float[Tensor, "n B K"]) -> Float[Tensor, "n B K 2"]:
    """Return the log-probabilities that each label is absent and that it is present."""
    return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1)


def label_uncertainties(logits: Float[Tensor, "n B K"]) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
    """Compute `mean_i H_b(p_ik)` and `H_b(mean_i p_ik) - mean_i H_b(p_ik)`, with the binary entropy `H_b`."""
    aleatoric, epistemic = uncertainties(label_log_probs(logits).flatten(1, 2))
    return aleatoric.view(logits.shape[1:]), epistemic.view(logits.shape[1:])


def label_mean_log_probs(logits: Float[Tensor, "n B K"]) -> Float[Tensor, "B K 2"]:
    """Compute the logs of the mean member probabilities that each label is absent and that it is present."""
    return mean_log_probs(label_log_probs(logits).flatten(1, 2)).view(*logits.shape[1:], 2)


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelPrediction(Prediction):
    """Probabilities of several labels that may hold at once.

    Uncertainties of an input are the sums over its labels, in nats; those of each label are `aleatoric_per_label`,
    `epistemic_per_label` and `total_per_label`.

    Examples:
        >>> p = MultilabelPrediction(torch.tensor([[[0.0, 100.0]], [[0.0, -100.0]]]))
        >>> p.probs
        tensor([[0.5000, 0.5000]])
        >>> [[round(float(u), 3) for u in row[0]] for row in (p.aleatoric_per_label, p.epistemic_per_label)]
        [[0.693, 0.0], [0.0, 0.693]]

    Attributes:
        logits: logits of every member, `(n, B, K)`.
    """

    logits: Float[Tensor, "n B K"]

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        """Mean member probability of each label."""
        return self._once(label_mean_log_probs)[..., 1].exp()

    @property
    def labels(self) -> Bool[Tensor, "B K"]:
        """Labels that are more probable than not."""
        log_probs = self._once(label_mean_log_probs)
        return log_probs[..., 1] >= log_probs[..., 0]

    @property
    def aleatoric_per_label(self) -> Float[Tensor, "B K"]:
        """Mean binary entropy of the members, for each label."""
        return self._once(label_uncertainties)[0].clone()

    @property
    def epistemic_per_label(self) -> Float[Tensor, "B K"]:
        """Mutual information between each label and the member; at most `log 2`."""
        return self._once(label_uncertainties)[1].clone()

    @property
    def total_per_label(self) -> Float[Tensor, "B K"]:
        """`aleatoric_per_label + epistemic_per_label`."""
        return self.aleatoric_per_label + self.epistemic_per_label

    @property
    def aleatoric(self) -> Float[Tensor, " B"]:
        """Sum over labels of `aleatoric_per_label`."""
        return self._once(label_uncertainties)[0].sum(dim=1)

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Sum over labels of `epistemic_per_label`."""
        return self._once(label_uncertainties)[1].sum(dim=1)

    def _answers(self, class_names: Sequence[str] | None) -> dict[str, Any]:
        """Return the labels that hold, by name or number, separated by commas."""
        count = self.logits.shape[-1]
        if class_names is not None and (isinstance(class_names, str) or len(class_names) != count):
            raise DataError(expected("class_names", f"{count} strings, one per label", repr(class_names)[:80]))
        names: Sequence[str] = class_names or [str(i) for i in range(count)]
        held = [[names[i] for i in row.nonzero().flatten().tolist()] for row in self.labels.cpu()]
        return {"labels": [", ".join(map(str, row)) for row in held]}

    @property
    def target_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[1:])

    def _panels(self, targets: Tensor | None) -> Figure:
        from repulse._pictures import class_panels

        right = None if targets is None else ((self.labels == targets.bool()) | targets.isnan()).all(dim=1)
        return class_panels(self.aleatoric, self.epistemic, right)

    def label_log_likelihood(self, targets: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """Compute `log mean_i p_ik(target)` of each label, floored at log 1e-12; zero where a target is NaN."""
        check_labels("targets", targets, self.logits.shape[1:])
        log_probs = self._once(label_mean_log_probs).clamp_min(math.log(1e-12))
        known = torch.where(targets == 1, log_probs[..., 1], log_probs[..., 0])
        return torch.where(targets.isnan(), torch.zeros_like(known), known)

    def log_likelihood(self, targets: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
        """Compute the sum of `label_log_likelihood` over the labels whose targets are known."""
        return self.label_log_likelihood(targets).sum(dim=1)

    def _once(self, function: Callable[[Tensor], T]) -> T:
        """Compute a function of the members once and keep it, unless gradients are to flow through it."""
        if self.logits.requires_grad:
            return function(self.logits)
        kept, name = vars(self), f"_{function.__name__}"  # behind the frozen surface
        if name not in kept:
            kept[name] = function(self.logits)
        return kept[name]


def check_labels(name: str, targets: Tensor, shape: torch.Size | tuple[int, ...]) -> None:
    """Refuse targets that are not 0, 1 or, where unknown, NaN, for each label of each input."""
    if tuple(targets.shape) != tuple(shape):
        raise DataError(expected(name, f"of shape {tuple(shape)}, 0 or 1 for each label", f"{tuple(targets.shape)}"))
    wrong = ~((targets == 0) | (targets == 1) | targets.isnan())
    if bool(wrong.any()):
        raise DataError(expected(name, "0, 1 or, where unknown, NaN", f"{float(targets[wrong][0]):g}"))
