"""Fit any list of networks on inputs, one per particle: a repulsive deep ensemble."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from repulse._modes import without_autocast
from repulse.errors import DataError, expected
from repulse.particles.checks import check_repulsion, check_values
from repulse.particles.fit_data import FitData, identity
from repulse.particles.heads import Networks
from repulse.particles.run_loop import check_targets, run_loop
from repulse.recipe import Recipe, check_recipe


@without_autocast()
def fit_networks(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    repulsion_inputs: Tensor | None = None,
    recipe: Recipe | None = None,
    *,
    classes: int | None = None,
    progress: bool = True,
) -> Networks:
    """Fit any list of networks, one per particle, with the same rules as heads: a repulsive deep ensemble.

    The networks are trained in place, in the mode (train or eval) they are in, on inputs and targets as they are.
    `heads`, `hidden` and `init` of the recipe do not apply.

    Args:
        networks: modules that map a batch to `(B, K)` logits, or for regression to `(B, 1)` or `(B, 2)`.
        inputs: training inputs, `(N, ...)`.
        targets: class indices `(N,)`, or floats for regression.
        repulsion_inputs: inputs on which to repel, `(M, ...)`.
        recipe: how to fit; `Recipe()` if not given.
        classes: number of classes, if `targets` may not show all of them.
        progress: show a progress bar when it takes more than two seconds.
    """
    recipe = check_recipe(recipe)
    if recipe.prior == "function":
        raise DataError(expected("recipe.prior", "'weights' for networks", "'function'"))
    check_values("inputs", inputs)
    _check_networks(networks, inputs)
    recipe = check_repulsion("repulsion_inputs", repulsion_inputs, inputs, recipe)
    targets, task = check_targets(targets, len(inputs), recipe, classes)
    particles = Networks(networks, task)
    targets = targets.to(inputs.device, task.target_dtype or inputs.dtype)
    run_loop(particles, FitData(inputs, targets, repulsion_inputs, identity, task), recipe, progress)
    return particles


def _check_networks(networks: Sequence[nn.Module], inputs: Tensor) -> None:
    """Refuse networks that cannot be trained on these inputs."""
    if not isinstance(networks, Sequence | nn.ModuleList) or not len(networks):
        got = type(networks).__name__ if not isinstance(networks, Sequence) else "none"
        raise DataError(expected("networks", "a list of modules", got))
    for i, network in enumerate(networks):
        if not isinstance(network, nn.Module):
            raise DataError(expected(f"networks[{i}]", "a module", type(network).__name__))
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not trained:
            raise DataError(expected(f"networks[{i}]", "a module with parameters that require gradients", "none"))
        if trained[0].dtype != inputs.dtype or trained[0].device != inputs.device:
            wanted = f"{trained[0].dtype} on {trained[0].device}, as `networks[{i}]`"
            raise DataError(expected("inputs", wanted, f"{inputs.dtype} on {inputs.device}"))
