"""Heads around a centre as one matrix product, for production: what is linear in the features is folded beforehand."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.particles.centred import CentredHeads
from repulse.particles.distance import LARGEST, SMALLEST
from repulse.particles.growth import ClassGaussians, Growth, measures_of


class FoldedHeads(nn.Module):
    """Linear heads around a centre, with the same outputs in a third of the operations.

    One product of the centred features gives the centre before it is let go of, the deviations of heads from their
    mean, and the coordinates whose squares are distances; a small one adds the distance columns to the first two.

    Args:
        heads: the fitted heads.
    """

    shift: Float[Tensor, " d"]
    weight: Float[Tensor, "r d"]
    bias: Float[Tensor, " r"]
    averages: Float[Tensor, "k c"]
    smallest: Float[Tensor, " c"]
    column_weight: Float[Tensor, "c m"]
    growth_usual: Float[Tensor, "2 g"]
    class_factors: Float[Tensor, "K r r"]
    class_means: Float[Tensor, "K r"]
    class_offsets: Float[Tensor, " K"]

    def __init__(self, heads: CentredHeads) -> None:
        super().__init__()
        self.task, self.centre, self.count = heads.task, heads.centre, heads.count
        axes, unit = heads.distance_axes.T / heads.distance_scale, heads.release_quantiles * heads.release_largest
        weight, column_weight, bias = _linear_part(heads, unit)
        self.widths = (len(weight), len(axes))
        buffers = {
            "shift": heads.distance_shift.clone(),
            "weight": torch.cat([weight, axes]),
            "bias": nn.functional.pad(bias, (0, len(axes))),
            "averages": heads.distance_averages / unit,  # of squares, such that the largest is one where release begins
            "smallest": SMALLEST / unit,
            "column_weight": column_weight.T.contiguous(),
            "growth_usual": heads.growth_usual.clone(),
            **{name: getattr(heads, name) for name in ("class_factors", "class_means", "class_offsets")},
        }
        if heads.growth_usual.shape[1]:
            buffers["growth_usual"][0, 0] -= unit[0].log()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Float[Tensor, "B d"]) -> Float[Tensor, "n B O"]:
        """Return what `CentredHeads` returns, up to rounding."""
        made = nn.functional.linear(x.to(self.shift.dtype) - self.shift, self.weight, self.bias)
        linear, coordinates = made.split(self.widths, dim=1)
        coordinates = coordinates.clamp(-LARGEST, LARGEST)
        squares = coordinates.square() @ self.averages
        release = self.centre.let_go(squares.amax(dim=1).clamp_min(1.0))
        logs = squares.maximum(self.smallest).log()
        outputs = torch.addmm(linear, logs, self.column_weight)
        n, o = self.count, self.task.compared_outputs
        deviations = outputs[:, o : o + n * o].unflatten(1, (n, o)).transpose(0, 1)
        if self.growth_usual.shape[1]:
            parts = self.class_factors, self.class_means, self.class_offsets
            gaussians = ClassGaussians(*parts) if len(self.class_offsets) else None
            grown = Growth(self.growth_usual, gaussians)(measures_of(logs, coordinates, gaussians))
            deviations = grown.unsqueeze(1) * deviations
        placed = self.task.around(outputs[:, :o], deviations, release, self.centre.temperature)
        if o == self.task.outputs:
            return placed
        rest = outputs[:, o + n * o :].unflatten(1, (n, -1)).transpose(0, 1)
        return torch.cat([placed, rest], dim=-1)


def _linear_part(heads: CentredHeads, unit: Float[Tensor, " c"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights of centred features, of the logarithms of squares in `unit`, and biases.

    In this order: the middle, the deviations of each head, and of each head what has no centre.
    """
    o, known, features = heads.task.compared_outputs, heads.network_weight.shape[1], heads.features
    weight = torch.cat([heads.weights[0], heads.biases[0].unsqueeze(2)], dim=2)
    network = nn.functional.pad(heads.network_weight, (0, weight.shape[2] - known))
    network[:, -1] = heads.network_bias
    share, gain = (
        torch.as_tensor(v, dtype=weight.dtype, device=weight.device).reshape(-1, 1)
        for v in heads.task.share_and_gain(heads.centre, weight)
    )
    mean = weight[:, :o].double().mean(dim=0)
    middle = share * network + (1 - share) * mean if known else mean
    rows = [middle, *(gain * (one[:o] - mean) for one in weight), *(one[o:] for one in weight)]
    stacked = torch.cat([row.to(weight) for row in rows])
    by_feature, by_column, bias = stacked.split((features, len(unit), 1), dim=1)
    shifts = torch.cat([heads.distance_shift, unit.log()])
    moved = torch.stack([bias[i, 0].double() + row.double() @ shifts.double() for i, row in enumerate(stacked[:, :-1])])
    return by_feature, by_column, moved.to(weight)
