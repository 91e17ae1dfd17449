"""Fit an ensemble of heads on features, or any list of networks on inputs: check, scale, optimise, report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from repulse._mapped import give_back, walk
from repulse.errors import (
    DataError,
    NonFiniteLossError,
    RepulsionError,
    check_positive_integer,
    expected,
)
from repulse.particles.heads import Heads, Networks, Particles
from repulse.particles.history import warn_about
from repulse.particles.loop import DivergedError, optimise
from repulse.particles.pool import READY
from repulse.particles.problem import Problem, as_it_is
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Classification, Regression, Task
from repulse.recipe import Recipe, check_recipe

PRETRAINED_NOISE = 0.1
"""Noise added to copies of a pretrained last layer, relative to the spread of its weights."""


@torch.inference_mode(False)  # whatever the caller's mode is
def fit_heads(
    features: Tensor,
    targets: Tensor,
    repulsion_features: Tensor | None = None,
    recipe: Recipe | None = None,
    *,
    classes: int | None = None,
    start: tuple[Tensor, Tensor] | None = None,
    taps: int = 0,
    progress: bool = True,
) -> Heads:
    """Fit an ensemble of heads on features that are already there.

    Features may be mapped from a file and larger than memory: at most 270 MB of them are held, and one number a
    row of targets.

    Examples:
        >>> features = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> targets = (features[:, 0] > 0).long()
        >>> far = 5 * torch.randn(300, 2, generator=torch.Generator().manual_seed(1))
        >>> heads = fit_heads(features, targets, far, progress=False)
        >>> heads.predict(features).labels.eq(targets).float().mean() > 0.95
        tensor(True)

    Args:
        features: training features, `(N, d)`.
        targets: class indices `(N,)`, or for regression floats `(N,)`.
        repulsion_features: features of the repulsion samples, `(M, d)`. None repels nowhere in function space, which
            is the plain last-layer ensemble (LL-E).
        recipe: how to fit; `Recipe()` if not given.
        classes: number of classes, if `targets` may not show all of them.
        start: weight `(K, d)` and bias `(K,)` of the network's own last layer, for `init="pretrained"`.
        taps: how many of the last columns of the features are taps, which are scaled one by one and kept small.
        progress: show a progress bar when it takes more than two seconds.

    Returns:
        The heads, on the device of the features, with `recipe` and `history`.

    Raises:
        DataError: features or targets are unusable.
        RepulsionError: the repulsion features are.
        NonFiniteLossError: the fit diverged; the last good heads are in its `.heads`.
    """
    recipe = check_recipe(recipe)
    _check_values("features", features)
    features = features.detach()
    if features.ndim != 2:
        raise DataError(expected("features", "of shape (samples, dimensions)", f"shape {tuple(features.shape)}"))
    recipe = _check_repulsion("repulsion_features", repulsion_features, features, recipe)
    targets, task = _check_targets(targets, len(features), recipe, classes)
    targets = targets.to(features.device, torch.int64 if isinstance(task, Classification) else None)

    if isinstance(taps, bool) or not isinstance(taps, int) or not 0 <= taps < features.shape[1]:
        raise DataError(expected("taps", f"from 0 to {features.shape[1] - 1}", repr(taps)))
    scaling = Scaling.of(features, taps, recipe.tap_scale, recipe.whiten)
    generator = torch.Generator().manual_seed(recipe.seed)
    training, y, y_shift, y_scale = _scaled_targets(task, targets)
    heads = Heads(recipe.heads, scaling.columns, training, recipe.hidden, generator).to(features.device)
    if recipe.init == "pretrained":
        _start_from(heads, start, scaling, y_shift, y_scale, generator)
    far = None if repulsion_features is None else _scaled(repulsion_features.detach(), scaling)
    prepare: Callable[[Tensor], Tensor] = scaling
    if len(features) * scaling.columns <= READY:
        features, prepare = _scaled(features, scaling), as_it_is
    if isinstance(training, Regression):
        left = _regress(heads, features, prepare, y)
        training = heads.task = replace(training, log_variance=left)
        task = replace(task, log_variance=left + 2 * math.log(float(y_scale)))  # pyright: ignore[reportArgumentType]

    def finish() -> None:
        heads.fold_inputs(scaling)
        if isinstance(task, Regression):
            heads.fold_targets(y_shift, y_scale)
        heads.task = task
        heads.requires_grad_(False)

    _run(heads, Problem(features, y, far, prepare, training), recipe, progress, finish)
    return heads


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
    """Fit any list of networks, one a particle, with the same rules as heads: a repulsive deep ensemble.

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
    _check_values("inputs", inputs)
    recipe = _check_repulsion("repulsion_inputs", repulsion_inputs, inputs, recipe)
    targets, task = _check_targets(targets, len(inputs), recipe, classes)
    particles = Networks(networks, task)
    targets = targets.to(inputs.device, torch.int64) if isinstance(task, Classification) else targets.to(inputs)
    problem = Problem(inputs, targets, repulsion_inputs, as_it_is, task)
    _run(particles, problem, recipe, progress)
    return particles


def _scaled(features: Tensor, scaling: Scaling) -> Tensor:
    out = scaling.shift.new_empty(len(features), scaling.columns)
    done = 0
    for part in walk(features):
        out[done : done + len(part)] = scaling(part)
        done += len(part)
    return out


def _run(particles: Particles, problem: Problem, recipe: Recipe, progress: bool, finish=lambda: None) -> None:
    recipe = recipe.replace(strength=recipe.strength_for(getattr(problem.task, "classes", None)))
    diverged = None
    try:
        with torch.inference_mode(False), torch.enable_grad():
            particles.history = optimise(particles, problem, recipe, progress)
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
    """Mean distance of the particles' parameters from their mean, relative to their size."""
    if particles.count == 1:
        return None
    try:
        vectors = particles.vectors()
    except DataError:  # networks of different architectures cannot have collapsed
        return None
    return float((vectors - vectors.mean(dim=0)).norm(dim=1).mean() / vectors.norm(dim=1).mean().clamp_min(1e-30))


def _scaled_targets(task: Task, targets: Tensor) -> tuple[Task, Tensor, Tensor, Tensor]:
    """The task and targets as the loop sees them: regression targets with zero mean and unit variance."""
    zero, one = torch.zeros((), device=targets.device), torch.ones((), device=targets.device)
    if isinstance(task, Classification):
        return task, targets, zero, one
    shift = targets.mean()
    scale = targets.std(correction=0)
    scale = torch.where(scale > 0, scale, one).float()
    scaled = ((targets - shift) / scale).float()
    give_back(targets)
    inner = task if task.noise is None else replace(task, noise=task.noise / float(scale))
    return inner, scaled, shift.float(), scale


@torch.no_grad()
def _regress(heads: Heads, features: Tensor, prepare: Callable[[Tensor], Tensor], y: Tensor) -> float:
    """Take the means of linear heads from where they are to the nearest least-squares solution.

    Where the features vary, all heads then fit the targets as well as any; where they do not, each keeps its random
    start. Without it, the first thing a predicted variance learns is the error of a random mean, which it takes
    thousands of steps to forget.

    Returns:
        The log of the variance that linear regression leaves over, where predicted variances should start.
    """
    y = y.cpu().double()
    gram = torch.zeros(heads.features, heads.features, dtype=torch.float64)
    cross = torch.zeros(heads.features, dtype=torch.float64)
    done = 0
    for part in walk(features):
        x = prepare(part).cpu().double()
        gram += x.T @ x / len(y)
        cross += x.T @ y[done : done + len(x)] / len(y)
        done += len(x)
    ridged = gram + 1e-4 * torch.eye(heads.features, dtype=torch.float64)
    solution = torch.linalg.solve(ridged, cross)
    if len(heads.weights) == 1:
        means = heads.weight[:, 0].cpu().double()
        heads.weight[:, 0] += torch.linalg.solve(ridged, cross.unsqueeze(1) - gram @ means.T).T.to(heads.weight)
        heads.bias[:, 0] = 0.0
    left = y.square().mean() - 2 * cross @ solution + solution @ gram @ solution
    return float(left.clamp_min(1e-8).log())


@torch.no_grad()
def _start_from(
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
    outputs = 1 if isinstance(heads.task, Regression) else heads.task.outputs
    weight, bias = (t.detach().to(scaling.shift) for t in start)
    if outputs == 1:  # a network with a variance beside the mean gives its mean
        weight, bias = weight[:1], bias[:1]
    known = weight.shape[1] if weight.ndim == 2 else 0  # a last layer knows nothing of taps
    most = len(scaling.scale) if scaling.axes is None else scaling.kept  # whitened features are no features of its
    if weight.shape != (outputs, known) or known > most or bias.shape != (outputs,):
        wanted = f"a weight of shape {(outputs, most)} and a bias of shape {(outputs,)}"
        raise DataError(expected("start", wanted, f"{tuple(weight.shape)} and {tuple(bias.shape)}"))
    bias = (bias + weight @ scaling.shift[:known] - y_shift) / y_scale
    weight = weight * torch.where(scaling.scale.isfinite(), scaling.scale, 0.0)[:known] / y_scale
    spread = weight.std(correction=0)
    spread = spread if spread > 0 else weight.abs().mean()
    for copy, noisy in ((heads.weight, nn.functional.pad(weight, (0, heads.features - known))), (heads.bias, bias)):
        noise = torch.randn(copy.shape, generator=generator).to(copy)
        copy.copy_(PRETRAINED_NOISE * spread * noise)
        copy[:, :outputs] += noisy


def _check_values(name: str, values: Tensor, error: type[DataError] = DataError) -> None:
    if not isinstance(values, Tensor):
        raise error(expected(name, "a tensor", type(values).__name__))
    if not values.numel():
        raise error(expected(name, "non-empty", f"shape {tuple(values.shape)}"))
    if not values.is_floating_point():
        raise error(expected(name, "a float tensor", f"{values.dtype}"))
    seen, bad, first = 0, 0, 0
    for part in walk(values if values.ndim > 1 else values.unsqueeze(1)):
        rows = (~torch.isfinite(part.flatten(start_dim=1)).all(dim=1)).nonzero().flatten()
        first = seen + int(rows[0]) if len(rows) and not bad else first
        seen, bad = seen + len(part), bad + len(rows)
    if bad:
        raise error(expected(name, "finite", f"NaN or infinite values in {bad} rows, the first being row {first}"))


def _check_repulsion(name: str, repulsion: Tensor | None, features: Tensor, recipe: Recipe) -> Recipe:
    """Check the repulsion samples; without any, function-space repulsion becomes none."""
    if repulsion is None:
        return recipe.replace(space="none") if recipe.space == "function" else recipe
    _check_values(name, repulsion, RepulsionError)
    if repulsion.shape[1:] != features.shape[1:]:
        wanted = f"of shape (samples, {', '.join(map(str, features.shape[1:]))}) like the training data"
        raise RepulsionError(expected(name, wanted, f"shape {tuple(repulsion.shape)}"))
    if repulsion.device != features.device:
        raise RepulsionError(expected(name, f"on {features.device} like the training data", f"{repulsion.device}"))
    return recipe


def _check_targets(targets: Tensor, samples: int, recipe: Recipe, classes: int | None) -> tuple[Tensor, Task]:
    """Targets as a vector, and what they are targets of."""
    if classes is not None:
        check_positive_integer("classes", classes)
    if not isinstance(targets, Tensor):
        raise DataError(expected("targets", "a tensor", type(targets).__name__))
    if recipe.task == "regression" and targets.shape == (samples, 1):
        targets = targets.squeeze(1)
    if targets.shape != (samples,):
        hint = ""
        if targets.ndim == 2:
            one_hot = bool((targets.sum(dim=1) == 1).all())
            hint = "; for one-hot targets use `targets.argmax(dim=1)`" if one_hot else "; several labels are not taken"
        wanted = f"of shape ({samples},), one for each sample{hint}"
        raise DataError(expected("targets", wanted, f"shape {tuple(targets.shape)}"))
    if recipe.task == "regression":
        _check_values("targets", targets)
        return targets, Regression(recipe.noise)
    if targets.is_floating_point() or targets.dtype == torch.bool or targets.is_complex():
        raise DataError(expected("targets", "integer class indices for classification", f"{targets.dtype}"))
    ends = [(int(part.min()), int(part.max())) for part in walk(targets)]
    low, high = min(least for least, _ in ends), max(most for _, most in ends)
    if low < 0 or (classes is not None and high >= classes):
        wanted = f"between 0 and {classes - 1}" if classes is not None else "zero or larger"
        raise DataError(expected("targets", wanted, f"values from {low} to {high}"))
    if low == high:
        raise DataError(expected("targets", "of at least two classes", f"only class {low}"))
    return targets, Classification(classes if classes is not None else high + 1)
