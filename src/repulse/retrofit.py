"""The one call: split the network, compute features once, fit the heads."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from repulse._modes import without_autocast
from repulse.backbone.batches import Custom, explaining_failures, first_samples, to_device, training_batch
from repulse.backbone.features import Features, compute_features
from repulse.backbone.places import Place, Places
from repulse.backbone.position_features import ROWS, compute_position_features
from repulse.backbone.ranks import Ranks, is_first
from repulse.backbone.reading import first_batch
from repulse.backbone.split import Backbone, split, unwrap
from repulse.ensemble import Ensemble
from repulse.errors import (
    BackboneError,
    DataError,
    FitWarning,
    RecipeError,
    RepulsionError,
    check_positive_integer,
    expected,
)
from repulse.kept import KeptFeatures
from repulse.particles.fit import LONE_HEAD
from repulse.particles.tasks.task import target_hint
from repulse.prediction.multilabel import check_labels
from repulse.prediction.positions import UNLABELLED, is_known
from repulse.recipe import Recipe, check_recipe
from repulse.repulsion import Choice, FeatureSource, Source, choose
from repulse.repulsion.source import sample_inputs

AUTO = "auto"


@without_autocast()
def retrofit(
    model: nn.Module,
    data: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    repulsion: Source | FeatureSource | Iterable[Any] | Tensor | str | None = AUTO,
    layers: str | Sequence[str] | None = None,
    last_layer: str | None = None,
    recipe: Recipe | None = None,
    augmentations: int = 1,
    cache: str | Path | None = None,
    cache_dtype: torch.dtype | None = None,
    class_names: Sequence[str] | None = None,
    inputs: Place | None = None,
    targets: Place | None = None,
    output: Place | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Ensemble:
    """Give a trained network an ensemble of heads that know where they have no business agreeing.

    The model is shared, not copied, and comes back as it was: same weights, modes and hooks. Its features of `data` and
    of the repulsion samples are computed once, in eval mode; only the heads are trained.

    Under `torchrun`, with `torch.distributed` initialised, all processes must make the same call: they share the
    pass of the network, and all get the heads that the first one fitted.

    Args:
        model: a trained network that ends in a linear layer (or a 1x1 convolution), with or without a softmax after it;
            one output per input, or one at every position (pixels, tokens), interpolated or not.
        data: batches of `(inputs, targets)`, or mappings that hold `labels`; read from its start two or three times.
            Inputs are a tensor, a mapping of tensors or a tuple of several. Targets are classes `(B,)`, -100 where
            there is none, or probabilities of classes `(B, K)`; for `Recipe(task="multilabel")` 0 or 1 for each label
            `(B, K)`, NaN where unknown; for `Recipe(task="regression")` numbers `(B,)` or, of several targets,
            `(B, D)`. For an output at every position they are classes at every position, with -100, -1 or 255 where
            they take no part.
        validation: batches like those of `data` that the network was not trained on. They decide how much of a
            prediction is the network's, at which temperature, and how much noise a regression has; without them the
            network's own probabilities are kept, overconfident as they may be.
        repulsion: where heads should disagree: a source from `repulse.repulsion`, a loader of unlabelled batches, a
            tensor of ready features, None for nowhere (LL-E), or "auto": what `repulse.repulsion.choose` finds for the
            kind of inputs (images, tables, texts, signals, anything else), made from the training data. Recipes that do
            not repel in function space ignore it.
        layers: what the heads see: "auto" (the penultimate features, and statistics of earlier stages), "last" (the
            penultimate features alone), or names of modules to tap. If not given, what the recipe says.
        last_layer: name of the last layer, if it should not be found by running the model.
        recipe: how to fit; `Recipe()` if not given.
        augmentations: how many passes to make over a loader that augments at random.
        cache: folder in which to keep the features for the next time; without one they are kept in memory.
        cache_dtype: `torch.float16` (or `bfloat16`) to keep them there in half the space; as they are, if not given.
        class_names: names of the classes, saved with the ensemble. If not given, those that the model or the data set
            knows.
        inputs: where the network's inputs are in a batch that is not `(inputs, targets)` or a mapping with `labels`: a
            key (or the name of an attribute), an index, several of either, or a function of the batch. What a function
            returns may be of any kind that the model takes.
        targets: where the targets are in a batch, likewise.
        output: where the logits are in what the model returns, likewise: a key, an index or a function.
        device: where to run; the model is moved there. If not given it stays, and inputs go to its first parameter.
        progress: show bars, and say what was found and chosen.
    """
    recipe = check_recipe(recipe)
    if layers is not None:
        recipe = recipe.replace(layers=tuple(layers) if isinstance(layers, list) else layers)
    check_positive_integer("augmentations", augmentations)
    if recipe.heads == 1 and recipe.space == "none":  # of others, the fit warns
        warnings.warn(LONE_HEAD, FitWarning, stacklevel=3)
    if not isinstance(model, nn.Module):
        raise BackboneError(expected("model", "a `torch.nn.Module`", type(model).__name__))
    model = unwrap(model)
    places = Places(inputs, targets, output)
    data, first, target = _opened("data", data, places, recipe)
    place = _placed(model, device)
    first = to_device(first, place)
    with explaining_failures(first, "batch 0 of `data`", DataError):
        backbone = split(model, first, layers=recipe.layers, last_layer=last_layer, places=places)
    single = recipe.task == "classification" and backbone.outputs == 1
    _check_activation(backbone, recipe)
    _check_first("targets", target, backbone, recipe)
    if backbone.ending.positions:
        _check_positions(backbone, recipe, cache)
    if validation is not None:
        validation, _, target = _opened("validation", validation, places, recipe)
        _check_first("the targets of `validation`", target, backbone, recipe)
    names = _class_names(class_names, model, data, 2 if single else backbone.outputs, recipe)
    _check_custom(first, repulsion, cache)
    source, choice = _resolve(repulsion, first, backbone, recipe)
    if progress and is_first():
        _say(backbone, choice)
    positions = bool(backbone.ending.positions)
    where: dict[str, Any] = {} if positions else {"cache": cache, "cache_dtype": cache_dtype}
    features = (compute_position_features if positions else compute_features)(
        backbone,
        data,
        source,
        synthetic=None if choice is None else choice.source,
        synthetic_share=recipe.synthetic_share,
        samples=recipe.repulsion_samples,
        seed=recipe.seed,
        device=place,
        augmentations=augmentations,
        progress=progress,
        **where,
    )
    features, held_out = _labelled(features, recipe), None
    if validation is not None:
        common: dict[str, Any] = {"device": place, "progress": progress, "name": "validation"}
        if positions:
            found = compute_position_features(backbone, validation, None, rows=ROWS // 2, balanced=False, **common)
        else:
            folder = None if cache is None else Path(cache) / "validation"
            found = _labelled(compute_features(backbone, validation, None, cache=folder, **common), recipe)
        held_out = found.train.float(), _targets("the targets of `validation`", found, single)
    kept = KeptFeatures(features.train, _targets("targets", features, single), features.repulsion, *(held_out or ()))
    fit = partial(kept.fit, backbone, recipe, progress=progress and is_first())
    heads = Ranks(place, backbone.width).agree(lambda: fit().cpu()).to(place)
    summary = kept.summary(heads, backbone)
    summary.warn()
    words = _in_words(source, choice, features.repulsion)
    return Ensemble(backbone, heads, words, names, summary=summary, kept=kept)


def _opened(name: str, data: Iterable[Any], places: Places, recipe: Recipe) -> tuple[Iterable[Any], Any, Tensor]:
    """Return labelled data as batches of a known form, and inputs and targets of the first one."""
    if hasattr(data, "train_dataloader"):
        loader = "val_dataloader" if name == "validation" else "train_dataloader"
        got = f"a {type(data).__name__}; call its `setup('fit')` and pass its `{loader}()`"
        raise DataError(expected(name, "batches of (inputs, targets)", got))
    if isinstance(data, Tensor) and not data.ndim:
        raise DataError(expected(name, "batches of (inputs, targets)", "a single number"))
    if isinstance(data, Dataset) or not isinstance(data, Iterable):
        got = f"a {type(data).__name__}; wrap a data set in `DataLoader(dataset, batch_size=128)`"
        raise DataError(expected(name, "batches of (inputs, targets)", got))
    if isinstance(data, Iterator):
        raise DataError(expected(name, "batches that can be read twice, such as a list or a loader", "an iterator"))
    data = places.for_fit(data)
    return data, *training_batch(first_batch(data, recipe.seed, name), 0, name)


def _check_activation(backbone: Backbone, recipe: Recipe) -> None:
    """Refuse a network with one sigmoid per output for one class out of several."""
    if recipe.task == "classification" and backbone.outputs > 1 and backbone.ending.activation == "sigmoid":
        got = f"one sigmoid an output after {backbone.ending}; for several labels say `Recipe(task='multilabel')`"
        raise BackboneError(expected("the model's output", "that of a linear layer, or its softmax", got))


def _check_positions(backbone: Backbone, recipe: Recipe, cache: str | Path | None) -> None:
    """Refuse what cannot be had at every position."""
    if recipe.task != "classification" or backbone.outputs == 1 or backbone.ending.activation == "sigmoid":
        got = f"{backbone.outputs} outputs for {recipe.task}"
        wanted = "a classifier of at least two classes, with a softmax, for outputs at every position"
        raise BackboneError(expected("model", wanted, got))
    if cache is not None:
        got = "a folder (`suggest` makes one); positions are sampled in one pass, which is not kept"
        raise DataError(expected("cache", "None for outputs at every position", got))


def _check_custom(inputs: Any, repulsion: Any, cache: str | Path | None) -> None:
    """Refuse what needs to look into inputs of a form that only the network knows."""
    if isinstance(inputs, Custom) and cache is not None:
        raise DataError(expected("cache", "None for inputs that are not tensors", "a folder; how would it tell them?"))
    if isinstance(inputs, Custom) and isinstance(repulsion, Source) and repulsion.feature_share < 1:
        wanted = "'auto', None, a loader or features, for inputs that are not tensors"
        raise RepulsionError(expected("repulsion", wanted, repulsion))


def _check_first(name: str, target: Tensor, backbone: Backbone, recipe: Recipe) -> None:
    """Refuse targets that the fit would refuse, before an hour is spent on features."""
    outputs = backbone.outputs
    if backbone.ending.positions:
        is_known(target, outputs, name)
        return
    if recipe.task == "regression":
        _check_numbers(name, target, outputs)
    elif recipe.task == "multilabel":
        if tuple(target.shape[1:]) != (outputs,):
            got = f"shape {tuple(target.shape)}"
            raise DataError(expected(name, f"of shape (batch, {outputs}), 0 or 1 for each label", got))
        check_labels(name, target.float(), target.shape)
    elif outputs > 1:
        _check_classes(name, target, outputs)


def _check_numbers(name: str, target: Tensor, outputs: int) -> None:
    wanted = 1 if target.ndim == 1 else target.shape[1]
    if outputs not in (wanted, 2 * wanted) or target.ndim > 2:
        many = "one output" if wanted == 1 else f"{wanted} outputs, one per target"
        each = "a mean and a variance" if wanted == 1 else "a mean and a variance for each"
        got = f"{outputs} outputs, and {name} of shape {tuple(target.shape)}"
        raise BackboneError(expected("model", f"a network with {many} (or {each}) for regression", got))


def _check_classes(name: str, target: Tensor, outputs: int) -> None:
    if target.is_floating_point() and tuple(target.shape[1:]) == (outputs,):
        sums = target.sum(dim=1)
        if bool((target < 0).any()) or not bool(((sums - 1).abs() < 1e-3).all()):
            wanted = "classes, or probabilities of classes that sum to one; for several labels say `task='multilabel'`"
            raise DataError(
                expected(name, wanted, f"rows that sum to {float(sums.min()):.3g} .. {float(sums.max()):.3g}")
            )
        return
    if target.ndim != 1 or target.is_floating_point() or target.dtype == torch.bool or target.is_complex():
        got = f"{target.dtype} of shape {tuple(target.shape)}"
        raise DataError(expected(name, f"integer class indices, one for each sample{target_hint(target)}", got))
    target = target[target != UNLABELLED]
    if len(target) and (int(target.min()) < 0 or int(target.max()) >= outputs):
        got = f"values from {int(target.min())} to {int(target.max())} in the first batch"
        raise DataError(expected(name, f"between 0 and {outputs - 1}", got))


def _labelled(features: Features, recipe: Recipe) -> Features:
    """Leave out rows of no class, as losses of PyTorch do: the nodes of a graph, say, that nobody has labelled."""
    targets = features.targets
    known = targets != UNLABELLED
    if recipe.task != "classification" or targets.ndim != 1 or bool(known.all()):
        return features
    return Features(features.train[known.to(features.train.device)], targets[known], features.repulsion)


def _targets(name: str, features: Features, single: bool) -> Tensor:
    """Return targets as the fit wants them: those of a single logit may be floats, in a column."""
    targets = features.targets
    if targets.shape[1:] == (1,) and (single or targets.is_floating_point()):
        targets = targets.squeeze(1)
    if not single:
        return targets
    if not bool(((targets == 0) | (targets == 1)).all()):
        wanted = "0 or 1 for a classifier with one logit (for regression say `Recipe(task='regression')`)"
        raise DataError(expected(name, wanted, f"values from {targets.min():g} to {targets.max():g}"))
    return targets.long()


def _class_names(
    given: Sequence[str] | None, model: nn.Module, data: Any, classes: int, recipe: Recipe
) -> tuple[str, ...] | None:
    """Return the names of the classes: given, or known to the model (Hugging Face) or the data set (image folders)."""
    if recipe.task == "regression":
        return None
    if given is not None:
        names = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
        if len(names) != classes or not all(isinstance(name, str) for name in names):
            raise DataError(expected("class_names", f"{classes} strings, one per class", repr(given)[:80]))
        return tuple(given)
    known = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(known, dict) and set(known) == set(range(classes)):
        names = [str(known[i]) for i in range(classes)]
        if names != [f"LABEL_{i}" for i in range(classes)]:
            return tuple(names)
    known = getattr(getattr(data, "dataset", None), "classes", None)
    return tuple(map(str, known)) if isinstance(known, list | tuple) and len(known) == classes else None


def _resolve(
    repulsion: Any, inputs: Any, backbone: Backbone, recipe: Recipe
) -> tuple[Source | FeatureSource | Iterable[Any] | Tensor | None, Choice | None]:
    """Find where heads repel and, if that was chosen here, the choice; check it on the first batch."""
    if recipe.space != "function" and recipe.prior != "function":
        return None, None  # nobody would look at them
    if isinstance(repulsion, str):
        if repulsion != AUTO:
            wanted = "'auto', None, a source, a loader or a tensor of features"
            raise RecipeError(expected("repulsion", wanted, repr(repulsion)))
        with torch.no_grad():
            choice = choose(inputs, backbone, positions=bool(backbone.ending.positions))
        return choice.source, choice
    if isinstance(repulsion, type):
        raise RepulsionError(expected("repulsion", f"an object, `{repulsion.__name__}(...)`", "the class itself"))
    if repulsion is not None and not isinstance(repulsion, Iterable | Source | FeatureSource):
        raise RepulsionError(expected("repulsion", "a source, a loader, a tensor or None", type(repulsion).__name__))
    if isinstance(repulsion, Source) and repulsion.feature_share < 1:
        samples = sample_inputs(repulsion, inputs, torch.Generator().manual_seed(recipe.seed))
        with explaining_failures(samples, f"samples of {repulsion}", RepulsionError), torch.no_grad():
            backbone(first_samples(samples, 2))
    given = repulsion is not None and not isinstance(repulsion, Source | FeatureSource | Tensor)
    repulsion = backbone.places.unlabelled(repulsion) if given else repulsion
    if not given or not recipe.synthetic_share:
        return repulsion, None
    with torch.no_grad():
        return repulsion, choose(inputs, backbone, positions=bool(backbone.ending.positions))


def _say(backbone: Backbone, chosen: Choice | None) -> None:
    """Print what was found and chosen for the user, in a line or two."""
    ending = backbone.ending.in_words()
    lines = [f"heads take the place of {backbone.ending}" + (f", {ending}" if ending else "")]
    if backbone.taps:
        lines.append("they also see " + ", ".join(tap.name for tap in backbone.taps))
    if chosen is not None:
        lines.append(f"they repel each other on {chosen}")
    tqdm.write("repulse: " + "; ".join(lines), file=sys.stderr)


def _in_words(
    source: Source | FeatureSource | Iterable[Any] | Tensor | None, choice: Choice | None, features: Tensor | None
) -> str:
    if source is None or features is None:
        return "nowhere"
    what = "ready features" if isinstance(source, Tensor) else "given data"
    if isinstance(source, Source | FeatureSource):
        what = repr(source)
    elif choice is not None:
        what = f"given data and {choice.source!r}"
    return f"on {len(features):,} samples of {what}"


def _placed(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move the model to a device, if one is given; return where it is."""
    if any(part.is_meta for part in itertools.chain(model.parameters(), model.buffers())):
        raise BackboneError(expected("model", "one with weights", "weights on the meta device, which have no values"))
    if device is not None:
        try:
            found = torch.device(device)
            if found.type == "meta":
                raise ValueError("which keeps no values")
            model.to(found)
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as reason:
            why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(". ")
            raise BackboneError(expected("device", "one that torch has here", f"{device!r} ({why})")) from reason
    return next((p.device for p in model.parameters()), torch.device("cpu"))
