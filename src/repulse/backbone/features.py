"""Compute the features of a whole data set once, and of the repulsion samples; keep them, if asked to."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from repulse.backbone.batches import digest_of, feeding, inputs_of, labelled, size_of, to_device
from repulse.backbone.fingerprint import architecture_of, settings_of, weights_of
from repulse.backbone.split import Backbone
from repulse.backbone.store import MEMORY_LIMIT, CachedStore, Store, locked
from repulse.errors import DataError, RepulsionError, expected
from repulse.repulsion import Source


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
class _Plan:
    """What a pass needs to know besides its data."""

    backbone: Backbone
    device: torch.device
    samples: int
    seed: int
    augmentations: int
    progress: bool
    cache: Path | None
    limit: int


def compute_features(
    backbone: Backbone,
    data: Iterable[Any],
    repulsion: Source | Iterable[Any] | Tensor | None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    device: torch.device | None = None,
    augmentations: int = 1,
    cache: str | Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
    progress: bool = True,
) -> Features:
    """One pass over the data, and one over (or made from) the repulsion samples.

    Args:
        backbone: the network.
        data: batches with targets, in any form `backbone/batches.py` knows; read from its start each time.
        repulsion: a source that makes samples from the training batches, an iterable of unlabelled batches, a tensor of
            ready features, or None.
        samples: how many repulsion samples to use at most: a source makes one of each training sample at most, and of
            a loader the first ones are taken, so shuffle it.
        seed: of the sources, of loaders that shuffle and of random augmentations; the caller's random state is not
            changed.
        device: where the network runs; the CPU if not given.
        augmentations: how many passes over a loader that augments at random.
        cache: folder in which to keep the features; without one they are kept in memory.
        memory_limit: bytes of features to hold in memory; beyond, they are in a file and mapped.
        progress: show a bar when it takes more than two seconds.
    """
    device = device or torch.device("cpu")
    folder = None if cache is None else Path(cache)
    plan = _Plan(backbone, device, samples, seed, augmentations, progress, folder, memory_limit)
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(folder))
        train, made = _training_pass(plan, data, repulsion if isinstance(repulsion, Source) else None, stack)
        features, targets = (_placed(plan, column) for column in train.finish())
        elsewhere = None
        if made is not None:
            elsewhere = _placed(plan, made.finish()[0])[:samples]
        elif isinstance(repulsion, Tensor):
            elsewhere = _ready(repulsion, features)
        elif repulsion is not None:
            elsewhere = _repulsion_pass(plan, repulsion, stack)  # pyright: ignore[reportArgumentType]
    return Features(features, targets, None if elsewhere is None else elsewhere.to(features.device))


def first_batch(data: Iterable[Any], seed: int) -> Any:
    """The first batch of the data, as the pass will see it."""
    with steady(data, seed):
        for batch in data:
            return batch
    raise DataError(expected("data", "at least one batch", "none"))


def _training_pass(
    plan: _Plan, data: Iterable[Any], source: Source | None, stack: ExitStack
) -> tuple[Store | CachedStore, Store | CachedStore | None]:
    """Features and targets of the data and, drawn from it, of a source's samples."""
    about, like = None, ()
    if plan.cache is not None:
        inputs, target = labelled(first_batch(data, plan.seed), 0)
        like = (_features(plan, inputs, "batch 0 of `data`", DataError), target)
        seen = digest_of(inputs, target)
        about = {"batches": _length(data), "first": seen, "augmentations": plan.augmentations, "seed": plan.seed}
    train = _store(plan, "train", about, like, stack)
    made = None
    if source is not None:
        if about is not None:
            about = {**about, "source": settings_of(source), "samples": plan.samples}
        made = _store(plan, "repulsion", about, like[:1], stack)
    if train.complete and (made is None or made.complete):
        return train, made
    total = _length(data)
    total = None if total is None else total * plan.augmentations
    largest = 0
    passes = stack.enter_context(closing(_passes(data, plan)))
    for i, batch in enumerate(_bar(passes, "features", total, plan.progress)):
        inputs, target = labelled(batch, i)
        key = "" if plan.cache is None else digest_of(inputs, target)
        if not train.complete and not train.covers(key):
            train.append(key, _features(plan, inputs, f"batch {i} of `data`", DataError), target.to(plan.device))
        if source is None or made is None or made.complete:
            continue
        wanted = plan.samples if total is None else -(-plan.samples * (i + 1) // total)  # spread over all batches
        largest = max(largest, size_of(inputs))
        alone = size_of(inputs) == 1 < largest and made.rows > 0  # sources may need company
        if wanted > made.rows and not alone and not made.covers(key):
            generator = torch.Generator().manual_seed(_mixed(plan.seed, i))
            drawn = source.sample_inputs(to_device(inputs, plan.device), generator)
            made.append(key, _features(plan, drawn, f"samples of {source}", RepulsionError))
    if not train.rows:
        raise DataError(expected("data", "at least one batch", "none"))
    return train, made


def _repulsion_pass(plan: _Plan, repulsion: Iterable[Any], stack: ExitStack) -> Tensor:
    """Features of the first batches of a repulsion loader."""
    with steady(repulsion, plan.seed):
        batches = iter(repulsion)
        first = next(batches, None)
        if first is None:
            raise RepulsionError(expected("repulsion", "at least one batch", "none"))
        several = plan.backbone.several
        inputs = inputs_of(first, "batch 0 of `repulsion`", RepulsionError, several)
        features = _features(plan, inputs, "batch 0 of `repulsion`", RepulsionError)
        about = None
        if plan.cache is not None:
            length = _length(repulsion)
            about = {"batches": length, "first": digest_of(inputs), "samples": plan.samples, "seed": plan.seed}
        store = _store(plan, "repulsion", about, (features,), stack)
        if not store.complete:
            everything = itertools.chain([first], batches)
            for i, batch in enumerate(_bar(everything, "repulsion features", _length(repulsion), plan.progress)):
                name = f"batch {i} of `repulsion`"
                inputs = inputs_of(batch, name, RepulsionError, several)
                key = "" if plan.cache is None else digest_of(inputs)
                if not store.covers(key):
                    store.append(key, _features(plan, inputs, name, RepulsionError))
                if store.rows >= plan.samples:
                    break
    return _placed(plan, store.finish()[0])[: plan.samples]


def _store(
    plan: _Plan, name: str, about: dict[str, Any] | None, like: Sequence[Tensor], stack: ExitStack
) -> Store | CachedStore:
    if plan.cache is None:
        store = Store(plan.limit)
    else:
        backbone = plan.backbone
        fingerprint = {
            "model": architecture_of(backbone.model),
            "weights": weights_of(backbone.model),
            "layers": [asdict(backbone.ending), *(asdict(tap) for tap in backbone.taps)],
            "function": [f"{value:.3g}" for value in torch.var_mean(like[0].double(), correction=0)],
            "data": about,
        }
        store = CachedStore(plan.cache, name, fingerprint, like)
    stack.callback(store.close)
    return store


@torch.no_grad()
def _features(plan: _Plan, inputs: Any, name: str, error: type[DataError]) -> Tensor:
    with feeding(inputs, name, error):
        features = plan.backbone(to_device(inputs, plan.device))
    if not bool(torch.isfinite(features).all()):
        raise error(expected(f"the features of {name}", "finite", "NaN or infinite values"))
    return features


def _placed(plan: _Plan, column: Tensor) -> Tensor:
    """Rows where the fit runs, if they fit there; what is mapped from a file is not copied."""
    return column if column.device == plan.device or column.nbytes > plan.limit else column.to(plan.device)


def _ready(repulsion: Tensor, like: Tensor) -> Tensor:
    if repulsion.ndim != 2 or repulsion.shape[1] != like.shape[1]:
        wanted = f"ready features of shape (samples, {like.shape[1]}); wrap inputs in a list, `[inputs]`"
        raise RepulsionError(expected("repulsion", wanted, f"a tensor of shape {tuple(repulsion.shape)}"))
    return repulsion.to(like)


def _passes(data: Iterable[Any], plan: _Plan) -> Generator[Any]:
    for number in range(plan.augmentations):
        with steady(data, plan.seed + number):
            yield from data


@contextmanager
def steady(data: Iterable[Any], seed: int) -> Iterator[None]:
    """Inside, a loader that shuffles or augments does so as the seed says; outside, all random states are as before."""
    parts = [data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)]
    parts.append(getattr(parts[-1], "sampler", None))
    borrowed = [getattr(part, "generator", None) for part in parts]
    generators = [torch.default_generator, *(g for g in borrowed if isinstance(g, torch.Generator))]
    states = [generator.get_state() for generator in generators]
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        for generator in generators:
            generator.manual_seed(_mixed(seed, -1))
        random.seed(_mixed(seed, -1))
        np.random.seed(_mixed(seed, -1) % 2**32)  # noqa: NPY002
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002


def _mixed(seed: int, i: int) -> int:
    """A seed for batch i."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=7).digest(), "big")


def _length(data: Iterable[Any]) -> int | None:
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _bar(data: Iterable[Any], name: str, total: int | None, progress: bool) -> Iterable[Any]:
    return tqdm(data, desc=name, total=total, unit="batch", delay=2.0, disable=not progress, leave=False)
