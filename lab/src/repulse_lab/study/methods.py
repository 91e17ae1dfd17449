"""What a grid has to know of a method before it is fitted."""

from __future__ import annotations

import sys
from functools import cache

import torch

from repulse.baselines import METHODS, DeepEnsemble, LastLayer, Method, Setting

NO_TAPS = ("LL-Laplace (full)", "LL-Laplace (diagonal)")
"""Methods whose Jacobians are too large for features with taps."""

USES_REPULSION = ("discriminator", "outlier exposure", "fs-RLL-E", "repulse")
"""Methods that are given repulsion samples."""

SECONDS = {"SNGP": 22.0, "LL-Laplace": 12.0, "MAP": 3.0, "DDU": 4.0, "KNN": 8.0, "ViM": 4.0, "Energy": 3.0}


@cache
def _example(method: str) -> Method:
    one = torch.zeros(2, 1)
    return METHODS[method](Setting(LastLayer(one, one[:, 0]), one))


def is_deterministic(method: str) -> bool:
    """Check whether a method on features gives the same result for every seed."""
    return method in METHODS and not _example(method).seeded


def seconds_of(method: str) -> float:
    """Return about how long a fit takes on one core."""
    return SECONDS.get(method, 6.0)


def code_of(method: str) -> tuple[str, ...]:
    """Return the module of a method, whose code decides what it finds, and those of other methods that it uses."""
    if method not in METHODS:
        return (DeepEnsemble.__module__,)
    own = sys.modules[type(_example(method)).__module__]
    others = {getattr(thing, "__module__", None) for thing in vars(own).values()}
    others = {name for name in others if name and name.startswith("repulse.baselines.")}
    return (own.__name__, *sorted(others - {own.__name__, "repulse.baselines.contract"}))
