"""Modes of modules and of torch, borrowed and given back, and whose call it is where threads share a module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

_lock = threading.Lock()
_borrowed: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
"""For each module in use: whether it was training, and how many callers are inside."""


def caller() -> int:
    """Return which thread is calling; a pass that is being traced is alone."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model and all its parts in eval mode inside, and each back in its own mode afterwards.

    Several threads may be inside at once, with models that share parts; the last one to leave a part gives it its mode
    back. A part that is in eval mode already, and not because somebody is inside, has nothing to be given back.
    """
    if torch.compiler.is_dynamo_compiling() and not any(module.training for module in model.modules()):
        yield  # nothing to give back, and a compiler cannot see through what follows
        return
    with _lock:
        modules = [module for module in model.modules() if module.training or (_borrowed and module in _borrowed)]
        for module in modules:
            _borrowed.setdefault(module, [int(module.training), 0])[1] += 1
            module.training = False
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                was_training, inside = _borrowed[module]
                _borrowed[module][1] = inside - 1
                if inside == 1:
                    del _borrowed[module]
                    module.training = bool(was_training)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the types that numbers have, whatever `torch.autocast` is around."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
