"""Learn new labels, and forget others exactly: fits on features that were kept, never on inputs again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repulse.backbone.batches import inputs_of, size_of
from repulse.backbone.features import compute_features
from repulse.errors import DataError, RepulsionError, expected
from repulse.particles.start import warm_rows
from repulse.recipe import Recipe

if TYPE_CHECKING:
    from repulse.ensemble import Ensemble
    from repulse.kept import KeptFeatures
    from repulse.particles.heads import Heads

FOREIGN_SHARE = 0.2
"""Share of the repulsion samples that inputs which a person marked make up, however few they are."""

MOST_CLASSES = 2**24
"""Largest class index that floats of 32 bits hold exactly."""


def update(
    ensemble: Ensemble,
    data: Iterable[Any] | None = None,
    *,
    foreign: Iterable[Any] | Tensor | None = None,
    class_names: Sequence[str] | None = None,
    progress: bool = True,
) -> Ensemble:
    """Return an ensemble that has learnt new labelled data, or where else to disagree.

    Only new inputs go through the network; its features of the old data were kept. Heads start from those they were,
    and take a tenth of the steps of a fit: where these are less than a pass, they see all new data, and as much of the
    old as there is time for, drawn at random. With new classes, numbered after the old ones, they are fitted from the
    start; the network has no outputs for them, so from then on the mean prediction is that of the heads.

    Args:
        ensemble: made by `retrofit`, or saved with `features=True`; it stays as it is.
        data: batches of `(inputs, targets)`, as `retrofit` takes them.
        foreign: batches of inputs that a person marked as none of the classes: heads will disagree there. They are
            repeated until they are a fifth of all repulsion samples.
        class_names: names of all classes, if there are new ones.
        progress: show a bar when something takes more than two seconds.
    """
    kept, recipe = ensemble.required_features("update"), ensemble.recipe or Recipe()
    if data is None and foreign is None:
        raise DataError(expected("data", "batches to learn, or `foreign` inputs to disagree on", "neither"))
    classes, names = ensemble.heads.task.class_count, ensemble.class_names
    if data is not None:
        found = _features(ensemble, data, progress)
        if found[1].shape[1:] != kept.targets.shape[1:]:
            wanted = f"of shape {('samples', *kept.targets.shape[1:])}, as those of the fit".replace("'", "")
            raise DataError(expected("targets", wanted, f"shape {tuple(found[1].shape)}"))
        kept = kept.plus(*found)
        if classes is not None and recipe.task == "classification" and found[1].ndim == 1:
            classes, names = _with_new_classes(classes, names, found[1], class_names)
    if foreign is not None:
        if recipe.space != "function":
            raise RepulsionError(expected("foreign", "None for a recipe that does not repel in function space", "data"))
        kept = kept.repelled_on(_foreign_features(ensemble, foreign, progress), FOREIGN_SHARE)
    if classes == ensemble.heads.task.class_count:
        newest = len(kept.train) - len(ensemble.required_features("update").train)
        some = kept.sampled(warm_rows(recipe, *kept.train.shape), newest, recipe.seed)
        heads = some.fit(ensemble.backbone, recipe, classes=classes, warm=ensemble.heads, progress=progress)
    else:  # a tenth of the steps teaches no new class
        heads = kept.fit(ensemble.backbone, recipe, classes=classes, progress=progress)
    return _Made(ensemble, kept, heads, names).ensemble()


def forget(ensemble: Ensemble, indices: Sequence[int] | Tensor, *, progress: bool = True) -> Ensemble:
    """Return the ensemble that a fit without some of the training inputs gives, bit for bit.

    Heads are fitted from the start on the features that are left. What does not go: repulsion samples that were made
    from the inputs, and what the network itself has learnt of them.

    Args:
        ensemble: made by `retrofit`, or saved with `features=True`; it stays as it is.
        indices: of training inputs, in the order in which `retrofit` and `update` saw them.
        progress: show a bar when the fit takes more than two seconds.
    """
    kept, recipe = ensemble.required_features("forget"), ensemble.recipe or Recipe()
    try:
        gone = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise DataError(expected("indices", "integers, at least one", type(indices).__name__)) from reason
    if gone.ndim != 1 or not len(gone) or gone.is_floating_point() or gone.dtype == torch.bool:
        got = f"{gone.dtype} of shape {tuple(gone.shape)}"
        raise DataError(expected("indices", "integers, at least one", got))
    if int(gone.min()) < 0 or int(gone.max()) >= len(kept.train):
        got = f"values from {int(gone.min())} to {int(gone.max())}"
        raise DataError(expected("indices", f"from 0 to {len(kept.train) - 1}", got))
    kept = kept.without(gone)
    if not len(kept.train):
        raise DataError(expected("indices", "some of the training inputs", "all of them"))
    heads = kept.fit(ensemble.backbone, recipe, classes=ensemble.heads.task.class_count, progress=progress)
    return _Made(ensemble, kept, heads, ensemble.class_names).ensemble()


@dataclass(frozen=True)
class _Made:
    """New heads for an old ensemble."""

    old: Ensemble
    kept: KeptFeatures
    heads: Heads
    names: tuple[str, ...] | None

    def ensemble(self) -> Ensemble:
        """Return the ensemble of the new heads, and warn about what should not pass silently."""
        summary = self.kept.summary(self.heads, self.old.backbone)
        summary.warn()
        about = (self.old.repulsion, self.names, self.old.network, summary)
        return type(self.old)(self.old.backbone, self.heads.to(_device(self.old)), *about, kept=self.kept)


def _features(ensemble: Ensemble, data: Iterable[Any], progress: bool) -> tuple[Tensor, Tensor]:
    found = compute_features(
        ensemble.backbone, ensemble.backbone.places.for_fit(data), None, device=_device(ensemble), progress=progress
    )
    targets = found.targets
    if targets.shape[1:] == (1,):
        targets = targets.squeeze(1)
    if ensemble.heads.task.kind == "classification" and targets.ndim == 1:
        targets = _classes(targets, single=ensemble.backbone.outputs == 1)
    return found.train, targets


def _classes(targets: Tensor, single: bool) -> Tensor:
    """Return class indices, which may come as floats; as truth values only to a network of one logit."""
    if targets.dtype == torch.bool and not single:
        raise DataError(expected("targets", "class indices", f"{targets.dtype}"))
    if targets.is_floating_point():
        wrong = targets[(targets != targets.round()) | (targets.abs() > MOST_CLASSES)]
        if len(wrong):
            raise DataError(expected("targets", "class indices", f"{targets.dtype} with {wrong[0]:g} among them"))
    return targets.long()


def _foreign_features(ensemble: Ensemble, foreign: Iterable[Any] | Tensor, progress: bool) -> Tensor:
    """Compute features of inputs without targets; these go in as targets that nobody looks at."""
    backbone, device = ensemble.backbone, _device(ensemble)
    parts = [foreign] if isinstance(foreign, Tensor) else backbone.places.unlabelled(foreign)
    found = compute_features(
        backbone, _unlabelled(parts, backbone.several), None, device=device, progress=progress, name="foreign"
    )
    return found.train


def _unlabelled(parts: Iterable[Any], several: int | None) -> list[tuple[Any, Tensor]]:
    inputs = [inputs_of(part, f"batch {i} of `foreign`", several=several) for i, part in enumerate(parts)]
    return [(each, torch.zeros(size_of(each), dtype=torch.int64)) for each in inputs]


def _with_new_classes(
    classes: int, names: tuple[str, ...] | None, targets: Tensor, given: Sequence[str] | None
) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes with the new ones among targets, and their names."""
    if int(targets.min()) < 0:
        raise DataError(expected("targets", "class indices", f"{int(targets.min())}"))
    total = max(classes, int(targets.max()) + 1)
    new = [label for label in targets.unique().tolist() if label >= classes]  # sorted
    missing = next((classes + i for i, label in enumerate(new) if label != classes + i), None)
    if missing is not None:
        got = f"none of class {missing}, and some of class {total - 1}"
        raise DataError(expected("new classes", "numbered after the old ones, without gaps", got))
    if given is not None:
        if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise DataError(expected("class_names", "a list of strings", repr(given)[:60]))
        if len(given) != total:
            raise DataError(expected("class_names", f"{total} names, one per class", f"{len(given)}"))
        return total, tuple(given)
    if names is not None:
        names = (*names, *(f"class {i}" for i in range(len(names), total)))
    return total, names


def _device(ensemble: Ensemble) -> torch.device:
    return next(ensemble.heads.parameters()).device
