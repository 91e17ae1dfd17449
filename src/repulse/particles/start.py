"""Where a fit starts: at the network's own last layer, or at heads of an earlier fit, with fewer passes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repulse.errors import DataError, expected
from repulse.particles.calibrate import ROWS_PER_COLUMN
from repulse.particles.centre import Centre
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.loop import epochs_of
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Multiregression, Regression, Task
from repulse.particles.view import View
from repulse.recipe import Recipe

WARM_SHARE = 0.1
"""Share of the passes that a fit needs which starts from fitted heads."""

PRETRAINED_NOISE = 0.1
"""Noise added to copies of a pretrained last layer, relative to the standard deviation of its weights."""


def check_last_layer(start: tuple[Tensor, Tensor], task: Task, penultimate: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the network's last layer as the centre takes them, or refuse them."""
    outputs = task.compared_outputs
    weight, bias = (part.detach().float() for part in start)
    if isinstance(task, Regression | Multiregression):  # a network with variances next to the means gives its means
        weight, bias = weight[:outputs], bias[:outputs]
    if weight.ndim != 2 or weight.shape[0] != outputs or weight.shape[1] > penultimate or bias.shape != (outputs,):
        wanted = f"a weight of shape {(outputs, penultimate)} and a bias of shape {(outputs,)}"
        raise DataError(expected("start", wanted, f"{tuple(weight.shape)} and {tuple(bias.shape)}"))
    return weight, bias


@torch.no_grad()
def start_from(
    heads: Heads,
    start: tuple[Tensor, Tensor] | None,
    scaling: Scaling,
    y_shift: Tensor,
    y_scale: Tensor,
    generator: torch.Generator,
) -> None:
    """Copy a last layer into every head, in the units of the fit, and add noise so that the heads can part."""
    if start is None:
        raise DataError(expected("start", "the weight and bias of a last layer for `init='pretrained'`", "None"))
    outputs = heads.task.compared_outputs
    weight, bias = (t.detach().to(scaling.shift) for t in start)
    if isinstance(heads.task, Regression | Multiregression):  # a network with variances too gives its means
        weight, bias = weight[:outputs], bias[:outputs]
    known = weight.shape[1] if weight.ndim == 2 else 0  # a last layer knows nothing of taps
    most = len(scaling.scale) if scaling.axes is None else scaling.kept  # whitened features are no features of its
    if weight.shape != (outputs, known) or known > most or bias.shape != (outputs,):
        wanted = f"a weight of shape {(outputs, most)} and a bias of shape {(outputs,)}"
        raise DataError(expected("start", wanted, f"{tuple(weight.shape)} and {tuple(bias.shape)}"))
    bias = (bias + weight @ scaling.shift[:known] - y_shift) / y_scale
    weight = weight * torch.where(scaling.scale.isfinite(), scaling.scale, 0.0)[:known] / y_scale.reshape(-1, 1)
    spread = weight.std(correction=0)
    spread = spread if spread > 0 else weight.abs().mean()
    for copy, noisy in ((heads.weight, nn.functional.pad(weight, (0, heads.features - known))), (heads.bias, bias)):
        noise = torch.randn(copy.shape, generator=generator).to(copy)
        copy.copy_(PRETRAINED_NOISE * spread * noise)
        copy[:, :outputs] += noisy


@torch.no_grad()
def continue_from(heads: Heads, earlier: Heads, view: View) -> None:
    """Put fitted heads, which take features, into new ones, which take the view; outputs that are new stay as drawn."""
    if earlier.count != heads.count or len(earlier.weights) != len(heads.weights):
        wanted = f"{heads.count} heads of {len(heads.weights)} layers, as the recipe has"
        raise DataError(expected("warm", wanted, f"{earlier.count} of {len(earlier.weights)}"))
    if earlier.weights[0].shape[-1] != view.extended:
        got = f"{earlier.weights[0].shape[-1]}"
        raise DataError(expected("columns of `warm`", f"{view.extended}, features and distance columns", got))
    first = view.unfold(earlier.weights[0], earlier.biases[0])
    layers = [first, *zip(earlier.weights[1:], earlier.biases[1:], strict=True)]
    for (weight, bias), own_weight, own_bias in zip(layers, heads.weights, heads.biases, strict=True):
        own_weight[:, : weight.shape[1]] = weight.to(own_weight)
        own_bias[:, : bias.shape[1]] = bias.to(own_bias)


def centre_of(earlier: Heads | None, task: Task) -> Centre | None:
    """Return the centre of earlier heads, if labels chose it and no classes have been added since."""
    if not isinstance(earlier, CentredHeads) or earlier.task.class_count != task.class_count:
        return None
    return None if earlier.centre.cost is None else earlier.centre


def warm_epochs(recipe: Recipe, samples: int) -> int:
    """Return the passes of a fit that starts from fitted heads: a tenth of the others, but at least one."""
    return max(round(_warm_passes(recipe, samples)), 1)


def warm_rows(recipe: Recipe, samples: int, columns: int) -> int:
    """Return how many rows such a fit looks at: all of them, or those of a tenth of the steps if that is less.

    There are enough for the principal axes in any case; a regression starts afresh, on all rows.
    """
    if recipe.task == "regression":
        return samples
    return min(max(round(_warm_passes(recipe, samples) * samples), ROWS_PER_COLUMN * columns), samples)


def _warm_passes(recipe: Recipe, samples: int) -> float:
    return WARM_SHARE * epochs_of(recipe, max(samples // recipe.batch_size, 1))
