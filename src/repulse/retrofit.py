"""The one call: split the network, compute features once, fit the heads."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from repulse.backbone.features import compute_features, feeding, labelled
from repulse.backbone.split import split
from repulse.ensemble import Ensemble
from repulse.errors import BackboneError, DataError, FitWarning, RecipeError, RepulsionError, expected
from repulse.particles.fit import fit_heads
from repulse.recipe import Recipe, check_recipe
from repulse.repulsion import Source, SyntheticImages

AUTO = "auto"


def retrofit(
    model: nn.Module,
    data: Iterable[Any],
    *,
    repulsion: Source | Iterable[Any] | Tensor | str | None = AUTO,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Ensemble:
    """Give a trained network an ensemble of heads that know where they have no business agreeing.

    The model is shared, not copied, and comes back as it was: same weights, modes and hooks. Its features of `data` and
    of the repulsion samples are computed once, in eval mode; only the heads are trained.

    Args:
        model: a trained network whose output is that of its last linear layer.
        data: batches of `(inputs, targets)`; iterated twice at most, once for a first batch and once for all.
        repulsion: where heads should disagree: a source from `repulse.repulsion`, a loader of unlabelled batches, a
            tensor of ready features, None for nowhere (LL-E), or "auto": dead leaves and phase-scrambled training
            images if the inputs are images, nowhere (with a warning) otherwise. Recipes that do not repel in function
            space ignore it.
        recipe: how to fit; `Recipe()` if not given.
        device: where to run; the model is moved there. If not given it stays, and inputs go to its first parameter.
        progress: show bars, and say which repulsion "auto" chose.
    """
    recipe = check_recipe(recipe)
    if isinstance(data, Dataset) or not isinstance(data, Iterable):
        got = f"a {type(data).__name__}; wrap a data set in `DataLoader(dataset, batch_size=128)`"
        raise DataError(expected("data", "batches of (inputs, targets)", got))
    if iter(data) is data:
        raise DataError(expected("data", "batches that can be read twice, such as a list or a loader", "an iterator"))
    try:
        first = next(iter(data))
    except StopIteration:
        raise DataError(expected("data", "at least one batch", "none")) from None
    inputs = labelled(first, 0)[0]
    if device is not None:
        model.to(device)
    place = _device_of(model)
    inputs = inputs.to(place)
    with feeding(inputs, "batch 0 of `data`", DataError):
        backbone = split(model, inputs)
    last = backbone.last
    _check_outputs(last.out_features, recipe)
    source = _resolve(repulsion, inputs, recipe, progress)
    features = compute_features(
        backbone,
        data,
        source,
        samples=recipe.repulsion_samples,
        generator=torch.Generator().manual_seed(recipe.seed),
        device=place,
        progress=progress,
    )
    classes = last.out_features if recipe.task == "classification" else None
    bias = torch.zeros(last.out_features, device=place) if last.bias is None else last.bias
    heads = fit_heads(
        features.train,
        features.targets,
        features.repulsion,
        recipe,
        classes=classes,
        start=(last.weight, bias),
        progress=progress,
    )
    return Ensemble(backbone, heads, _in_words(source, features.repulsion))


def _check_outputs(outputs: int, recipe: Recipe) -> None:
    if recipe.task == "regression" and outputs > 2:
        wanted = "a network with one output (or a mean and a variance) for regression"
        raise BackboneError(expected("model", wanted, f"{outputs} outputs"))
    if recipe.task == "classification" and outputs < 2:
        wanted = "a network with an output for each class (or `task='regression'` in the recipe)"
        raise BackboneError(expected("model", wanted, f"{outputs} output"))


def _resolve(repulsion: Any, inputs: Tensor, recipe: Recipe, progress: bool) -> Source | Iterable[Any] | Tensor | None:
    if recipe.space != "function" and recipe.prior != "function":
        return None  # nobody would look at them
    if isinstance(repulsion, str):
        if repulsion != AUTO:
            wanted = "'auto', None, a source, a loader or a tensor of features"
            raise RecipeError(expected("repulsion", wanted, repr(repulsion)))
        images = inputs.ndim == 4 and inputs.is_floating_point() and min(inputs.shape[2:]) >= 4
        if not images:
            warnings.warn(
                "Inputs are not float images, so `repulsion='auto'` repels nowhere: this is a plain last-layer "
                "ensemble (LL-E), whose epistemic uncertainty is small everywhere. Pass repulsion samples, or None if "
                "you mean it.",
                FitWarning,
                stacklevel=3,
            )
            return None
        choice = SyntheticImages()
        if progress:
            tqdm.write(f"repulse: repelling on {choice}", file=sys.stderr)
        return choice
    if isinstance(repulsion, type):
        raise RepulsionError(expected("repulsion", f"an object, `{repulsion.__name__}(...)`", "the class itself"))
    if repulsion is not None and not isinstance(repulsion, Iterable | Source):
        raise RepulsionError(expected("repulsion", "a source, a loader, a tensor or None", type(repulsion).__name__))
    return repulsion


def _in_words(source: Source | Iterable[Any] | Tensor | None, features: Tensor | None) -> str:
    if source is None or features is None:
        return "nowhere"
    what = (
        repr(source) if isinstance(source, Source) else "ready features" if isinstance(source, Tensor) else "given data"
    )
    return f"on {len(features):,} samples of {what}"


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
