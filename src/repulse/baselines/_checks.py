"""What the contract checks of features, targets and scores, so that a wrong argument is named in one sentence."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repulse._finite import comparable
from repulse.errors import DataError, RecipeError, expected

if TYPE_CHECKING:
    from repulse.baselines.contract import Method


def check_features(method: Method, features: Any, name: str | None = None) -> None:
    """Refuse what cannot be features (or inputs) of a method."""
    name = name or method.takes
    if not isinstance(features, Tensor):
        raise DataError(expected(name, "a tensor", type(features).__name__))
    if features.layout != torch.strided or not features.ndim:
        got = f"one of layout {features.layout}, shape {tuple(features.shape)}"
        raise DataError(expected(name, "a dense tensor of shape (samples, dimensions)", got))
    flat = method.takes == "features"
    got = f"shape {tuple(features.shape)}"
    if not len(features) or (flat and features.ndim != 2):
        raise DataError(expected(name, "of shape (samples, dimensions), not empty", got))
    if flat and method.columns is not None and features.shape[1] != method.columns:
        raise DataError(expected(name, f"of shape (samples, {method.columns})", got))
    if not bool(torch.isfinite(features).all()):
        raise DataError(expected(name, "finite", "NaN or infinite values"))


def check_targets(method: Method, features: Tensor, targets: Any) -> None:
    """Refuse what cannot be the classes of these features."""
    if not isinstance(targets, Tensor) or targets.shape != (len(features),) or targets.is_floating_point():
        got = f"{targets.dtype}, shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets)
        raise DataError(expected("targets", f"integers of shape ({len(features)},)", got))
    targets = comparable(targets)
    low, high, classes = int(targets.min()), int(targets.max()), method.classes
    if low < 0 or (classes is not None and high >= classes):
        wanted = "at least 0" if classes is None else f"classes from 0 to {classes - 1}"
        raise DataError(expected("targets", wanted, f"classes from {low} to {high}"))


def check_fitted(method: Method) -> None:
    """Refuse a method with a field that only its fit sets."""
    if not all(hasattr(method, field.name) for field in fields(method)):  # pyright: ignore[reportArgumentType]
        raise DataError(f"Expected {method.name} to be fitted first; call `fit(features, targets)`.")


def finite_scores(method: Method, scores: Tensor) -> Tensor:
    """Return scores as float32, infinite ones as its largest numbers; refuse NaN."""
    if bool(scores.isnan().any()):
        raise DataError(expected(f"scores of {method.name}", "numbers", f"{int(scores.isnan().sum())} NaN"))
    largest = torch.finfo(torch.float32).max
    return scores.double().clamp(-largest, largest).float()


def check_share(share: float) -> None:
    """Refuse a held-back share of the data that leaves nothing to fit."""
    if not 0 <= share < 1:
        raise RecipeError(expected("share", "at least 0 and below 1", share))
