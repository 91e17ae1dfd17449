"""BatchBALD (Kirsch, van Amersfoort and Gal, 2019): samples whose labels are informative together.

The best samples of a ranking may be redundant; a batch that is chosen for its joint information is not.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected
from repulse.prediction import ClassPrediction

CONFIGURATIONS = 1000
"""Maximum number of label configurations of a batch; if there are more, this many are drawn."""
CHUNK = 4_000_000
"""Maximum number of elements processed at once: 32 MB."""
ROUNDING = 1e-10
"""Information, in nats, that is considered a rounding error."""


def batchbald(
    log_probs: Float[Tensor, "n B K"], k: int, *, configurations: int = CONFIGURATIONS, seed: int = 0
) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """Greedily choose k of B samples whose labels, together, tell most about which member is right.

    Each label that becomes known changes the weights of the members. The next sample is the one of the largest mutual
    information under these weights, averaged over the labels that those before it may get: the gain in joint
    information, exactly. All configurations of labels are considered while they are few, then a random sample of them.
    Of equal gains, the first sample is chosen.

    Examples:
        >>> sure = torch.eye(3)[:, [0, 0, 1]].unsqueeze(-1)  # twice "is it member 0?", once "is it member 1?"
        >>> chosen, gains = batchbald(torch.cat([sure, 1 - sure], dim=-1).log(), k=2)
        >>> chosen.tolist(), round(float(gains.sum().exp()), 6)
        ([0, 2], 3.0)

    Args:
        log_probs: log-probabilities of every member.
        k: number of samples to choose.
        configurations: maximum number of configurations considered.
        seed: for the random sample of configurations.

    Returns:
        The chosen indices, in order, and their gains in nats; the sum, the joint information, is at most `log n`.
    """
    check_positive_integer("k", k)
    check_positive_integer("configurations", configurations)
    if not isinstance(log_probs, Tensor) or log_probs.ndim != 3:
        got = f"shape {tuple(log_probs.shape)}" if isinstance(log_probs, Tensor) else type(log_probs).__name__
        raise DataError(expected("log_probs", "a tensor of shape (members, samples, classes)", got))
    members, count, classes = log_probs.shape
    if k > count:
        raise DataError(expected("k", f"at most {count}, the number of samples", k))
    chosen = _Configurations(ClassPrediction(log_probs).log_probs, configurations, seed)
    bounds = torch.full((count,), math.inf, dtype=torch.float64)
    left, gains = math.log(members), []
    while len(gains) < k:
        best, at = -1.0, -1
        size = max(1, CHUNK // (classes * max(1, len(chosen.weights))))
        for part in bounds.argsort(descending=True, stable=True).split(size):
            if float(bounds[part[0]]) <= best:  # gains shrink as more is known, so that no later one can be larger
                break
            bounds[part] = chosen.gains(part).cpu().where(bounds[part] >= 0, -1.0)
            if float(bounds[part].max()) > best:
                best, at = float(bounds[part].max()), int(part[bounds[part].argmax()])
        gains.append(min(best, left))
        left -= gains[-1]
        bounds[at] = -1.0  # never again
        chosen.add(at)
    return torch.tensor(chosen.items), torch.tensor(gains, dtype=torch.float64)


class _Configurations:
    """Configurations of labels of the chosen samples, and how likely they are under each member.

    Configurations that identify the member are dropped: no label can add information to them.

    Attributes:
        items: the samples.
        weights: probability of each configuration, `(C,)`.
        likelihood: log-probability of each configuration under each member, `(C, n)`, and `posterior` of the members.
        sources: the member that drew each configuration, once they are drawn.
    """

    def __init__(self, log_probs: Tensor, maximum: int, seed: int) -> None:
        self.log_probs = log_probs.detach().double().log_softmax(dim=-1)
        self.probs = self.log_probs.exp()
        self.entropies = torch.special.entr(self.probs).sum(dim=-1)
        self.maximum, self.items, self.sources = maximum, [], None
        self.generator = torch.Generator(log_probs.device).manual_seed(seed)
        self.likelihood = self.probs.new_zeros(1, len(log_probs))
        self.weights, self.posterior = self.probs.new_ones(1), self.likelihood.softmax(dim=1)

    def gains(self, part: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Compute the information that the label of each of these samples would add, in nats."""
        mixture = torch.einsum("cn,nbk->cbk", self.posterior, self.probs[:, part])
        entropy = self.weights @ torch.special.entr(mixture).sum(dim=-1)
        gains = entropy - (self.weights @ self.posterior) @ self.entropies[:, part]
        return gains.where(gains > ROUNDING, 0.0)

    def add(self, item: int) -> None:
        """Add one more sample: with all its labels while configurations are few, else with a random one."""
        self.items.append(item)
        members, new = len(self.probs), [item]
        if self.sources is None:
            joint = (self.likelihood.unsqueeze(1) + self.log_probs[:, item].T).flatten(0, 1)
            if len(joint) <= self.maximum:
                return self._keep(joint, joint.exp().mean(dim=1))
            new = self.items  # from the beginning, with an equal part from each member
            self.sources = torch.arange(members, device=joint.device).repeat(-(-self.maximum // members))
            self.weights = joint.new_full((len(self.sources),), 1 / len(self.sources))
            self.likelihood = joint.new_zeros(len(self.sources), members)
        for known in new if len(self.sources) else ():
            labels = torch.multinomial(self.probs[self.sources, known], 1, generator=self.generator).squeeze(1)
            self.likelihood = self.likelihood + self.log_probs[:, known, labels].T
        return self._keep(self.likelihood, self.weights)

    def _keep(self, likelihood: Tensor, weights: Tensor) -> None:
        posterior = likelihood.softmax(dim=1)
        doubt = (weights > 0) & (torch.special.entr(posterior).sum(dim=1) > ROUNDING)  # NaN is not
        self.likelihood, self.weights, self.posterior = likelihood[doubt], weights[doubt], posterior[doubt]
        if self.sources is not None:
            self.sources = self.sources[doubt]
