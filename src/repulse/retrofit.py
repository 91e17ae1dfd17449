"""The one call: split the network, compute features once, fit the heads."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from repulse.backbone.features import compute_features, feeding, labelled
from repulse.backbone.split import split
from repulse.ensemble import Ensemble
from repulse.errors import BackboneError, DataError, RecipeError, RepulsionError, expected
from repulse.particles.fit import check_recipe, fit_heads
from repulse.recipe import Recipe
from repulse.repulsion import DeadLeaves, Mixture, PhaseScramble, Source

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

    The model comes back as it was: same weights, modes and hooks. Its features of `data` and of the repulsion samples
    are computed once, in eval mode; only the heads are trained.

    Args:
        model: a trained network whose output is that of its last linear layer.
        data: batches of `(inputs, targets)`; iterated twice at most, once for a first batch and once for all.
        repulsion: where heads should disagree: a source from `repulse.repulsion`, a loader of unlabelled batches, a
            tensor of ready features, None for nowhere (LL-E), or "auto": dead leaves and phase-scrambled training
            images if the inputs are images, nowhere otherwise.
        recipe: how to fit; `Recipe()` if not given.
        device: where to run; that of the model's first parameter if not given.
        progress: show bars, and say which repulsion "auto" chose.
    """
    recipe = check_recipe(recipe)
    place = torch.device(device) if device is not None else _device_of(model)
    model.to(place)
    if iter(data) is data:
        raise DataError(expected("data", "batches that can be read twice, such as a list or a loader", "an iterator"))
    try:
        first = next(iter(data))
    except StopIteration:
        raise DataError(expected("data", "at least one batch", "none")) from None
    inputs = labelled(first, 0)[0].to(place)
    with feeding(inputs, "batch 0 of `data`", DataError):
        backbone = split(model, inputs)
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
    last = backbone.last
    if recipe.task == "regression" and last.out_features > 2:
        wanted = "a network with one output (or a mean and a variance) for regression"
        raise BackboneError(expected("model", wanted, f"{last.out_features} outputs"))
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


def _resolve(repulsion: Any, inputs: Tensor, recipe: Recipe, progress: bool) -> Source | Iterable[Any] | Tensor | None:
    if isinstance(repulsion, str):
        if repulsion != AUTO:
            wanted = "'auto', None, a source, a loader or a tensor of features"
            raise RecipeError(expected("repulsion", wanted, repr(repulsion)))
        if recipe.space != "function":
            return None
        images = inputs.ndim == 4 and inputs.is_floating_point() and min(inputs.shape[2:]) >= 4
        choice = Mixture([DeadLeaves(), PhaseScramble()]) if images else None
        if progress:
            where = f"on {choice}" if choice else "nowhere (inputs are not images, so this is a plain LL-E)"
            tqdm.write(f"repulse: repelling {where}", file=sys.stderr)
        return choice
    if repulsion is not None and not isinstance(repulsion, Iterable | Source):
        raise RepulsionError(expected("repulsion", "a source, a loader, a tensor or None", type(repulsion).__name__))
    return repulsion


def _in_words(source: Source | Iterable[Any] | Tensor | None, features: Tensor | None) -> str:
    if source is None or features is None:
        return "nowhere"
    what = (
        repr(source) if isinstance(source, Source) else "ready features" if isinstance(source, Tensor) else "given data"
    )
    return f"{len(features):,} samples of {what}"


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
