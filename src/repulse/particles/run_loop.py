"""Run the loop on any particles: check targets before it, and say afterwards what went wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from repulse._finite import comparable
from repulse.errors import DataError, NonFiniteLossError, check_dense, check_positive_integer, expected
from repulse.particles.fit_data import FitData
from repulse.particles.heads import Particles
from repulse.particles.history import warn_about
from repulse.particles.loop import DivergedError, optimise
from repulse.particles.tasks import KINDS, Task
from repulse.recipe import Recipe


def run_loop(
    particles: Particles, data: FitData, recipe: Recipe, progress: bool, finish: Callable[[], object] = lambda: None
) -> None:
    """Fit particles in place, give them recipe and history, and warn or raise if the fit collapsed or diverged.

    Args:
        particles: heads or networks.
        data: what to fit them to.
        recipe: how; its strength becomes a number.
        progress: show a bar when it takes more than two seconds.
        finish: called after the fit, also after one that diverged, before anything is raised.
    """
    recipe = recipe.replace(strength=recipe.strength_for(data.task.class_count))
    diverged = None
    try:
        with torch.inference_mode(False), torch.enable_grad():
            particles.history = optimise(particles, data, recipe, progress)
    except DivergedError as error:
        diverged, particles.history = error, error.history
    distance = _distance(particles)
    finish()
    particles.recipe = recipe
    if diverged is not None:
        raise NonFiniteLossError(
            f"The loss became NaN or infinite {diverged}; a smaller `lr` or `strength` "
            f"usually cures it. The heads as they were before that epoch are in this error's `.heads`.",
            particles,
        )
    warn_about(particles.history, distance)


@torch.no_grad()
def _distance(particles: Particles) -> float | None:
    """Compute the mean distance of the particles' parameters from their mean, relative to their size."""
    if particles.count == 1:
        return None
    try:
        vectors = particles.vectors()
    except DataError:  # networks of different architectures cannot have collapsed
        return None
    return float((vectors - vectors.mean(dim=0)).norm(dim=1).mean() / vectors.norm(dim=1).mean().clamp_min(1e-30))


def check_targets(targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
    """Return targets as a vector, with what they are targets of."""
    if classes is not None:
        check_positive_integer("classes", classes)
    if not isinstance(targets, Tensor):
        raise DataError(expected("targets", "a tensor", type(targets).__name__))
    check_dense("targets", targets)
    return KINDS[recipe.task].from_targets(comparable(targets), samples, recipe, classes)
