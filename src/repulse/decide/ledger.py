"""The ledger of disagreement: how much of it comes from which features. Heads are linear, so it is exact.

With blocks b of features (penultimate, each tap, the distance columns) and a reference `r`, the mean of the training
data, the deviation of head i from the mean of all heads is a sum over blocks,

    h_i(x) - mean_j h_j(x) = sum_b (W_i - mean_j W_j)_b (x_b - r_b) + constant_i,

and the share of a block in the disagreement is `sum_ik part_ik whole_ik / sum_ik whole_ik^2`, over heads i and outputs
k (of several numbers, in units of their noise). Shares sum to one; one that is negative holds back what others say. A
shift of all logits of a head changes no probability, so that of classes is taken out first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.backbone.split import Backbone
from repulse.errors import DataError, expected
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.tasks import Multiregression

CONSTANT = "constant"
"""What heads disagree on everywhere, also at the mean of the training data."""

DISTANCE = "distance from the data"
"""The distance columns."""


@dataclass(frozen=True)
class Block:
    """Columns of what heads take that come from one place.

    Attributes:
        name: of the tapped module, "penultimate features" or "distance from the data".
        begin: first column.
        end: column after the last.
    """

    name: str
    begin: int
    end: int


def blocks_of(backbone: Backbone, heads: Heads) -> list[Block]:
    """Return the blocks of what heads take, from first to last column; there is no overlap."""
    found = [Block("penultimate features", 0, backbone.penultimate)]
    for tap in backbone.taps:
        found.append(Block(tap.name or "inputs", found[-1].end, found[-1].end + tap.columns))
    if isinstance(heads, CentredHeads):
        found.append(Block(DISTANCE, found[-1].end, heads.weight.shape[-1]))
    return found


@dataclass(frozen=True, eq=False)
class Ledger:
    """Deviations of heads from their mean, and the part of each block in them.

    Attributes:
        names: of the blocks, and "constant" at the end.
        parts: `(b, n, B, O)`, one for each name.
        whole: `(n, B, O)`, their sum.
        weight: of each head, without what all have in common and before deviations grow, `(n, O, c)`.
        middle: what counts as ordinary of each column, `(c,)`.
        units: variance in whose units outputs are compared, `(B, O)`; one where they have the same.
        grown: factor by which the deviations of each input have grown, `(B,)`.
    """

    names: tuple[str, ...]
    parts: Float[Tensor, "b n B O"]
    whole: Float[Tensor, "n B O"]
    weight: Float[Tensor, "n O c"]
    middle: Float[Tensor, " c"]
    units: Float[Tensor, "B O"]
    grown: Float[Tensor, " B"]

    @property
    def shares(self) -> Float[Tensor, "B b"]:
        """Share of each block in the disagreement of each input; they sum to one, or are zero where heads agree."""
        products = (self.parts * self.whole / self.units).sum(dim=(1, 3)).T
        squares = (self.whole.square() / self.units).sum(dim=(0, 2)).unsqueeze(1)
        return torch.where(squares > 0, products / squares, 0.0)


@torch.no_grad()
def ledger(
    heads: Heads, blocks: list[Block], features: Float[Tensor, "B d"], reference: Float[Tensor, " r"] | None = None
) -> Ledger:
    """Split the deviations of linear heads from their mean into the parts of the blocks, in double precision.

    Args:
        heads: linear heads.
        blocks: of their columns.
        features: of the inputs.
        reference: what counts as ordinary of the features, and of the distance columns if it goes on; the middle of the
            heads' own distance columns, or zero, if not given.
    """
    if len(heads.weights) > 1:
        raise DataError(expected("heads", "linear, for an exact ledger", "heads with hidden layers"))
    columns, middle = _columns(heads, features)
    if reference is not None:
        middle[: len(reference)] = reference.to(middle)
    outputs = slice(heads.task.compared_outputs)  # predicted variances are no opinion
    weight, bias = heads.weight[:, outputs].double(), heads.bias[:, outputs].double()
    gain = _gain(heads).to(weight)
    weight, bias = gain.unsqueeze(1) * (weight - weight.mean(dim=0)), gain * (bias - bias.mean(dim=0))
    if heads.task.kind == "classification":
        weight, bias = weight - weight.mean(dim=1, keepdim=True), bias - bias.mean(dim=1, keepdim=True)
    away = columns - middle
    parts = [
        torch.einsum("nod,bd->nbo", weight[..., block.begin : block.end], away[:, block.begin : block.end])
        for block in blocks
    ]
    constant = (bias + weight @ middle).unsqueeze(1).expand_as(parts[0])
    grown = heads.growth(features).double() if isinstance(heads, CentredHeads) else torch.ones_like(away[:, 0])
    stacked = torch.stack([*parts, constant]) * grown.unsqueeze(1)
    whole = stacked.sum(dim=0)
    units = torch.ones_like(whole[0])
    if isinstance(heads.task, Multiregression):
        units = heads.predict(features).aleatoric.double()
    return Ledger((*(block.name for block in blocks), CONSTANT), stacked, whole, weight, middle, units, grown)


def _gain(heads: Heads) -> Float[Tensor, " #O"]:
    """Return the factor on the deviations of heads, for all outputs or for each."""
    if isinstance(heads.task, Multiregression) and heads.task.gains is not None:
        return torch.tensor(heads.task.gains)
    return torch.tensor([heads.centre.gain if isinstance(heads, CentredHeads) else 1.0])


def _columns(heads: Heads, features: Tensor) -> tuple[Float[Tensor, "B c"], Float[Tensor, " c"]]:
    """Return what linear heads multiply, and what of it counts as ordinary."""
    if not isinstance(heads, CentredHeads):
        return features.double(), torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    distances = heads.distances(features)  # zero where an input is as far from the mean as usual
    columns = torch.cat([features.to(distances), distances], dim=1).double()
    return columns, torch.cat([heads.distance_shift, distances.new_zeros(distances.shape[1])]).double()
