"""Checks of what a fit is given, before any time is spent on it."""

from __future__ import annotations

import torch
from torch import Tensor

from repulse._mapped import row_chunks
from repulse.errors import DataError, RepulsionError, check_dense, expected
from repulse.recipe import Recipe


def check_values(name: str, values: Tensor, error: type[DataError] = DataError) -> None:
    """Refuse what is not a non-empty float tensor of finite numbers."""
    if not isinstance(values, Tensor):
        raise error(expected(name, "a tensor", type(values).__name__))
    check_dense(name, values, error)
    if not values.ndim:
        raise error(expected(name, "of shape (samples, ...)", "a single number"))
    if not values.numel():
        raise error(expected(name, "non-empty", f"shape {tuple(values.shape)}"))
    if not values.is_floating_point():
        raise error(expected(name, "a float tensor", f"{values.dtype}"))
    seen, bad, first = 0, 0, 0
    for part in row_chunks(values if values.ndim > 1 else values.unsqueeze(1)):
        rows = (~torch.isfinite(part.flatten(start_dim=1)).all(dim=1)).nonzero().flatten()
        first = seen + int(rows[0]) if len(rows) and not bad else first
        seen, bad = seen + len(part), bad + len(rows)
    if bad:
        raise error(expected(name, "finite", f"NaN or infinite values in {bad} rows, the first being row {first}"))


def check_spread(targets: Tensor) -> None:
    """Refuse targets of a regression whose variances single precision cannot hold."""
    largest = float(targets.abs().max())
    if largest > 1e18:
        raise DataError(expected("targets", "at most 1e18 in size; scale them", f"{largest:.3g}"))
    spread = targets.double().std(dim=0, correction=0)
    if bool(((spread > 0) & (spread < 1e-15)).any()):
        wanted = "spread by a standard deviation of at least 1e-15; scale them"
        raise DataError(expected("targets", wanted, f"{float(spread[spread > 0].min()):.3g}"))


def check_repulsion(name: str, repulsion: Tensor | None, features: Tensor, recipe: Recipe) -> Recipe:
    """Check the repulsion samples; return the recipe, which without any of them repels nowhere in function space."""
    if repulsion is None:
        return recipe.replace(space="none") if recipe.space == "function" else recipe
    check_values(name, repulsion, RepulsionError)
    if repulsion.shape[1:] != features.shape[1:]:
        wanted = f"of shape (samples, {', '.join(map(str, features.shape[1:]))}) like the training data"
        raise RepulsionError(expected(name, wanted, f"shape {tuple(repulsion.shape)}"))
    if repulsion.device != features.device:
        raise RepulsionError(expected(name, f"on {features.device} like the training data", f"{repulsion.device}"))
    return recipe
