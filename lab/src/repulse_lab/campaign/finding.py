"""What a campaign found, and the small ensemble that all of them attack."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from repulse import Ensemble, Recipe, RepulseError, retrofit
from repulse.repulsion import UniformBox

QUICK = Recipe(epochs=1, heads=3, lr=1e-2, repulsion_samples=40)


@dataclass
class Finding:
    """One row of the table.

    Attributes:
        campaign: what was done.
        what: to what.
        tried: how often.
        failures: what went wrong, once each.
        refused: how many tries ended in an error of the library, which is right.
    """

    campaign: str
    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    refused: int = 0

    @contextmanager
    def trial(self, about: object) -> Iterator[None]:
        """Count one try; whatever is raised inside, also by an assertion, is a failure."""
        self.tried += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (Exception, SystemExit) as reason:  # a library may end the program
            self.failures.append(f"{about}: {type(reason).__name__}: {str(reason).splitlines()[:1]}")


@contextmanager
def or_refused(found: Finding | None = None) -> Iterator[None]:
    """Let an error of the library pass, if it is one sentence; any other is a failure."""
    try:
        yield
    except RepulseError as reason:
        message = str(reason)
        assert message, "no words"
        assert "\n" not in message, message
        if found is not None:
            found.refused += 1


def inputs(count: int = 60, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def batches(size: int = 6) -> list[tuple[Tensor, Tensor]]:
    return list(zip(inputs().split(size), (torch.arange(60) % 3).split(size), strict=True))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@cache
def ensemble(seed: int = 0) -> Ensemble:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return retrofit(
            network(), batches(), repulsion=UniformBox(-3, 3), recipe=QUICK.replace(seed=seed), progress=False
        )
