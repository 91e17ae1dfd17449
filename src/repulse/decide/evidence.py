"""Where in an image disagreement sits: exact for features that are averages over positions.

If the penultimate features are `x = mean_p F_p`, with F_p what the last stage says at position p, their part in the
[ledger](ledger.py) is a sum over positions, and the share of a position is

    sum_ik ((W_i - mean_j W_j)(F_p - r) / P)_k whole_ik / sum_ik whole_ik^2,

over heads i and outputs k. These shares sum to that of the penultimate features. A position sees as much of the image
as the network's receptive field, which is more than its own square.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.backbone.split import Backbone
from repulse.decide.ledger import Ledger

CLOSE = 1e-4
"""Difference between features and averages over positions, relative to their scale, up to which they are the same."""


def positions_of(backbone: Backbone, inputs: Any, features: Float[Tensor, "B d"]) -> Float[Tensor, "B c H W"] | None:
    """Return what a stage says at each position, whose averages are the penultimate features; None if none does."""
    found: list[Tensor] = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        if (
            isinstance(output, Tensor)
            and output.ndim == 4
            and output.shape[:2] == wanted.shape
            and output[0, 0].numel() > 1
        ):
            found.append(output)

    wanted = features[:, : backbone.penultimate]
    hooks = [module.register_forward_hook(keep) for module in backbone.model.modules()]
    try:
        backbone.run(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    scale = float(wanted.abs().amax())
    for output in reversed(found):
        if float((output.mean(dim=(2, 3)) - wanted).abs().amax()) <= CLOSE * scale:
            return output
    return None


@torch.no_grad()
def evidence(ledger: Ledger, positions: Float[Tensor, "B c H W"]) -> Float[Tensor, "B H W"]:
    """Return the share of each position in the disagreement of each input."""
    channels = positions.shape[1]
    weight, middle = ledger.weight[..., :channels], ledger.middle[:channels]
    pull = torch.einsum("nbo,noc->bc", ledger.whole / ledger.units, weight) * ledger.grown.unsqueeze(1)
    away = (positions.double() - middle[:, None, None]) / positions[0, 0].numel()
    squares = (ledger.whole.square() / ledger.units).sum(dim=(0, 2))[:, None, None]
    return torch.where(squares > 0, torch.einsum("bc,bchw->bhw", pull, away) / squares, 0.0)
