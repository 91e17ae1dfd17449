"""Where inputs and targets are in batches, and logits in outputs, of forms that nobody knows but who made them.

A place is a key (of a mapping, or the name of an attribute), an index, several of either, or a function that takes the
batch, or the output, and returns what is there. Several keys give keyword arguments, several indices positional ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from repulse.backbone.batches import Custom, describe_batch, inputs_and_targets, inputs_of
from repulse.errors import BackboneError, CheckpointError, DataError, check_dense, expected

Place = str | int | tuple[str | int, ...] | Callable[[Any], Any]

FUNCTION = "function"
"""What stands for a function where places are written down."""


@dataclass(frozen=True)
class Places:
    """Where things are; None for where `retrofit` looks by itself.

    Attributes:
        inputs: what the network takes, in a batch.
        targets: what it should have said, in a batch.
        output: its logits, in what it returns.
    """

    inputs: Place | None = None
    targets: Place | None = None
    output: Place | None = None

    def __post_init__(self) -> None:
        for name, where in vars(self).items():
            one = where is None or callable(where) or type(where) in (str, int)
            kinds = {type(part) for part in where} if name == "inputs" and isinstance(where, tuple) else set()
            if not one and kinds not in ({str}, {int}):
                wanted = "a key, an index or a function" + (", or several keys or indices" if name == "inputs" else "")
                raise DataError(expected(name, wanted, repr(where)))

    @property
    def describe_batches(self) -> bool:
        """Whether batches are of a form of their own."""
        return self.inputs is not None or self.targets is not None

    def inputs_in(self, batch: Any, name: str = "x", several: int | None = None) -> Any:
        """Return the inputs of a batch as the network is called with them; a tensor is nothing but inputs."""
        if isinstance(batch, Custom):
            return batch.value if is_known_form(batch.value) else batch
        if isinstance(batch, Tensor) or not self.describe_batches:
            return inputs_of(batch, name, several=several)
        if self.inputs is not None:
            found = pick(self.inputs, batch, "inputs", name)
            found = tuple(found) if isinstance(found, list) else found
            return found if is_known_form(found) else Custom(found)
        if isinstance(batch, Mapping) and isinstance(self.targets, str):
            batch = {key: value for key, value in batch.items() if key != self.targets}
        return inputs_of(batch, name, several=several)

    def pair_in(self, batch: Any, name: str) -> tuple[Any, Tensor]:
        """Return the inputs and the targets of a batch."""
        inputs = self.inputs_in(batch, name)
        if self.targets is not None:
            targets = pick(self.targets, batch, "targets", name)
        elif isinstance(batch, tuple | list) and len(batch) == 2 and self.inputs in (0, 1):
            targets = batch[1 - self.inputs]  # pyright: ignore[reportOperatorIssue]
        elif isinstance(batch, Mapping):
            targets = inputs_and_targets(batch, name)[1]
        else:
            raise DataError(expected("targets", f"said, as `inputs` is, for {describe_batch(batch)}", None))
        if not isinstance(targets, Tensor):
            got = f"a {type(targets).__name__} at {in_words(self.targets)}"
            raise DataError(expected(f"the targets of {name}", "a tensor of one per input", got))
        check_dense(f"the targets of {name}", targets)
        return inputs, targets

    def is_batch(self, x: Any) -> bool:
        """Check whether something of these forms is one batch, not a loader or a list of them."""
        if isinstance(x, Tensor | Mapping | tuple | Custom):
            return True
        if isinstance(x, list):  # loaders put the parts of a batch into a list
            where = self.targets if self.inputs is None else self.inputs
            indices = isinstance(where, int) or (isinstance(where, tuple) and isinstance(where[0], int))
            return indices and bool(x) and not isinstance(x[0], tuple | list | Mapping)
        loader = isinstance(x, DataLoader | Iterator) or (isinstance(x, Iterable) and not hasattr(x, "to"))
        return not loader

    def labelled(self, data: Any) -> Any:
        """Return labelled data in the forms that are known: one batch in a tuple, or batches of `(inputs, targets)`."""
        if not self.describe_batches:
            return data
        if self.is_batch(data):
            return self._ready(*self.pair_in(data, "the batch"))
        return Described(data, lambda batch, name: self._ready(*self.pair_in(batch, name)))

    def unlabelled(self, data: Any) -> Any:
        """Return data in the forms that are known, inputs alone."""
        if not self.describe_batches or isinstance(data, Tensor):
            return data
        if self.is_batch(data):
            return [self._ready(self.inputs_in(data))]
        return Described(data, lambda batch, name: self._ready(self.inputs_in(batch, name)))

    def for_fit(self, data: Any) -> Any:
        """Return training data as batches of `(inputs, targets)`."""
        return Described(data, self.pair_in) if self.describe_batches else data

    def _ready(self, inputs: Any, *targets: Tensor) -> tuple[Any, ...]:
        """Mark inputs that a function has found, so that it is not asked again."""
        if callable(self.inputs) and not isinstance(inputs, Tensor | Custom):
            inputs = Custom(inputs)
        return (inputs, *targets)

    def logits_in(self, output: Any) -> Any:
        """Return what the network's output holds at the place that was said."""
        return output if self.output is None else pick(self.output, output, "output", "the model's output")

    def to_dict(self) -> dict[str, Any]:
        """Return the places as plain JSON; of a function no more than that it was one."""
        said = {name: where for name, where in vars(self).items() if where is not None}
        return {name: {FUNCTION: True} if callable(where) else where for name, where in said.items()}

    def restored(self, kept: dict[str, Any]) -> Places:
        """Return these places, and where they say nothing those that `to_dict` kept; a function must be given again."""
        found = dict(vars(self))
        for name, where in kept.items():
            if name not in found:
                raise ValueError(f"no such place as {name!r}")
            if found[name] is None and isinstance(where, dict):
                wanted = "given again, as the ensemble was fitted with a function there, which cannot be saved"
                raise CheckpointError(expected(name, wanted, None))
            if found[name] is None:
                found[name] = tuple(where) if isinstance(where, list) else where
        return Places(**found)


class Described:
    """A loader whose batches are handed on in another form; all else about it is as it was."""

    def __init__(self, data: Any, form: Callable[[Any, str], Any]) -> None:
        self.data, self.form = data, form

    def __iter__(self) -> Iterator[Any]:
        return (self.form(batch, f"batch {i}") for i, batch in enumerate(self.data))

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name in ("data", "form"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.data, name)


def pick(where: Place, value: Any, name: str, of: str) -> Any:
    """Return what is at a place."""
    if callable(where):
        return where(value)
    if isinstance(where, tuple):
        found = [pick(one, value, name, of) for one in where]
        return dict(zip(where, found, strict=True)) if isinstance(where[0], str) else tuple(found)
    try:
        named = isinstance(where, str) and not isinstance(value, Mapping)
        return getattr(value, where) if named else value[where]  # pyright: ignore[reportArgumentType]
    except (KeyError, IndexError, TypeError, AttributeError) as reason:
        error = BackboneError if name == "output" else DataError
        raise error(expected(name, f"a place in {of}", f"{where!r} in {describe_batch(value)}")) from reason


def is_known_form(inputs: Any) -> bool:
    """Check whether inputs are of a form that `call` knows: a tensor, keywords, or arguments side by side."""
    return isinstance(inputs, Tensor | Mapping | tuple)


def in_words(where: Place | None) -> str:
    """Describe a place."""
    return "a place of its own" if where is None else "what a function found" if callable(where) else repr(where)
