"""What a batch may look like, and what is done with one: find inputs and targets, move, shorten, feed, fingerprint.

The inputs of a model are a tensor, a mapping of names to tensors (as Hugging Face encodings are; the model is then
called with keywords), or a tuple of several (called with each). A batch is inputs alone, `(inputs, targets)`, or a
mapping that also holds the targets under one of `TARGETS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repulse._finite import all_finite
from repulse.errors import BackboneError, DataError, expected

TARGETS = ("labels", "label", "targets", "target")
"""Names under which a mapping holds its targets; the model never sees them."""

FORMS = "a tensor, a mapping of tensors, or a tuple that starts with one"

ROW_BYTES = 8 * 1021
"""Bytes of a row in `fast_digest_of`: a prime number of integers, with which nothing in an image lines up."""


def inputs_of(
    batch: Any, name: str = "each batch", error: type[DataError] = DataError, several: int | None = None
) -> Any:
    """The inputs of a batch: the batch itself without its targets, or its first element.

    If the model takes `several` tensors, that many of them are inputs, not inputs and what belongs to them.
    """
    inputs = batch
    if isinstance(batch, tuple | list) and batch and not are_separate_inputs(batch, several):
        inputs = batch[0]
    if isinstance(inputs, Mapping):
        inputs = {key: value for key, value in inputs.items() if key not in TARGETS}
    elif isinstance(inputs, list):
        inputs = tuple(inputs)
    if not _has_tensor(inputs):
        raise error(expected(name, FORMS, describe_batch(batch)))
    return inputs


def inputs_and_targets(batch: Any, i: int) -> tuple[Any, Tensor]:
    """Inputs and targets of the i-th batch, checked."""
    name = f"batch {i} of `data`"
    if isinstance(batch, Mapping):
        target = next((batch[key] for key in TARGETS if key in batch), None)
    else:
        target = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    if not isinstance(target, Tensor):
        wanted = "a tuple (inputs, targets) of tensors, or a mapping with `labels`"
        raise DataError(expected(name, wanted, describe_batch(batch)))
    inputs = inputs_of(batch, name)
    size = size_of(inputs)
    if not size:
        raise DataError(expected(name, "non-empty", describe_batch(tensors_of(inputs)[0][1])))
    if not target.ndim or len(target) != size:
        raise DataError(expected(f"the targets of batch {i}", f"{size}, one an input", f"shape {tuple(target.shape)}"))
    if target.is_floating_point() and not bool(torch.isfinite(target).all()):
        raise DataError(expected(f"the targets of batch {i}", "finite", "NaN or infinite values"))
    return inputs, target


def are_separate_inputs(batch: Any, several: int | None) -> bool:
    """Whether a sequence is what a model of several inputs takes."""
    return (
        several is not None
        and isinstance(batch, tuple | list)
        and len(batch) == several
        and all(isinstance(part, Tensor) for part in batch)
    )


def tensors_of(inputs: Any) -> list[tuple[str, Tensor]]:
    """All tensors of some inputs, with a name for each."""
    if isinstance(inputs, Tensor):
        return [("", inputs)]
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return [(str(key), value) for key, value in items if isinstance(value, Tensor)]


def size_of(inputs: Any) -> int:
    """Number of samples: the length of the first tensor that has one."""
    return next((len(value) for _, value in tensors_of(inputs) if value.ndim), 0)


def to_device(inputs: Any, device: torch.device) -> Any:
    """The same inputs on a device."""
    return map_tensors(inputs, lambda value: value.to(device, non_blocking=device.type == "cuda"))


def first_samples(inputs: Any, size: int) -> Any:
    """The first few samples of some inputs."""
    whole = size_of(inputs)
    return map_tensors(inputs, lambda value: value[:size] if value.ndim and len(value) == whole else value)


def is_image(value: Tensor) -> bool:
    """Whether a tensor may have its channels first or last in memory."""
    return value.ndim == 4 and value.is_floating_point()


def channels_last(value: Tensor) -> Tensor:
    """The same images with their channels last in memory, which a convolution then keeps up."""
    return value.contiguous(memory_format=torch.channels_last) if is_image(value) else value


def call(model: nn.Module, inputs: Any) -> Any:
    """Feed inputs to a model: a tensor as such, a mapping as keywords, a tuple as several arguments."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def logits_of(outputs: Any) -> Tensor:
    """The tensor in what a model returns: itself, its `.logits` or `["logits"]`, or the first of a tuple."""
    found = outputs
    if not isinstance(found, Tensor):
        found = getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("logits")
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        wanted = "a tensor, something with `.logits`, or a tuple that starts with a tensor"
        raise BackboneError(expected("model(batch)", wanted, type(outputs).__name__))
    return found


def mask_of(inputs: Any) -> Tensor | None:
    """Which tokens of a text are no padding, if the inputs say so."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def digest_of(*parts: Any) -> str:
    """A short fingerprint of tensors, and of their names, types and shapes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, value in tensors_of(part):
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            digest.update(as_bytes(value))
    return digest.hexdigest()


def fast_digest_of(*parts: Any) -> str:
    """As `digest_of`, ten times faster, and good enough to tell one batch from another that nobody forged.

    Large tensors are seen as rows of 64-bit integers, of which the sums along rows and columns are digested: what is
    changed, moved or exchanged changes one of them.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, value in tensors_of(part):
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            numbers = as_bytes(value)
            whole = len(numbers) // ROW_BYTES * ROW_BYTES
            rows = np.frombuffer(numbers[:whole], dtype=np.uint64).reshape(-1, ROW_BYTES // 8)
            for axis in (0, 1):
                digest.update(np.add.reduce(rows, axis=axis).data)
            digest.update(numbers[whole:])
    return digest.hexdigest()


def as_bytes(value: Tensor) -> memoryview:
    """The numbers of a tensor as bytes, of any type."""
    flat = value.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data


@contextmanager
def explaining_failures(inputs: Any, name: str, error: type[DataError]) -> Iterator[None]:
    """Around a pass of the network: what it cannot take becomes an error that says which inputs they were."""
    for _, value in tensors_of(inputs):
        if value.is_floating_point() and value.ndim and not all_finite(value):
            bad = (~torch.isfinite(value)).flatten(start_dim=1).any(dim=1) if value.ndim > 1 else ~value.isfinite()
            rows = bad.nonzero().flatten()
            raise error(expected(name, "finite", f"NaN or infinite values in {len(rows)} inputs, first {int(rows[0])}"))
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as reason:
        if isinstance(reason, BackboneError | DataError):
            raise
        why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(".?! ")
        got = f"{describe_batch(inputs)}, on which it fails: {why}"
        raise error(expected(name, "inputs the model can take", got)) from reason


def map_tensors(inputs: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same inputs with each tensor replaced."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: function(value) if isinstance(value, Tensor) else value for key, value in inputs.items()}
    return tuple(function(value) if isinstance(value, Tensor) else value for value in inputs)


def _has_tensor(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) or (isinstance(inputs, Mapping | tuple) and bool(tensors_of(inputs)))


def describe_batch(batch: Any) -> str:
    """What came, in words."""
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "a mapping of " + (", ".join(map(str, list(batch)[:6])) or "nothing")
    if isinstance(batch, tuple | list):
        kinds = ", ".join(type(part).__name__ for part in batch[:4])
        return f"a {type(batch).__name__} of {len(batch)}" + (f": {kinds}" if kinds else "")
    return type(batch).__name__
