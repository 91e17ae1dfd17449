"""Particles: n functions evaluated together, whose parameters can be read as n vectors.

`Heads` keeps all its heads in one tensor a layer and needs one matrix product for them; `Networks` holds any n modules.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse._finite import all_finite
from repulse._modes import evaluating
from repulse.errors import DataError, expected
from repulse.particles.forces import mix
from repulse.particles.history import Epoch
from repulse.particles.tasks import Task
from repulse.particles.view import View
from repulse.prediction import Prediction
from repulse.recipe import Recipe


class Particles(nn.Module):
    """What the fit needs of an ensemble: outputs `(n, B, O)`, and parameters as `(n, p)` vectors.

    Attributes:
        task: what the outputs mean.
        recipe: the recipe it was fitted with, once it was.
        history: one record an epoch of the fit.
    """

    task: Task
    recipe: Recipe | None = None
    history: tuple[Epoch, ...] = ()

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of particles."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of all particles, `(n, B, O)`."""

    @abstractmethod
    def vectors(self) -> Tensor:
        """Return the parameters of each particle as one row, `(n, p)`, differentiable."""

    @abstractmethod
    def mix_gradients(self, k: Tensor) -> None:
        """Average the gradients of the particles' parameters with the weights `k / n` (SVGD in parameter space)."""

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Predict with uncertainty from features `(B, d)` (or, for `Networks`, inputs)."""
        with evaluating(self):
            outputs = self(x)
        if not all_finite(outputs):
            bad = (~torch.isfinite(outputs)).any(dim=0).any(dim=-1).nonzero().flatten()
            raise DataError(
                expected("x", "finite", f"NaN or infinite outputs for {len(bad)} samples, first {int(bad[0])}")
            )
        return self.task.predict(outputs)

    def score(self, x: Tensor) -> Tensor:
        """Return how far out-of-distribution each sample is, `(B,)`; see `Prediction.score`."""
        return self.predict(x).score

    def predict_and_score(self, x: Tensor) -> tuple[Prediction, Tensor]:
        """Return both from one pass."""
        prediction = self.predict(x)
        return prediction, prediction.score


class Heads(Particles):
    """n linear heads, or small perceptrons, on the same features.

    Examples:
        >>> from repulse.particles.tasks import Classification
        >>> heads = Heads(10, 64, Classification(3))
        >>> heads(torch.zeros(5, 64)).shape
        torch.Size([10, 5, 3])

    Args:
        heads: how many.
        features: dimension of the features.
        task: what the outputs mean; decides how many there are.
        hidden: widths of hidden layers (with ReLU), `()` for linear heads.
        generator: for the initial weights, which are those of `torch.nn.Linear`, drawn independently for each head.
    """

    def __init__(
        self,
        heads: int,
        features: int,
        task: Task,
        hidden: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        widths = [features, *hidden, task.outputs]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in zip(widths, widths[1:], strict=False):
            bound = 1 / math.sqrt(fan_in)
            self.weights.append(
                nn.Parameter(
                    torch.empty(heads, fan_out, fan_in, device="cpu").uniform_(-bound, bound, generator=generator)
                )
            )
            self.biases.append(
                nn.Parameter(torch.empty(heads, fan_out, device="cpu").uniform_(-bound, bound, generator=generator))
            )

    @property
    def count(self) -> int:
        return self.biases[0].shape[0]

    @property
    def features(self) -> int:
        """Dimension of the features."""
        return self.weights[0].shape[-1]

    @property
    def weight(self) -> Float[Tensor, "n O d"]:
        """Weights of the first layer, which for linear heads is the only one."""
        return self.weights[0]

    @property
    def bias(self) -> Float[Tensor, "n O"]:
        """Biases of the first layer."""
        return self.biases[0]

    def forward(self, x: Float[Tensor, "B d"]) -> Float[Tensor, "n B O"]:
        self.check_features(x)
        return self.raw_outputs(x)

    def check_features(self, x: Tensor) -> None:
        """Refuse what is not a batch of features of the right dimension."""
        if not isinstance(x, Tensor):
            raise DataError(expected("features", "a tensor", type(x).__name__))
        if x.ndim != 2 or x.shape[1] != self.features:
            raise DataError(expected("features", f"of shape (batch, {self.features})", f"{tuple(x.shape)}"))

    def raw_outputs(self, x: Float[Tensor, "B c"]) -> Float[Tensor, "n B O"]:
        """Return the outputs of the layers of all heads."""
        first, bias = self.weights[0], self.biases[0]
        out = torch.addmm(
            bias.flatten(), x.to(first.dtype), first.flatten(0, 1).T
        )  # (B, n O): one product for all heads
        out = out.view(-1, *bias.shape).transpose(0, 1)
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[1:]:
            out = torch.baddbmm(bias.unsqueeze(1), out.relu(), weight.transpose(1, 2))
        return out

    def vectors(self) -> Float[Tensor, "n p"]:
        return torch.cat([p.flatten(start_dim=1) for p in self.parameters()], dim=1)

    def mix_gradients(self, k: Float[Tensor, "n n"]) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = mix(parameter.grad, k)

    @torch.no_grad()
    def fold_inputs(self, view: View) -> None:
        """Make heads that were fitted on a view of features take the features, and their distance columns."""
        old, biases = self.weights[0], self.biases[0]
        weight = old.new_empty(*old.shape[:2], view.extended)
        for i in range(self.count):  # one by one, because it is done in double precision
            folded, bias = view.fold(old[i : i + 1], biases[i : i + 1])
            weight[i], biases[i] = folded[0], bias[0]
        self.weights[0] = nn.Parameter(weight, requires_grad=old.requires_grad)

    @torch.no_grad()
    def fold_targets(self, shift: Tensor, scale: Tensor) -> None:
        """Make the means of regression heads that were fitted on `(y - shift) / scale` those of `y` itself."""
        weight, bias, means = self.weights[-1], self.biases[-1], scale.numel()
        weight[:, :means] *= scale.reshape(-1, 1)
        bias[:, :means] = bias[:, :means] * scale + shift

    def extra_repr(self) -> str:
        kind = "linear" if len(self.weights) == 1 else f"hidden {[w.shape[1] for w in self.weights][:-1]}"
        return f"{self.count} {kind} heads, {self.features} features -> {self.task}"


class Networks(Particles):
    """Any n modules as particles; each maps a batch to `(B, outputs)`.

    Different architectures can repel in function space; parameter space needs equal ones.
    """

    def __init__(self, networks: Sequence[nn.Module], task: Task) -> None:
        super().__init__()
        if not networks:
            raise DataError(expected("networks", "at least one module", "none"))
        self.networks = nn.ModuleList(networks)
        self.task = task

    @property
    def count(self) -> int:
        return len(self.networks)

    def forward(self, x: Tensor) -> Float[Tensor, "n B O"]:
        outputs = [network(x) for network in self.networks]
        wanted = (len(x), self.task.outputs)
        for i, output in enumerate(outputs):
            if tuple(output.shape) != wanted:
                raise DataError(expected(f"networks[{i}](x)", f"of shape {wanted}", f"{tuple(output.shape)}"))
        return torch.stack(outputs)

    def vectors(self) -> Float[Tensor, "n p"]:
        rows = [nn.utils.parameters_to_vector(network.parameters()) for network in self.networks]
        if len({len(row) for row in rows}) > 1:
            sizes = sorted({len(row) for row in rows})
            raise DataError(expected("networks", "of one size for parameter space", f"{sizes} parameters"))
        return torch.stack(rows)

    def mix_gradients(self, k: Float[Tensor, "n n"]) -> None:
        for same in zip(*(network.parameters() for network in self.networks), strict=True):
            stacked = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in same])
            for parameter, gradient in zip(same, mix(stacked, k), strict=True):
                parameter.grad = gradient


__all__ = ["Heads", "Networks", "Particles"]
