"""Modes of modules, borrowed and given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()
_borrowed: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], list[int]]] = WeakKeyDictionary()
"""For each model in use: which of its parts were training, and how many callers are inside."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model and all its parts in eval mode inside, each in its own mode again afterwards.

    Several threads may be inside at once; the last one to leave gives the modes back.
    """
    with _lock:
        if model not in _borrowed:
            training = [module for module in model.modules() if module.training]
            _borrowed[model] = (training, [0])
            for module in training:
                module.training = False
        training, inside = _borrowed[model]
        inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            inside[0] -= 1
            if not inside[0]:
                del _borrowed[model]
                for module in training:
                    module.training = True
