"""What a grid has to know of a method before it is fitted, beyond the attributes of its class."""

from __future__ import annotations

import sys

from repulse.baselines import METHODS, DeepEnsemble

SHARED = tuple(f"repulse.baselines.{name}" for name in ("contract", "registry", "resources"))
"""Modules that all methods import, and that decide no number."""


def is_deterministic(method: str) -> bool:
    """Check whether a method on features gives the same result for every seed."""
    return method in METHODS and not METHODS[method].random


def code_of(method: str) -> tuple[str, ...]:
    """Return the module of a method, whose code decides what it finds, and those of other methods that it uses."""
    if method not in METHODS:
        return (DeepEnsemble.__module__,)
    own = sys.modules[METHODS[method].__module__]
    others = {getattr(thing, "__module__", None) for thing in vars(own).values()}
    others = {name for name in others if name and name.startswith("repulse.baselines.")}
    return (own.__name__, *sorted(others - {own.__name__, *SHARED}))
