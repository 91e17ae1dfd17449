"""Sample positions of a data set for the fit: a bounded number, spread over inputs and classes, in one pass.

All positions of all images are millions of rows that say nearly the same. Each input gives as many rows as every other;
within it, a position of a class with c positions is drawn with a weight of `1 / sqrt(c)`, so that small things are seen
too. Of repulsion samples only those positions count where the input differs from the one it was made from: heads are to
disagree inside of what was pasted, and positions outside of it join the training rows with their own targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from repulse._finite import all_finite
from repulse.backbone.batches import explaining_failures, inputs_of, size_of, tensors_of, to_device, training_batch
from repulse.backbone.features import Features
from repulse.backbone.positions import FeatureMap, averaged
from repulse.backbone.reading import all_of, bar, derived_seed, length_of, passes
from repulse.backbone.split import Backbone
from repulse.errors import DataError, RepulsionError, expected
from repulse.prediction.positions import is_known
from repulse.repulsion.source import FeatureSource, Source, sample_inputs

ROWS = 40_000
"""Training rows that are sampled, about; validation rows are half as many."""

MOST_PER_INPUT, USUAL_PER_INPUT = 1024, 128
"""Rows of one input at most, and where nobody knows how many inputs there are."""

AROUND = 0.25
"""Share of the training rows that come from the unchanged parts of repulsion samples, if there are any."""

INSIDE = 0.5
"""Share of a position that must have been changed for it to count as changed."""


class RowSample:
    """Rows that are kept: when there are twice as many as wanted, a random half of them goes, and fewer come."""

    def __init__(self, wanted: int, per_input: int, generator: torch.Generator) -> None:
        self.wanted, self.per_input, self.generator = wanted, max(per_input, 1), generator
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Add rows and their targets."""
        self.parts.append((rows, targets))
        if sum(len(part) for _, part in self.parts) > 2 * self.wanted:
            rows, targets = self.rows()
            kept = torch.randperm(len(rows), generator=self.generator)[: self.wanted].sort().values.to(rows.device)
            self.parts, self.per_input = [(rows[kept], targets[kept])], max(self.per_input // 2, 1)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return all rows, and their targets."""
        rows, targets = zip(*self.parts, strict=True)
        return torch.cat(rows), torch.cat(targets)


@torch.no_grad()
def compute_position_features(
    backbone: Backbone,
    data: Iterable[Any],
    repulsion: Source | FeatureSource | Iterable[Any] | Tensor | None,
    *,
    synthetic: Source | FeatureSource | None = None,
    synthetic_share: float = 0.0,
    samples: int = 10_000,
    rows: int = ROWS,
    balanced: bool = True,
    seed: int = 0,
    device: torch.device | None = None,
    augmentations: int = 1,
    progress: bool = True,
    name: str = "data",
) -> Features:
    """Sample features and targets at positions of the data, and features at changed positions of repulsion samples.

    Args:
        backbone: a network whose last layer is applied at every position.
        data: batches with a target at every position.
        repulsion: as for `compute_features`; of given inputs all positions count.
        synthetic: a source that adds samples to those of given inputs.
        synthetic_share: their share of all repulsion rows.
        samples: repulsion rows, at most.
        rows: training rows, about.
        balanced: whether positions of rare classes are drawn more often; if not, all alike.
        seed: of the sample, of sources and of loaders that shuffle.
        device: where the network runs.
        augmentations: passes over a loader that augments at random.
        progress: show a bar when it takes more than two seconds.
        name: what errors call the data.
    """
    device = device or torch.device("cpu")
    given = None if isinstance(repulsion, Source | FeatureSource | Tensor) else repulsion
    own = repulsion if isinstance(repulsion, Source | FeatureSource) else synthetic if given is not None else None
    wanted = samples if given is None else round(synthetic_share * samples)
    drawn = 0 if own is None else round(own.feature_share * wanted)
    source = own if isinstance(own, Source) and drawn < wanted else None

    generator = torch.Generator().manual_seed(derived_seed(seed, -3))
    batches = length_of(data)
    near, far = (
        RowSample(rows, USUAL_PER_INPUT, generator),
        RowSample(max(wanted - drawn, 1), USUAL_PER_INPUT, generator),
    )
    with closing(passes(data, augmentations, seed, device)) as read:
        total = None if batches is None else batches * augmentations
        for i, batch in enumerate(all_of(bar(read, "features", total, progress), total, name)):
            inputs, target = training_batch(batch, i, name)
            if i == 0 and batches is not None:  # all inputs alike, from the first to the last
                inputs_in_all = max(batches * augmentations * size_of(inputs), 1)
                near.per_input = min(-(-rows // inputs_in_all), MOST_PER_INPUT)
                far.per_input = min(-(-far.wanted // inputs_in_all), MOST_PER_INPUT)
            _sample_batch(
                backbone, to_device(inputs, device), target.to(device), near, balanced, f"batch {i} of `{name}`"
            )
            if source is not None and size_of(inputs) > 1:
                own_generator = torch.Generator().manual_seed(derived_seed(seed, i))
                _sample_made(backbone, source, to_device(inputs, device), target.to(device), near, far, own_generator)
    if not near.parts:
        raise DataError(expected(name, "targets that are classes at some position", "none that is not ignored"))
    train, targets = near.rows()
    found = [far.rows()[0][: far.wanted]] if source is not None and far.parts else []
    if drawn:
        assert isinstance(own, FeatureSource)
        found.append(own.sample_features(train, drawn, torch.Generator().manual_seed(derived_seed(seed, -2)), targets))
    if isinstance(repulsion, Tensor):
        found.append(repulsion.to(train))
    elif given is not None:
        found.append(_sample_given(backbone, given, samples - wanted, seed, device, generator))
    if found and not all(map(all_finite, found)):
        raise RepulsionError(expected("repulsion", "samples with finite features", "NaN or infinite values"))
    return Features(train, targets, torch.cat(found) if found else None)


def _sample_batch(backbone: Backbone, inputs: Any, target: Tensor, kept: RowSample, balanced: bool, name: str) -> None:
    """Add rows of each input of a batch."""
    with explaining_failures(inputs, name, DataError):
        found = backbone.locate(inputs)
    target, known = known_targets(target, found, backbone.outputs, f"the targets of {name}")
    if not all_finite(found.features):
        raise DataError(expected(f"the features of {name}", "finite", "NaN or infinite values"))
    for image in range(len(target)):
        chosen = draw_positions(target[image], known[image], kept.per_input, balanced, kept.generator)
        if len(chosen):
            kept.add(found.at(image, chosen), target[image].flatten()[chosen])


def _sample_made(
    backbone: Backbone,
    source: Source,
    inputs: Any,
    target: Tensor,
    near: RowSample,
    far: RowSample,
    generator: torch.Generator,
) -> None:
    """Add rows of changed positions of samples that a source makes, and training rows of the others."""
    samples = sample_inputs(source, inputs, generator)
    with explaining_failures(samples, f"samples of {source}", RepulsionError):
        found = backbone.locate(samples)
    share = changed_share(inputs, samples, found.grid)
    if found.mask is not None and found.mask.shape[1:] == found.grid:
        share = share * found.mask
    target, known = known_targets(target, found, backbone.outputs, "targets")
    untouched = _nearest(share == 0, found.size)
    for image in range(len(target)):
        inside = (share[image] > INSIDE).flatten().nonzero().flatten()
        chosen = inside[torch.randperm(len(inside), generator=generator)[: far.per_input].to(inside.device)]
        if len(chosen):
            rows = found.rows(slice(image, image + 1), 0, found.grid[0])[0].flatten(1)[:, chosen].T
            far.add(rows, torch.zeros_like(chosen))
        outside = known[image] & untouched[image]
        if bool(outside.any()) and bool((share[image] > 0).any()):
            few = math.ceil(AROUND * near.per_input)
            chosen = draw_positions(target[image], outside, few, True, generator)
            near.add(found.at(image, chosen), target[image].flatten()[chosen])


def _sample_given(
    backbone: Backbone, data: Iterable[Any], samples: int, seed: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Return rows at all positions of given inputs."""
    kept = RowSample(samples, USUAL_PER_INPUT, generator)
    with closing(passes(data, 1, seed, device)) as read:
        for i, batch in enumerate(all_of(read, length_of(data), "repulsion", RepulsionError)):
            inputs = inputs_of(batch, f"batch {i} of `repulsion`", RepulsionError, backbone.several)
            with explaining_failures(inputs, f"batch {i} of `repulsion`", RepulsionError):
                found = backbone.locate(to_device(inputs, device))
            for image in range(len(found.features)):
                rows = found.rows(slice(image, image + 1), 0, found.grid[0])[0].flatten(1).T
                if found.mask is not None and found.mask.shape[1:] == found.grid:
                    rows = rows[found.mask[image].bool().flatten()]
                rows = rows[torch.randperm(len(rows), generator=generator)[: kept.per_input].to(rows.device)]
                kept.add(rows, torch.zeros(len(rows), device=rows.device))
    if not kept.parts:
        raise RepulsionError(expected("repulsion", "at least one batch", "none"))
    return kept.rows()[0][:samples]


def known_targets(target: Tensor, found: FeatureMap, classes: int, name: str) -> tuple[Tensor, Tensor]:
    """Return targets in the size of the output, the nearest of each, and which of them count."""
    if target.ndim == len(found.size) + 2 and target.shape[1] == 1:
        target = target.squeeze(1)
    if target.ndim != len(found.size) + 1:
        wanted = f"a class at every position, (batch, {', '.join(map(str, found.size))})"
        raise DataError(expected(name, wanted, f"shape {tuple(target.shape)}"))
    known = is_known(target, classes, name)
    if tuple(target.shape[1:]) != found.size:
        target, known = _nearest(target, found.size), _nearest(known, found.size)
    return target.long(), known if found.mask is None else known & found.mask.bool()


def draw_positions(target: Tensor, known: Tensor, count: int, balanced: bool, generator: torch.Generator) -> Tensor:
    """Draw positions of one input, without repetition; if balanced, by one over the root of the size of their class."""
    positions = known.flatten().nonzero().flatten()
    if len(positions) <= count:
        return positions
    classes = target.flatten()[positions].cpu()
    weights = classes.bincount().double().clamp_min(1).rsqrt()[classes] if balanced else torch.ones(len(classes))
    # Largest of weighted exponential keys: as drawing one after the other, for any number of positions.
    keys = torch.rand(len(positions), generator=generator, dtype=torch.float64).clamp_min(1e-300).log() / weights
    return positions[keys.topk(count).indices.to(positions.device)]


def changed_share(inputs: Any, samples: Any, grid: tuple[int, ...]) -> Tensor:
    """Return, for each position of a grid, the share of it where samples differ from the inputs, `(B, ...)`."""
    before, after = dict(tensors_of(inputs)), dict(tensors_of(samples))
    for key, value in before.items():
        made = after[key]
        if value.shape != made.shape or value.ndim < 2 or bool((value == made).all()):
            continue
        changed = (value != made).float()
        if tuple(value.shape[1:]) == grid:  # token ids
            return changed
        while changed.ndim > len(grid) + 1:  # channels
            changed = changed.amax(dim=1 if changed.shape[1] <= changed.shape[-1] else -1)
        return averaged(changed.unsqueeze(1), grid).squeeze(1)
    size = size_of(inputs)
    return torch.zeros(size, *grid, device=next(iter(before.values())).device)


def _nearest(values: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the nearest value at each position of another size."""
    if tuple(values.shape[1:]) == size:
        return values
    for axis, wanted in enumerate(size, start=1):
        now = values.shape[axis]
        at = ((torch.arange(wanted, device=values.device, dtype=torch.float64) + 0.5) * now / wanted).long()
        values = values.index_select(axis, at.clamp_max(now - 1))
    return values
