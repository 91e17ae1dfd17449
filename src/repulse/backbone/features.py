"""Compute the features of a whole data set once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from repulse.backbone.split import Backbone
from repulse.errors import DataError, RepulsionError, expected
from repulse.repulsion import Source
from repulse.repulsion.source import draw


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


def inputs_of(batch: Any, name: str = "each batch", error: type[DataError] = DataError) -> Tensor:
    """The inputs of a batch: the batch itself, or its first element."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(inputs, Tensor):
        raise error(expected(name, "a tensor or a tuple that starts with one", type(inputs).__name__))
    return inputs


def labelled(batch: Any, i: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the i-th batch, checked."""
    if not isinstance(batch, tuple | list) or len(batch) < 2 or not isinstance(batch[1], Tensor):
        got = type(batch).__name__
        if isinstance(batch, tuple | list):
            got = f"a {got} of {len(batch)}: " + ", ".join(type(part).__name__ for part in batch[:4])
        raise DataError(expected(f"batch {i} of `data`", "a tuple (inputs, targets) of tensors", got))
    inputs, target = inputs_of(batch, f"batch {i} of `data`"), batch[1]
    if not target.ndim or len(target) != len(inputs):
        got = f"shape {tuple(target.shape)}"
        raise DataError(expected(f"the targets of batch {i}", f"{len(inputs)}, one an input", got))
    if target.is_floating_point() and not bool(torch.isfinite(target).all()):
        raise DataError(expected(f"the targets of batch {i}", "finite", "NaN or infinite values"))
    return inputs, target


@contextmanager
def feeding(inputs: Tensor, name: str, error: type[DataError]) -> Iterator[None]:
    """Around a pass of the network: what it cannot take becomes an error that says which inputs they were."""
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        bad = (~torch.isfinite(inputs)).flatten(start_dim=1).any(dim=1).nonzero().flatten()
        raise error(expected(name, "finite", f"NaN or infinite values in {len(bad)} inputs, first {int(bad[0])}"))
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:
        got = f"shape {tuple(inputs.shape)}, on which it fails: {reason}"
        raise error(expected(name, "inputs the model can take", got)) from reason


def compute_features(
    backbone: Backbone,
    data: Iterable[Any],
    repulsion: Source | Iterable[Any] | Tensor | None,
    *,
    samples: int,
    generator: torch.Generator,
    device: torch.device,
    progress: bool = True,
) -> Features:
    """One pass over the data, and one over (or made from) the repulsion samples.

    Args:
        backbone: the network.
        data: batches of `(inputs, targets)`.
        repulsion: a source that makes samples from the training batches, an iterable of unlabelled batches, a tensor of
            ready features, or None.
        samples: how many repulsion samples to use at most: a source makes one of each training sample at most, and of
            a loader the first ones are taken, so shuffle it.
        generator: for the sources.
        device: where the network runs.
        progress: show a bar when it takes more than two seconds.
    """
    train: list[Tensor] = []
    targets: list[Tensor] = []
    made: list[Tensor] = []
    total = _length(data)
    for i, batch in enumerate(_bar(data, "features", total, progress)):
        inputs, target = labelled(batch, i)
        inputs = inputs.to(device)
        train.append(_features(backbone, inputs, f"batch {i} of `data`", DataError))
        targets.append(target.to(device))
        if isinstance(repulsion, Source):
            wanted = _share(samples, i, total)
            if wanted > sum(map(len, made)) and (len(inputs) > 1 or not made):  # sources may need company
                drawn = draw(repulsion, inputs, generator)
                same = drawn is inputs
                made.append(
                    train[-1] if same else _features(backbone, drawn, f"samples of {repulsion}", RepulsionError)
                )
    if not train:
        raise DataError(expected("data", "at least one batch", "none"))
    return Features(
        torch.cat(train), torch.cat(targets), _repulsion(backbone, repulsion, made, samples, train[0], device, progress)
    )


def _repulsion(
    backbone: Backbone,
    repulsion: Source | Iterable[Any] | Tensor | None,
    made: list[Tensor],
    samples: int,
    like: Tensor,
    device: torch.device,
    progress: bool,
) -> Tensor | None:
    if repulsion is None:
        return None
    if isinstance(repulsion, Source):
        return torch.cat(made)[:samples]
    if isinstance(repulsion, Tensor):
        if repulsion.ndim != 2 or repulsion.shape[1] != like.shape[1]:
            wanted = f"ready features of shape (samples, {like.shape[1]}); wrap inputs in a list, `[inputs]`"
            raise RepulsionError(expected("repulsion", wanted, f"a tensor of shape {tuple(repulsion.shape)}"))
        return repulsion.to(like)
    for i, batch in enumerate(_bar(repulsion, "repulsion features", _length(repulsion), progress)):
        made.append(
            _features(
                backbone,
                inputs_of(batch, f"batch {i} of `repulsion`", RepulsionError).to(device),
                f"batch {i} of `repulsion`",
                RepulsionError,
            )
        )
        if sum(map(len, made)) >= samples:
            break
    if not made:
        raise RepulsionError(expected("repulsion", "at least one batch", "none"))
    return torch.cat(made)[:samples]


@torch.no_grad()
def _features(backbone: Backbone, inputs: Tensor, name: str, error: type[DataError]) -> Tensor:
    with feeding(inputs, name, error):
        features = backbone(inputs)
    if not bool(torch.isfinite(features).all()):
        raise error(expected(f"the features of {name}", "finite", "NaN or infinite values"))
    return features


def _share(samples: int, i: int, total: int | None) -> int:
    """How many repulsion samples should have been made after batch i, to spread them over all batches."""
    return samples if total is None else -(-samples * (i + 1) // total)


def _length(data: Iterable[Any]) -> int | None:
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _bar(data: Iterable[Any], name: str, total: int | None, progress: bool) -> Iterable[Any]:
    return tqdm(data, desc=name, total=total, unit="batch", delay=2.0, disable=not progress, leave=False)
