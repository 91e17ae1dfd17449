"""The one place that knows what a batch may look like: find inputs and targets, iterate, move, cut, feed.

The inputs of a model are a tensor, a mapping of names to tensors (as Hugging Face encodings are; the model is then
called with keywords), or a tuple of several (called with each). A batch is inputs alone, `(inputs, targets)`, or a
mapping that also holds the targets under one of `TARGETS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repulse._finite import all_finite, comparable
from repulse.backbone.reading import all_of, length_of
from repulse.errors import BackboneError, DataError, check_dense, expected

TARGETS = ("labels", "label", "targets", "target")
"""Names under which a mapping holds its targets; the model never sees them."""


class Custom:
    """Inputs of a form that is the network's own business: they go to it as they are, and are never cut.

    Inputs of a known form may be marked with it too; then nobody looks for them in a batch again.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


FORMS = "a tensor, a mapping of tensors, or a tuple that starts with one"


def inputs_of(
    batch: Any, name: str = "each batch", error: type[DataError] = DataError, several: int | None = None
) -> Any:
    """Return the inputs of a batch: the batch itself without its targets, or its first element.

    Args:
        batch: in any form.
        name: of the batch, for messages.
        error: to raise if there are no inputs.
        several: number of tensors that the model takes as separate arguments; that many of them are all inputs.
    """
    inputs = batch
    if isinstance(batch, Custom):
        return batch
    if isinstance(batch, tuple | list) and batch and not are_separate_inputs(batch, several):
        inputs = batch[0]
    if isinstance(inputs, Mapping):
        inputs = {key: value for key, value in inputs.items() if key not in TARGETS}
    elif isinstance(inputs, list):
        inputs = tuple(inputs)
    if not _has_tensor(inputs):
        raise error(expected(name, FORMS, describe_batch(batch) + how_to_tensor(inputs)))
    if isinstance(inputs, Tensor) and inputs.is_meta:
        raise error(expected(name, "a tensor with values", "one on the meta device"))
    return inputs


def inputs_and_targets(batch: Any, name: str) -> tuple[Any, Tensor]:
    """Return the inputs and the targets of a labelled batch, as many of one as of the other."""
    if isinstance(batch, Mapping):
        key = next((key for key in TARGETS if key in batch), None)
        targets = None if key is None else batch[key]
        if key is not None and not isinstance(targets, Tensor):
            wanted = "a tensor of one for each sample; a `DataLoader` puts samples together"
            raise DataError(expected(f"`{key}` of {name}", wanted, f"a {type(targets).__name__}"))
    else:
        targets = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    if not isinstance(targets, Tensor):
        wanted = "a tuple (inputs, targets) of tensors, or a mapping with `labels`"
        raise DataError(expected(name, wanted, describe_batch(batch)))
    check_dense(f"the targets of {name}", targets)
    if targets.is_complex():
        raise DataError(expected(f"the targets of {name}", "classes or real numbers", f"{targets.dtype}"))
    if not targets.ndim:
        raise DataError(expected(name, "a batch; a `DataLoader` puts samples together", "one sample"))
    inputs = inputs_of(batch, name)
    size = size_of(inputs)
    if rows_are_samples(inputs) and targets.shape[:1] != (size,):
        raise DataError(expected(f"the targets of {name}", f"{size}, one per input", f"shape {tuple(targets.shape)}"))
    return inputs, targets


def training_batch(batch: Any, i: int, data: str = "data") -> tuple[Any, Tensor]:
    """Return the inputs and the targets of the i-th batch of some data, which must be usable for a fit."""
    name = f"batch {i} of `{data}`"
    inputs, targets = inputs_and_targets(batch, name)
    targets = comparable(targets)
    if not len(targets):
        raise DataError(expected(name, "non-empty", describe_batch(tensors_of(inputs)[0][1])))
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        several = targets.ndim > 1 and targets.shape[1:] != (1,)  # of several labels, some may be unknown
        if not several or bool(targets.isinf().any()):
            raise DataError(expected(f"the targets of {name}", "finite", "NaN or infinite values"))
    return inputs, targets


def labelled_batches(data: Any, name: str) -> Iterator[tuple[Any, Tensor]]:
    """Iterate over the inputs and targets of one batch in a tuple, or of a loader of labelled batches."""
    batches: Any = [data] if isinstance(data, tuple) else data
    if isinstance(data, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        raise DataError(expected(name, "(inputs, targets) or a loader of labelled batches", type(data).__name__))
    count = 0
    for i, batch in enumerate(all_of(batches, length_of(batches), name)):
        inputs, targets = inputs_and_targets(batch, f"batch {i} of `{name}`")
        count += len(targets)
        yield inputs, targets.flatten() if targets.shape[1:] == (1,) else targets
    if not count:
        raise DataError(expected(name, "at least one sample", "none"))


def input_batches(samples: Any, name: str, several: int | None = None) -> Iterator[Any]:
    """Iterate over the batches of inputs in a tensor, a tuple that is one batch, a loader, or a mapping to such.

    If the model takes `several` tensors as separate arguments, that many in a tuple are the inputs of one batch.
    """
    if isinstance(samples, Tensor) or (
        isinstance(samples, tuple) and (are_separate_inputs(samples, several) or not _is_split_tensor(samples))
    ):
        batches: Iterable[Any] = [samples]
    elif isinstance(samples, Mapping):
        batches = (batch for key, part in samples.items() for batch in input_batches(part, f"{name}[{key!r}]", several))
    elif isinstance(samples, Iterable) and not isinstance(samples, str):
        batches = all_of(samples, length_of(samples), name)
    else:
        raise DataError(expected(name, "a tensor, a loader or a mapping of names to such", type(samples).__name__))
    count = 0
    for batch in batches:
        inputs = inputs_of(batch, f"each batch of `{name}`", several=several)
        count += 1 if isinstance(inputs, Custom) else size_of(inputs)
        yield inputs
    if not count:
        raise DataError(expected(name, "at least one sample", "none"))


def limit_batch_size(batches: Iterable[tuple[Any, Any]], size: int) -> Iterator[tuple[Any, Any]]:
    """Cut batches of inputs and targets (or None) into batches of at most `size` samples."""
    for inputs, targets in batches:
        whole = size_of(inputs)
        if not rows_are_samples(inputs):
            yield inputs, targets
            continue

        def part(value: Any, start: int, whole: int = whole) -> Any:
            if isinstance(value, Mapping):
                return {key: part(entry, start) for key, entry in value.items()}
            if isinstance(value, tuple):
                return tuple(part(entry, start) for entry in value)
            return value[start : start + size] if isinstance(value, Tensor) and value.shape[:1] == (whole,) else value

        yield from ((part(inputs, start), part(targets, start)) for start in range(0, whole, size))


def is_one_batch(x: Any, several: int | None) -> bool:
    """Check whether something is one batch (inputs, or inputs and targets) rather than a loader or list of batches."""
    if isinstance(x, Tensor | Mapping | Custom):
        return True
    if not isinstance(x, tuple | list) or not x:
        return False
    if are_separate_inputs(x, several):
        return True
    if isinstance(x[0], Mapping | tuple | list):
        return len(x) > 1 and isinstance(x[1], Tensor) and bool(tensors_of(x[0])) and len(x[1]) == size_of(x[0])
    if not isinstance(x[0], Tensor):
        return False
    if len(x) == 1 or not isinstance(x[1], Tensor):
        return True
    if x[1].shape[1:] != x[0].shape[1:]:  # targets, if they can be: as many, and of fewer dimensions or another type
        fewer = x[1].ndim < x[0].ndim or x[1].shape[1:] == (1,) or x[1].dtype != x[0].dtype
        return len(x[1]) == len(x[0]) and fewer
    if len(x) == 2 and x[0].shape[1:] == (1,):
        raise DataError(expected("x", "a tensor of inputs", "two columns: one batch with its targets, or two batches?"))
    return False


def are_separate_inputs(batch: Any, several: int | None) -> bool:
    """Check whether a sequence holds all the tensors that a model of `several` inputs takes."""
    return (
        several is not None
        and isinstance(batch, tuple | list)
        and len(batch) == several
        and all(isinstance(part, Tensor) for part in batch)
    )


def tensors_of(inputs: Any) -> list[tuple[str, Tensor]]:
    """Return all tensors of some inputs, with a name for each."""
    if isinstance(inputs, Custom):
        inputs = inputs.value if isinstance(inputs.value, Tensor | Mapping | tuple) else ()
    if isinstance(inputs, Tensor):
        return [("", inputs)]
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return [(str(key), value) for key, value in items if isinstance(value, Tensor)]


def size_of(inputs: Any) -> int:
    """Return the number of samples: the length of the first tensor that has one."""
    return next((len(value) for _, value in tensors_of(inputs) if value.ndim), 0)


def rows_are_samples(inputs: Any) -> bool:
    """Check whether all tensors have one row per sample; those of a graph, or of an unknown form, do not."""
    lengths = {len(value) for _, value in tensors_of(inputs) if value.ndim}
    return len(lengths) == 1 and not isinstance(inputs, Custom)


def to_device(inputs: Any, device: torch.device) -> Any:
    """Copy inputs to a device."""
    if isinstance(inputs, Custom):
        known = isinstance(inputs.value, Tensor | Mapping | tuple)
        moved = to_device(inputs.value, device) if known else inputs.value
        return Custom(moved.to(device) if hasattr(moved, "to") and not known else moved)
    return map_tensors(inputs, lambda value: value.to(device, non_blocking=device.type == "cuda"))


def first_samples(inputs: Any, size: int) -> Any:
    """Return the first few samples of some inputs; all of them, if their rows are no samples."""
    if isinstance(inputs, Custom):
        return inputs
    whole = size_of(inputs)
    return map_tensors(inputs, lambda value: value[:size] if value.ndim and len(value) == whole else value)


def is_image(value: Tensor) -> bool:
    """Check whether a tensor may have its channels first or last in memory."""
    return value.ndim == 4 and value.is_floating_point()


def channels_last(value: Tensor) -> Tensor:
    """Lay out images with their channels last in memory, which convolutions then preserve."""
    return value.contiguous(memory_format=torch.channels_last) if is_image(value) else value


def call(model: nn.Module, inputs: Any) -> Any:
    """Feed inputs to a model: a tensor as such, a mapping as keywords, a tuple as several arguments."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Custom):
        return model(inputs.value)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def as_inputs(model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return what a caller passes in place of a model's arguments in the form in which `call` feeds it."""
    if named and inputs:  # all of them by name
        bound = inspect.signature(model.forward).bind(*inputs, **named)
        named = {key: value for key, value in bound.arguments.items() if key in bound.signature.parameters}
    x = named if named else inputs[0] if len(inputs) == 1 else inputs
    if not isinstance(x, Tensor | Mapping | tuple | list):
        return Custom(x)
    return inputs_of(x, "x") if isinstance(x, Mapping) else x


def logits_of(outputs: Any) -> Tensor:
    """Return the tensor that a model returns: itself, `.logits`, `["logits"]`, `["out"]`, or the first of a tuple."""
    found = outputs
    if not isinstance(found, Tensor):
        found = getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("logits", outputs.get("out"))  # "out" is what segmentation networks of torchvision return
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        wanted = "a tensor, something with `.logits`, or a tuple that starts with a tensor"
        raise BackboneError(expected("model(batch)", wanted, type(outputs).__name__))
    return found


def mask_of(inputs: Any) -> Tensor | None:
    """Return which tokens of a text are not padding, if the inputs say so."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


@contextmanager
def explaining_failures(inputs: Any, name: str, error: type[DataError]) -> Iterator[None]:
    """Turn what a network raises inside into an error that says which inputs it could not take."""
    for _, value in tensors_of(inputs):
        if value.is_floating_point() and value.ndim and not all_finite(value):
            if value.layout != torch.strided:
                raise error(expected(name, "finite", "NaN or infinite values"))
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
    """Replace each tensor of some inputs."""
    if isinstance(inputs, Custom):
        return inputs
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: function(value) if isinstance(value, Tensor) else value for key, value in inputs.items()}
    return tuple(function(value) if isinstance(value, Tensor) else value for value in inputs)


def _is_split_tensor(parts: tuple[Any, ...]) -> bool:
    """Check whether a tuple is a tensor cut into batches by `Tensor.split`, not inputs and what belongs to them."""
    shapes = {(part.shape[1:], part.dtype) if isinstance(part, Tensor) else None for part in parts}
    return len(shapes) == 1 and None not in shapes


def _has_tensor(inputs: Any) -> bool:
    return isinstance(inputs, Tensor | Custom) or (isinstance(inputs, Mapping | tuple) and bool(tensors_of(inputs)))


def how_to_tensor(value: Any) -> str:
    """Say how to make a tensor of what people often have instead; an empty text for other things."""
    value = value[0] if isinstance(value, tuple | list) and value else value
    if isinstance(value, np.ndarray):
        return "; `torch.from_numpy(x)` makes a tensor of an array"
    if type(value).__module__.startswith("PIL."):
        return "; the transform that the network was trained with makes tensors of pictures"
    return "; a tokenizer makes tensors of texts" if isinstance(value, str) else ""


def describe_batch(batch: Any) -> str:
    """Describe the form of a batch in words."""
    batch = batch.value if isinstance(batch, Custom) else batch
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "a mapping of " + (", ".join(map(str, list(batch)[:6])) or "nothing")
    if isinstance(batch, tuple | list):
        kinds = ", ".join(type(part).__name__ for part in batch[:4])
        return f"a {type(batch).__name__} of {len(batch)}" + (f": {kinds}" if kinds else "")
    return type(batch).__name__
