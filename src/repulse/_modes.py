"""Modes of modules and of torch, borrowed and given back, and whose call it is where threads share a module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_lock = threading.Lock()
_borrowed: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
"""For each module in use: how many callers are inside, whether it was training, and its compiled form, if any."""


def caller() -> int:
    """Return which thread is calling; a pass that is being traced is alone."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model and all its parts in eval mode inside, not compiled, and each back in its own mode afterwards.

    What `module.compile()` has compiled does not see hooks that are added later.

    Several threads may be inside at once, with models that share parts; the last one to leave a part gives it its mode
    back. A part that is in eval mode already, and not because somebody is inside, has nothing to be given back.
    """
    if torch.compiler.is_dynamo_compiling() and not any(module.training for module in model.modules()):
        yield  # nothing to give back, and a compiler cannot see through what follows
        return
    with _lock:
        modules = [
            module
            for module in model.modules()
            if module.training or module._compiled_call_impl is not None or (_borrowed and module in _borrowed)
        ]
        for module in modules:
            _borrowed.setdefault(module, [0, module.training, module._compiled_call_impl])[0] += 1
            module.training = False
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = None
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                inside, was_training, compiled = _borrowed[module]
                _borrowed[module][0] = inside - 1
                if inside == 1:
                    del _borrowed[module]
                    module.training = was_training
                    if compiled is not None:
                        module._compiled_call_impl = compiled


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the types that numbers have, whatever `torch.autocast` is around."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
