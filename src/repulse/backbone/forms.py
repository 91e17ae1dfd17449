"""The form of a network's inputs: enough to make an example of them when no data is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repulse.backbone.batches import Custom, size_of, tensors_of


@dataclass(frozen=True)
class Form:
    """One of the inputs of a network.

    Attributes:
        name: the keyword under which it is passed, or "" if it has none.
        shape: of one sample.
        dtype: name of its type in torch, such as "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def example(self, size: int) -> Tensor:
        """Return inputs of this form that any network takes: ones, which are a known token and no padding."""
        return torch.ones(size, *self.shape, dtype=getattr(torch, self.dtype))


def forms_of(inputs: Any) -> tuple[Form, ...]:
    """Return the forms of some inputs; none if there is more to them than tensors with a row for each sample."""
    if isinstance(inputs, Custom):
        return ()
    tensors, size = tensors_of(inputs), size_of(inputs)
    whole = 1 if isinstance(inputs, Tensor) else len(inputs)
    if len(tensors) < whole or any(value.shape[:1] != (size,) for _, value in tensors):
        return ()
    named = isinstance(inputs, Mapping)
    return tuple(
        Form(name if named else "", tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
        for name, value in tensors
    )


def example_of(forms: Sequence[Form], size: int) -> Any:
    """Return inputs of these forms, as `call` feeds them to a network."""
    if forms[0].name:
        return {form.name: form.example(size) for form in forms}
    return tuple(form.example(size) for form in forms) if len(forms) > 1 else forms[0].example(size)
