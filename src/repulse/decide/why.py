"""Reasons for a doubt that are exact, not saliency: who disagrees, over what, because of which features.

>>> import torch, repulse
>>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
>>> batches = [(torch.randn(64, 2), torch.randint(3, (64,))) for _ in range(4)]
>>> ensemble = repulse.retrofit(network, batches, progress=False)
>>> reason = ensemble.why(torch.tensor([9.0, -9.0]))
>>> abs(sum(reason.shares.values()) - 1) < 1e-5
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.backbone.batches import explaining_failures, to_device
from repulse.decide.explained import Explained
from repulse.decide.reason import Reason, Reasons
from repulse.errors import DataError, check_positive_integer, expected

if TYPE_CHECKING:
    from repulse.ensemble import Ensemble


@torch.no_grad()
def why(
    ensemble: Ensemble,
    x: Any,
    *,
    nearest: int = 5,
    axes: int = 5,
    maps: bool = False,
    at: Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Reason | Reasons:
    """Explain the doubt about one input, or about each of a batch.

    Args:
        ensemble: what predicts.
        x: a batch as `predict` takes it, or one input of it (a tensor without its batch axis).
        nearest: how many training inputs to name.
        axes: how many principal axes to name.
        maps: also say where in an image the disagreement sits, with one more pass of the network.
        at: for an output at every position, which position of the one input to explain, such as `(row, column)`, or
            several of them. Nearest training inputs are then positions that the fit has sampled.

    Returns:
        A `Reason` for one input or position, `Reasons` for a batch or several.
    """
    check_positive_integer("nearest", nearest)
    check_positive_integer("axes", axes)
    if ensemble.backbone.ending.positions:
        inputs, features, alone = None, *_features_at(ensemble, x, at, maps)
    elif at is not None:
        raise DataError(expected("at", "None for a network with one output per input", at))
    else:
        inputs, features, alone = _features(ensemble, x)
    batch = Explained(ensemble, features, ensemble.heads.predict(features))
    reasons = batch.reasons(nearest, axes, batch.maps(inputs) if maps else None)
    return reasons[0] if alone else Reasons(reasons)


def _as_batch(ensemble: Ensemble, x: Any) -> tuple[Any, bool]:
    """Return inputs as a batch where the heads are, and whether `x` was one input without its batch axis."""
    backbone = ensemble.backbone
    inputs = x if isinstance(x, Tensor) else backbone.places.inputs_in(x, "x", backbone.several)
    inputs = to_device(inputs, next(ensemble.heads.parameters()).device)
    alone = isinstance(inputs, Tensor) and bool(backbone.forms) and inputs.ndim == len(backbone.forms[0].shape)
    return (inputs.unsqueeze(0) if alone else inputs), alone


def _features(ensemble: Ensemble, x: Any) -> tuple[Any, Float[Tensor, "B d"], bool]:
    """Return inputs as a batch, their features, and whether `x` was one input without its batch axis."""
    inputs, alone = _as_batch(ensemble, x)
    with explaining_failures(inputs, "x", DataError):
        return inputs, ensemble.backbone.run(inputs), alone


def _features_at(ensemble: Ensemble, x: Any, at: Any, maps: bool) -> tuple[Float[Tensor, "m d"], bool]:
    """Return the features at some positions of one input, and whether it was one position."""
    inputs, _ = _as_batch(ensemble, x)
    found = ensemble.backbone.locate(inputs)
    if len(found.features) != 1 or maps:
        got = "`maps`" if maps else f"{len(found.features)} inputs"
        raise DataError(expected("x", "one input, without `maps`, for an output at every position", got))
    alone = isinstance(at, Sequence) and bool(at) and isinstance(at[0], int)
    positions = [at] if alone else at
    size = found.size
    whole = "one inside of " + " x ".join(map(str, size)) + ", or several"
    try:
        places = torch.tensor(positions, dtype=torch.int64).view(-1, len(size)).unbind(dim=1)
        flat = torch.zeros_like(places[0])
        for place, length in zip(places, size, strict=True):
            if not bool(((place >= 0) & (place < length)).all()):
                raise ValueError("outside")
            flat = flat * length + place
    except (TypeError, ValueError, RuntimeError, IndexError) as reason:
        raise DataError(expected("at", f"a position, {whole}", repr(at)[:80])) from reason
    return found.at(0, flat.to(found.features.device)), alone
