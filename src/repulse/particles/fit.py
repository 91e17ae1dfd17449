"""Fit an ensemble of heads on features: check, scale, optimise, put around the network."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from repulse._finite import comparable
from repulse._modes import without_autocast
from repulse.errors import (
    DataError,
    FitWarning,
    NonFiniteLossError,
    check_dense,
    expected,
)
from repulse.particles.calibrate import (
    HELD_OUT,
    assume_noise_of,
    centre_classes,
    centre_known_noise,
    centre_numbers,
    gaussians_of,
    release_of,
    unseen_rows,
)
from repulse.particles.centre import Centre
from repulse.particles.centred import CentredHeads
from repulse.particles.checks import check_repulsion, check_values
from repulse.particles.distance import Release
from repulse.particles.fit_data import FitData, identity
from repulse.particles.growth import Growth
from repulse.particles.heads import Heads
from repulse.particles.pool import MAX_PRESCALED
from repulse.particles.run_loop import check_targets, run_loop
from repulse.particles.scaling import TAP_SCALE
from repulse.particles.start import centre_of, check_last_layer, continue_from, start_from, warm_epochs
from repulse.particles.tasks import Classification, Multiregression, Regression, Task
from repulse.particles.view import View
from repulse.recipe import Recipe, check_recipe

LARGE_SCALE = 1.0
"""Spread of whitened features, if it is "auto", of heads whose share of the prediction labels decide."""

ALONE_STRENGTH = 0.03
"""Strength, if it is "auto", of a regression without a network: more would inflate the noise that its heads predict."""

MAX_HELD_OUT = 5000
"""Rows on which the disagreement of heads is looked at, at most, where none could be kept from the fit."""

LONE_HEAD = "A single head has nothing to disagree with, so its epistemic uncertainty is zero everywhere."
"""Warning about a fit that repels and has nobody to repel."""


@torch.inference_mode(False)  # whatever the caller's modes are
@without_autocast()
def fit_heads(
    features: Tensor,
    targets: Tensor,
    repulsion_features: Tensor | None = None,
    recipe: Recipe | None = None,
    *,
    classes: int | None = None,
    start: tuple[Tensor, Tensor] | None = None,
    taps: int = 0,
    validation: tuple[Tensor, Tensor] | None = None,
    inputs: Tensor | None = None,
    warm: Heads | None = None,
    positions: bool = False,
    progress: bool = True,
) -> Heads:
    """Fit an ensemble of heads on features that are already there.

    Features may be mapped from a file and larger than memory: at most 270 MB of them are held, and one number
    per row of targets.

    Examples:
        >>> features = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> targets = (features[:, 0] > 0).long()
        >>> far = 5 * torch.randn(300, 2, generator=torch.Generator().manual_seed(1))
        >>> heads = fit_heads(features, targets, far, progress=False)
        >>> heads.predict(features).labels.eq(targets).float().mean() > 0.95
        tensor(True)

    Args:
        features: training features, `(N, d)`.
        targets: class indices `(N,)` or probabilities of classes `(N, K)`; for several labels 0, 1 or (unknown) NaN
            `(N, K)`; for regression floats `(N,)` or, of several targets, `(N, D)`.
        repulsion_features: features of the repulsion samples, `(M, d)`. None repels nowhere in function space, which
            is the plain last-layer ensemble (LL-E).
        recipe: how to fit; `Recipe()` if not given.
        classes: number of classes, if `targets` may not show all of them.
        start: weight `(K, d)` and bias `(K,)` of the network's own last layer: the centre that heads are put around,
            and where they start with `init="pretrained"`. It sees the first d features.
        taps: how many of the last columns of the features are taps, which are scaled one by one and kept small.
        validation: features and targets that neither the network nor the heads are fitted to. They decide how much of
            the prediction is the network's, at which temperature, and how much noise a regression has.
        inputs: `(N, e)`, raw inputs of the training rows of a regression, from which its noise is estimated where there
            is no validation data.
        warm: heads of an earlier fit of this recipe on these features, to start from, with a tenth of the steps.
            Classes may have been added since. A regression, which scales its targets, starts afresh.
        positions: whether rows are positions, such as pixels, at which disagreement does not grow with the distance: a
            Gaussian of each class would cost too much there, and distances from all of the data alone harm as often.
        progress: show a progress bar when it takes more than two seconds.

    Returns:
        The heads, on the device of the features, with `recipe` and `history`.

    Raises:
        DataError: features or targets are unusable.
        RepulsionError: the repulsion features are.
        NonFiniteLossError: the fit diverged; the last good heads are in its `.heads`.
    """
    recipe = check_recipe(recipe)
    if recipe.heads == 1 and recipe.space != "none":
        warnings.warn(LONE_HEAD, FitWarning, stacklevel=4)
    check_values("features", features)
    features = features.detach()
    if features.ndim != 2:
        raise DataError(expected("features", "of shape (samples, dimensions)", f"shape {tuple(features.shape)}"))
    recipe = check_repulsion("repulsion_features", repulsion_features, features, recipe)
    targets, task = check_targets(targets, len(features), recipe, classes)
    targets = targets.to(features.device, task.target_dtype)

    if isinstance(taps, bool) or not isinstance(taps, int) or not 0 <= taps < features.shape[1]:
        raise DataError(expected("taps", f"from 0 to {features.shape[1] - 1}", repr(taps)))
    held_out = None if validation is None else _check_validation(validation, features, task, recipe)
    fit = _Fit(features, targets, repulsion_features, recipe, task, taps, start, warm, progress, not positions)
    if recipe.centre == "heads" or not (recipe.whiten and recipe.distances):
        if recipe.centre == "network" and start is not None:
            warnings.warn(
                "Heads that see no distances (`whiten=False` or `distances=False`) are left as they were fitted, not "
                "put around the network, which nothing would let go of far away. Say `centre='heads'` if you mean it.",
                FitWarning,
                stacklevel=2,
            )
        plain = dataclasses.replace(fit, recipe=recipe.replace(distances=False))
        return plain.run(_scale_of(recipe, TAP_SCALE))[0]
    network = None if start is None else check_last_layer(start, task, features.shape[1] - taps)
    if isinstance(task, Regression | Multiregression):
        return _fit_numbers(fit, network, held_out, inputs)
    return _fit_classes(fit, network, held_out)


@dataclass(frozen=True, eq=False)
class _Fit:
    """What a fit is given, checked."""

    features: Tensor
    targets: Tensor
    repulsion: Tensor | None
    recipe: Recipe
    task: Task
    taps: int
    start: tuple[Tensor, Tensor] | None
    warm: Heads | None
    progress: bool
    grows: bool = True

    def run(self, tap_scale: float) -> tuple[Heads, View]:
        """Fit heads at one spread of the whitened features; they take features and distance columns, as in the view."""
        recipe, features = self.recipe.replace(tap_scale=tap_scale), self.features
        view = self._view(recipe, tap_scale)
        generator = torch.Generator().manual_seed(recipe.seed)
        training, y, y_shift, y_scale = self.task.scale_targets(self.targets)
        heads = Heads(recipe.heads, view.columns, training, recipe.hidden, generator).to(features.device)
        if recipe.init == "pretrained":
            start_from(heads, self.start, view.scaling, y_shift, y_scale, generator)
        far = None if self.repulsion is None else view.whole(self.repulsion.detach())
        prepare: Callable[[Tensor], Tensor] = view
        if len(features) * view.columns <= MAX_PRESCALED:
            features, prepare = view.whole(features, view.known), identity
        training = heads.task = training.warm_start(heads, features, prepare, y)
        shortened = recipe
        if self.warm is not None and training is self.task:
            continue_from(heads, self.warm, view)
            shortened = recipe.replace(epochs=warm_epochs(recipe, len(features)))
        task = self.task.in_original_units(training, y_scale)

        def finish() -> None:
            heads.fold_inputs(view)
            task.fold_targets(heads, y_shift, y_scale)
            heads.task = task
            heads.requires_grad_(False)

        try:
            run_loop(heads, FitData(features, y, far, prepare, training), shortened, self.progress, finish)
            heads.recipe = (heads.recipe or recipe).replace(epochs=recipe.epochs)  # that of a fit from the start
        except NonFiniteLossError as error:
            if view.distances is None:
                raise
            raise NonFiniteLossError(str(error), self._centred(heads, view)) from None
        return heads, view

    def _view(self, recipe: Recipe, tap_scale: float) -> View:
        """Return what heads see: along the axes that earlier heads have, where these know the same classes."""
        keep, view = self.features.numel() <= MAX_PRESCALED, None
        if recipe.distances and recipe.task != "regression" and centre_of(self.warm, self.task) is not None:
            assert isinstance(self.warm, CentredHeads)
            view = View.continued(self.warm.distances, self.features, self.taps, tap_scale, keep)
        return view or View.of(self.features, self.taps, recipe, tap_scale, keep)

    def _centred(self, heads: Heads, view: View) -> CentredHeads:
        """Put heads whose fit was cut short around the network, so that they take features as all heads do."""
        assert view.distances is not None
        network = None if self.start is None else check_last_layer(self.start, self.task, view.scaling.kept)
        release = release_of(view.distances, self.features, self.taps, None)
        return CentredHeads.around(
            heads, view.distances, release, network, Centre(0.0 if network is None else 1.0), heads.task
        )


def _fit_classes(
    fit: _Fit, network: tuple[Tensor, Tensor] | None, validation: tuple[Tensor, Tensor] | None
) -> CentredHeads:
    """Fit a classifier's heads, and put them around the network."""
    heads, view = fit.run(_scale_of(fit.recipe, TAP_SCALE if network is None or validation is None else LARGE_SCALE))
    assert view.distances is not None
    gaussians = None
    if fit.grows and type(fit.task) is Classification:
        gaussians = gaussians_of(view.distances, fit.features, fit.targets, fit.task.classes)
    given = view.distances, fit.features, fit.taps, validation
    unseen = unseen_rows(*given, gaussians, None if gaussians is None else fit.targets)
    growth = Growth.of(unseen.measures, gaussians) if fit.grows else None
    release = Release.of(unseen.squares)
    return centre_classes(heads, view, release, growth, network, validation, centre_of(fit.warm, fit.task))


def _scale_of(recipe: Recipe, auto: float) -> float:
    """Return the spread of whitened features."""
    return auto if isinstance(recipe.tap_scale, str) else recipe.tap_scale


def _fit_numbers(
    fit: _Fit,
    network: tuple[Tensor, Tensor] | None,
    validation: tuple[Tensor, Tensor] | None,
    inputs: Tensor | None,
) -> Heads:
    """Fit a regression's heads around the network, with noise that validation rows show, or that must be assumed."""
    scale = _scale_of(fit.recipe, LARGE_SCALE)
    if network is None:
        strength = ALONE_STRENGTH if isinstance(fit.recipe.strength, str) else fit.recipe.strength
        alone = fit.recipe.replace(distances=False, strength=strength)
        return dataclasses.replace(fit, recipe=alone).run(scale)[0]
    if fit.recipe.noise is not None:
        heads, view = fit.run(scale)
        assert view.distances is not None
        release = release_of(view.distances, fit.features, fit.taps, validation)
        made = CentredHeads.around(heads, view.distances, release, network, Centre(), heads.task)
        return made if validation is None else centre_known_noise(made, validation)
    assumed = assume_noise_of(fit.features, fit.targets, network, validation, inputs)
    held_out = validation
    if validation is None:
        fit, held_out = _hold_out(fit)
    several = isinstance(fit.task, Multiregression)
    noise = tuple(one.noise for one in assumed) if several else assumed[0].noise
    task = Multiregression(len(assumed), noise) if several else Regression(noise)  # pyright: ignore[reportArgumentType]
    heads, view = dataclasses.replace(fit, recipe=fit.recipe.replace(noise=noise), task=task).run(scale)
    assert view.distances is not None
    assert held_out is not None
    release = release_of(view.distances, fit.features, fit.taps, validation)
    made = centre_numbers(heads, view, release, network, assumed, held_out)
    made.recipe = (made.recipe or fit.recipe).replace(noise=None)  # measured, and to be measured again by another fit
    return made


def _hold_out(fit: _Fit) -> tuple[_Fit, tuple[Tensor, Tensor]]:
    """Keep every sixth row from the fit, unless rows are too few, or too many to copy."""
    count = len(fit.targets)
    if count < 2 * HELD_OUT or fit.features.numel() > MAX_PRESCALED:
        return fit, (fit.features[:MAX_HELD_OUT], fit.targets[:MAX_HELD_OUT])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(fit.recipe.seed)).to(fit.targets.device)
    held, used = order[: count // HELD_OUT], order[count // HELD_OUT :].sort().values
    smaller = dataclasses.replace(fit, features=fit.features[used], targets=fit.targets[used])
    return smaller, (fit.features[held], fit.targets[held])


def _check_validation(
    validation: tuple[Tensor, Tensor], features: Tensor, task: Task, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """Refuse validation data that is not like the training data."""
    if not isinstance(validation, tuple) or len(validation) != 2:
        raise DataError(expected("validation", "features and targets", type(validation).__name__))
    rows, targets = validation
    check_values("validation", rows)
    if rows.ndim != 2 or rows.shape[1] != features.shape[1]:
        raise DataError(
            expected("validation", f"of shape (samples, {features.shape[1]})", f"shape {tuple(rows.shape)}")
        )
    if not isinstance(targets, Tensor):
        raise DataError(expected("the targets of `validation`", "a tensor", type(targets).__name__))
    check_dense("the targets of `validation`", targets)
    targets = checked = comparable(targets)
    if not _is_one_class(targets, len(rows), task):
        checked, task = task.from_targets(targets, len(rows), recipe, task.class_count)
    return rows.detach().to(features.device), checked.to(features.device, task.target_dtype)


def _is_one_class(targets: Tensor, samples: int, task: Task) -> bool:
    """Check whether all targets are one and the same class, which is enough for validation data."""
    classes = not targets.is_floating_point() and targets.shape == (samples,) and samples > 0
    if task.class_count is None or not classes:
        return False
    return int(targets.min()) == int(targets.max()) and 0 <= int(targets.min()) < task.class_count
