"""Compute the features of a whole data set once, and of the repulsion samples; keep them, if asked to."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from repulse._finite import all_finite
from repulse.backbone.batches import (
    explaining_failures,
    inputs_of,
    map_tensors,
    size_of,
    tensors_of,
    to_device,
    training_batch,
)
from repulse.backbone.fingerprint import architecture_of, fast_digest_of, settings_of, weights_of
from repulse.backbone.ranks import AnyStore, Ranks, SharedStore
from repulse.backbone.reading import all_of, bar, derived_seed, first_batch, length_of, passes
from repulse.backbone.split import Backbone
from repulse.backbone.store import MEMORY_LIMIT, CachedStore, Store, locked
from repulse.errors import CacheError, DataError, RepulsionError, expected
from repulse.repulsion.source import FeatureSource, Source, sample_inputs

HALF_TYPES = (torch.float16, torch.bfloat16)

MAX_DRAWS = 8
"""Number of repulsion samples that a source in input space draws from one training sample, at most."""

NUMBERS_AT_ONCE = 2**20
"""Maximum size of a batch that is made of copies of a small one, for sources to draw many samples from at once."""


@dataclass(frozen=True)
class Features:
    """Features of the training data and of the repulsion samples.

    Attributes:
        train: `(N, d)`.
        targets: `(N,)`.
        repulsion: `(M, d)`, or None.
    """

    train: Float[Tensor, "N d"]
    targets: Tensor
    repulsion: Float[Tensor, "M d"] | None


@dataclass(frozen=True)
class _Extraction:
    """What a pass needs to know besides its data."""

    backbone: Backbone
    device: torch.device
    samples: int
    seed: int
    augmentations: int
    progress: bool
    cache: Path | None
    kept: torch.dtype | None
    limit: int
    ranks: Ranks
    name: str


def compute_features(
    backbone: Backbone,
    data: Iterable[Any],
    repulsion: Source | FeatureSource | Iterable[Any] | Tensor | None,
    *,
    synthetic: Source | FeatureSource | None = None,
    synthetic_share: float = 0.0,
    samples: int = 10_000,
    seed: int = 0,
    device: torch.device | None = None,
    augmentations: int = 1,
    cache: str | Path | None = None,
    cache_dtype: torch.dtype | None = None,
    memory_limit: int = MEMORY_LIMIT,
    progress: bool = True,
    name: str = "data",
) -> Features:
    """Compute features in one pass over the data, and one over (or made from) the repulsion samples.

    The processes of `torch.distributed`, if it was initialised, share the work, and all get all features; all must call
    this, with the same data. Images come to the network with channels first or last in memory, as its backbone says.

    Args:
        backbone: the network.
        data: batches with targets, in any form `backbone/batches.py` knows; read from its start each time.
        repulsion: a source that makes samples from the training batches or from their features, an iterable of
            unlabelled batches, a tensor of ready features, or None.
        synthetic: a source that adds samples to those of given batches.
        synthetic_share: their share of all repulsion samples.
        samples: how many repulsion samples to use at most: a source draws up to eight from each training sample, and of
            a loader the first ones are taken, so shuffle it.
        seed: of the sources, of loaders that shuffle and of random augmentations; the caller's random state is not
            changed.
        device: where the network runs; the CPU if not given.
        augmentations: how many passes over a loader that augments at random.
        cache: folder in which to keep the features; without one they are kept in memory.
        cache_dtype: `torch.float16` (or `bfloat16`) to keep them there in half the space; as they are, if not given.
        memory_limit: bytes of features to hold in memory; beyond, they are in a file and mapped.
        progress: show a bar when it takes more than two seconds.
        name: what errors call the data.
    """
    _check_kept(cache, cache_dtype)
    device = device or torch.device("cpu")
    folder = None if cache is None else Path(cache)
    ranks = Ranks(device, backbone.width)
    progress = progress and ranks.rank == 0
    if progress and ranks.size > 1:
        tqdm.write(f"repulse: waiting for all {ranks.size} processes, which share the work", file=sys.stderr)
    plan = _Extraction(
        backbone, device, samples, seed, augmentations, progress, folder, cache_dtype, memory_limit, ranks, name
    )
    with ExitStack() as stack:
        if folder is not None:
            ranks.from_first_process(partial(_lock, stack, folder))
        given = None if isinstance(repulsion, Source | FeatureSource | Tensor) else repulsion
        own = repulsion if isinstance(repulsion, Source | FeatureSource) else synthetic if given is not None else None
        wanted = samples if given is None else round(synthetic_share * samples) if own is not None else 0
        drawn = 0 if own is None else round(own.feature_share * wanted)
        source = own if isinstance(own, Source) and drawn < wanted else None
        kept_as = "repulsion" if given is None else "synthetic"
        train, made = _training_pass(replace(plan, samples=wanted - drawn), data, source, stack, kept_as)
        features, targets = train.finish()
        features, targets = _for_fit(plan, features), _on_device(plan, targets)
        elsewhere = None
        if own is not None:
            elsewhere = None if made is None else _for_fit(plan, made.finish()[0])[: wanted - drawn]
            elsewhere = _with_features(plan, elsewhere, own, features, targets, drawn)
        if isinstance(repulsion, Tensor):
            elsewhere = _given_features(repulsion, features, cache_dtype)
        elif given is not None:
            seen = _repulsion_pass(replace(plan, samples=samples - wanted), given, stack)
            if elsewhere is not None:  # few samples that were given are not outnumbered
                most = max(round(len(seen) * synthetic_share / (1 - synthetic_share)), 1)
                seen = torch.cat([_every(elsewhere.to(seen), most), seen])
            elsewhere = seen
    return Features(features, targets, None if elsewhere is None else elsewhere.to(features.device))


def _every(rows: Tensor, most: int) -> Tensor:
    """Return at most this many rows, evenly spaced, so that all sources keep their shares."""
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).long().to(rows.device)]


def _lock(stack: ExitStack, folder: Path) -> int:
    stack.enter_context(locked(folder))
    return 0


def _training_pass(
    plan: _Extraction, data: Iterable[Any], source: Source | None, stack: ExitStack, kept_as: str
) -> tuple[AnyStore, AnyStore | None]:
    """Compute features and targets of the data and, drawn from it, features of a source's samples."""
    about, like = _fingerprint_of_data(plan, data)
    train = _store(plan, "train", about, like, stack)
    made = None
    if source is not None:
        if about is not None:
            about = {**about, "source": settings_of(source), "samples": plan.samples}
        made = _store(plan, kept_as, about, like[:1], stack)
    if train.complete and (made is None or made.complete):
        return train, made
    total = length_of(data)
    total = None if total is None else total * plan.augmentations
    sizes = []
    batches = stack.enter_context(closing(passes(data, plan.augmentations, plan.seed, plan.device)))
    for i, batch in enumerate(all_of(bar(batches, "features", total, plan.progress), total, plan.name)):
        inputs, target = training_batch(batch, i, plan.name)
        size = len(target)
        sizes.append(size)
        key = "" if plan.cache is None else fast_digest_of(inputs, target)
        if not train.complete and not train.covers(key):
            work = partial(_labelled_features, plan, inputs, size, f"batch {i} of `{plan.name}`")
            plan.ranks.share(i, train, key, work, size, target.to(plan.device))
        if source is not None and made is not None and not made.complete:
            rows = made.rows + plan.ranks.waiting(made)
            # Spread over all batches, if their number is known; a last batch of one may be too few for a source.
            wanted = min(plan.samples, rows + size) if total is None else -(-plan.samples * (i + 1) // total)
            if not (size == 1 < max(sizes) and rows):
                _share_samples(plan, source, made, inputs, key, i, wanted - rows)
        if (i + 1) % plan.ranks.size == 0:
            plan.ranks.exchange()
    plan.ranks.exchange()
    if not train.rows and not train.complete:
        raise DataError(expected(plan.name, "at least one batch", "none"))
    if total is None and source is not None and made is not None and not made.complete and made.rows < plan.samples:
        _draw_again(plan, data, source, made, sizes)
    return train, made


def _draw_again(plan: _Extraction, data: Iterable[Any], source: Source, made: AnyStore, sizes: list[int]) -> None:
    """Draw the samples that one pass has left open: only now it is known how many batches there are, of which sizes."""
    start, seen = made.rows, 0
    usable = sum(size > 1 or max(sizes) == 1 for size in sizes)
    with closing(passes(data, plan.augmentations, plan.seed, plan.device)) as batches:
        for i, batch in enumerate(batches):
            inputs, target = training_batch(batch, i, plan.name)
            if size_of(inputs) > 1 or max(sizes) == 1:
                seen += 1
                wanted = start - (start - plan.samples) * seen // usable
                key = "" if plan.cache is None else fast_digest_of(inputs, target)
                missing = wanted - made.rows - plan.ranks.waiting(made)
                _share_samples(plan, source, made, inputs, key, len(sizes) + i, missing)
            if (i + 1) % plan.ranks.size == 0:
                plan.ranks.exchange()
        plan.ranks.exchange()


def _share_samples(
    plan: _Extraction, source: Source, made: AnyStore, inputs: Any, key: str, i: int, missing: int
) -> None:
    """Have one process draw from a batch as often as it takes."""
    size = size_of(inputs)
    times = min(-(-missing // size), MAX_DRAWS)
    if times > 0 and not made.covers(key):
        plan.ranks.share(i, made, key, partial(_source_features, plan, source, inputs, i, times), times * size)


def _with_features(
    plan: _Extraction,
    drawn: Tensor | None,
    source: Source | FeatureSource,
    features: Tensor,
    targets: Tensor,
    count: int,
) -> Tensor | None:
    """Add samples that are drawn in feature space to those that went through the network."""
    if not count:
        return drawn
    assert isinstance(source, FeatureSource)
    generator = torch.Generator().manual_seed(derived_seed(plan.seed, -2))
    samples = source.sample_features(features, count, generator, targets)
    if not all_finite(samples):
        raise RepulsionError(expected(f"samples of {source}", "finite", "NaN or infinite values"))
    return samples if drawn is None else torch.cat([drawn.to(samples), samples])


def _fingerprint_of_data(plan: _Extraction, data: Iterable[Any]) -> tuple[dict[str, Any] | None, tuple[Tensor, ...]]:
    """Return, for a folder, a fingerprint of the data and rows as they will be kept, equal in all processes."""
    if plan.cache is None and plan.ranks.size == 1:
        return None, ()
    inputs, target = training_batch(first_batch(data, plan.seed, plan.name), 0, plan.name)
    seen, batches = fast_digest_of(inputs, target), length_of(data)
    plan.ranks.check_same(seen, batches)
    if plan.cache is None:
        return None, ()
    features = _features(plan, plan.backbone.run, inputs, f"batch 0 of `{plan.name}`", DataError)
    about = {"batches": batches, "first": seen, "augmentations": plan.augmentations, "seed": plan.seed}
    return about, (features, target)


def _repulsion_pass(plan: _Extraction, repulsion: Iterable[Any], stack: ExitStack) -> Tensor:
    """Compute the features of the first batches of a repulsion loader."""
    several, batches = plan.backbone.several, length_of(repulsion)
    with closing(passes(repulsion, 1, plan.seed, plan.device)) as read:
        first = next(read, None)
        if first is None:
            raise RepulsionError(expected("repulsion", "at least one batch", "none"))
        inputs = inputs_of(first, "batch 0 of `repulsion`", RepulsionError, several)
        about, like = None, ()
        seen = "" if plan.cache is None and plan.ranks.size == 1 else fast_digest_of(inputs)
        plan.ranks.check_same(seen, batches, "repulsion")
        if plan.cache is not None:
            about = {"batches": batches, "first": seen, "samples": plan.samples, "seed": plan.seed}
            like = (_features(plan, plan.backbone.run, inputs, "batch 0 of `repulsion`", RepulsionError),)
        store = _store(plan, "repulsion", about, like, stack)
        if not store.complete:
            everything = bar(itertools.chain([first], read), "repulsion features", batches, plan.progress)
            for i, batch in enumerate(all_of(everything, batches, "repulsion", RepulsionError)):
                name = f"batch {i} of `repulsion`"
                inputs = inputs_of(batch, name, RepulsionError, several)
                key = "" if plan.cache is None else fast_digest_of(inputs)
                if not store.covers(key):
                    work = partial(_features, plan, plan.backbone.run, inputs, name, RepulsionError)
                    plan.ranks.share(i, store, key, work, size_of(inputs))
                if (i + 1) % plan.ranks.size == 0:
                    plan.ranks.exchange()
                if store.rows + plan.ranks.waiting(store) >= plan.samples:
                    break
            plan.ranks.exchange()
    return _for_fit(plan, store.finish()[0])[: plan.samples]


def _store(
    plan: _Extraction, name: str, about: dict[str, Any] | None, like: Sequence[Tensor], stack: ExitStack
) -> AnyStore:
    folder, backbone = plan.cache, plan.backbone

    def kept(folder: Path) -> CachedStore:
        fingerprint = {
            "model": architecture_of(backbone.model),
            "weights": weights_of(backbone.model),
            "layers": [asdict(backbone.ending), *(asdict(tap) for tap in backbone.taps)],
            "function": [f"{value:.3g}" for value in torch.var_mean(like[0].double(), correction=0)],
            "data": about,
        }
        return CachedStore(folder, name, fingerprint, like)

    if folder is None:
        store = Store(plan.limit)
    elif plan.ranks.size == 1:
        store = kept(folder)
    else:
        store = SharedStore(plan.ranks, folder, name, partial(kept, folder), like)
    stack.callback(store.close)
    return store


@torch.no_grad()  # not in inference mode: what a network remembers of a pass, its owner may want to train with
def _features(
    plan: _Extraction, network: Callable[[Any], Tensor], inputs: Any, name: str, error: type[DataError]
) -> Tensor:
    """Compute features of one batch, checked, in the type in which they are kept."""
    with explaining_failures(inputs, name, error):
        features = network(to_device(inputs, plan.device))
    if not all_finite(features):
        raise error(expected(f"the features of {name}", "finite", "NaN or infinite values"))
    if plan.kept is None:
        return features
    half = features.to(plan.kept)
    if not all_finite(half):
        wanted = f"at most {torch.finfo(plan.kept).max:g} in size for `cache_dtype={plan.kept}`"
        raise error(expected(f"the features of {name}", wanted, f"up to {float(features.abs().amax()):.4g}"))
    return half


def _labelled_features(plan: _Extraction, inputs: Any, size: int, name: str) -> Tensor:
    """Compute features of one batch of training data, as many rows as it has targets."""
    features = _features(plan, plan.backbone.run, inputs, name, DataError)
    if len(features) != size:
        raise DataError(expected(f"the targets of {name}", f"{len(features)}, one per output of the network", size))
    return features


def _source_features(plan: _Extraction, source: Source, inputs: Any, i: int, times: int) -> Tensor:
    """Compute the features of samples that a source draws from batch i, several times over."""
    generator = torch.Generator().manual_seed(derived_seed(plan.seed, i))
    inputs, name, size = to_device(inputs, plan.device), f"samples of {source}", size_of(inputs)
    rows = times * size
    if source.takes_copies:  # many small batches would be slow
        copies = max(min(times, NUMBERS_AT_ONCE // max(sum(value.numel() for _, value in tensors_of(inputs)), 1)), 1)
        inputs = map_tensors(inputs, lambda v: torch.cat([v] * copies) if v.ndim and len(v) == size else v)
        times = -(-times // copies)
    draws = (sample_inputs(source, inputs, generator) for _ in range(times))
    return torch.cat([_features(plan, plan.backbone.run, samples, name, RepulsionError) for samples in draws])[:rows]


def _for_fit(plan: _Extraction, features: Tensor) -> Tensor:
    """Return features for the fit: in single precision, unless they fit nowhere but in their file."""
    if features.dtype == plan.kept and 2 * features.nbytes <= plan.limit:
        features = features.float()
    return _on_device(plan, features)


def _on_device(plan: _Extraction, column: Tensor) -> Tensor:
    """Move rows to where the fit runs, if they fit there; what is mapped from a file is not copied."""
    return column if column.device == plan.device or column.nbytes > plan.limit else column.to(plan.device)


def _given_features(repulsion: Tensor, like: Tensor, kept: torch.dtype | None) -> Tensor:
    if repulsion.ndim != 2 or repulsion.shape[1] != like.shape[1]:
        wanted = f"ready features of shape (samples, {like.shape[1]}); wrap inputs in a list, `[inputs]`"
        raise RepulsionError(expected("repulsion", wanted, f"a tensor of shape {tuple(repulsion.shape)}"))
    return repulsion.to(like.device, torch.float32 if like.dtype == kept else like.dtype)


def _check_kept(cache: str | Path | None, cache_dtype: torch.dtype | None) -> None:
    if cache_dtype is None:
        return
    if cache_dtype not in HALF_TYPES:
        raise CacheError(expected("cache_dtype", "torch.float16, torch.bfloat16 or None", repr(cache_dtype)))
    if cache is None:
        raise CacheError(expected("cache", "a folder, if there is a `cache_dtype`", None))
