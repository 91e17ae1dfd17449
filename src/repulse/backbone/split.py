"""See a network as features and a last layer: run one batch, find the layer that makes the output, choose the taps."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.backbone.batches import call, logits_of, mask_of, shorten, size_of, tensors_of
from repulse.backbone.endings import (
    Call,
    Ending,
    find_ending,
    is_last_layer,
    pool,
    positions,
    refuse,
    together,
    weights_of,
)
from repulse.backbone.taps import Ran, Tap, find_taps, named_taps, tensor_in
from repulse.errors import BackboneError, expected
from repulse.modes import evaluating

FEW = 8
"""Samples of a batch that are enough to see how a network runs."""


class Backbone(nn.Module):
    """A network seen as features and a last layer; the network itself is shared, not copied or changed.

    Called on inputs, it returns the penultimate features and, after them, what the taps read: `(B, width)`.

    Attributes:
        model: the network.
        ending: its last layer, and how the output comes from it.
        taps: which earlier stages are read too.
    """

    def __init__(self, model: nn.Module, ending: Ending, taps: Sequence[Tap] = ()) -> None:
        super().__init__()
        self.model = model
        self.ending = ending
        self.taps = tuple(taps)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        return weights_of(*map(self.model.get_submodule, self.ending.layers))

    @property
    def outputs(self) -> int:
        """Number of outputs of the network."""
        return self.weights[0].shape[0]

    @property
    def penultimate(self) -> int:
        """Number of features that enter the last layer."""
        return self.weights[0].shape[1]

    @property
    def width(self) -> int:
        """Number of features in all."""
        return self.penultimate + sum(tap.columns for tap in self.taps)

    def forward(self, x: Any) -> Float[Tensor, "B d"]:
        """Features of inputs in any form the network takes, in eval mode."""
        caller = threading.get_ident()  # the model may be serving other threads, whose features are theirs
        mask = mask_of(x)
        ends: dict[str, Call] = {}
        read: dict[str, Tensor] = {}

        def at_end(name: str):
            def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                if threading.get_ident() == caller:
                    ends[name] = (inputs[0], output)

            return hook

        def at_tap(tap: Tap):
            def hook(_: nn.Module, inputs: Any, output: Any) -> None:
                if threading.get_ident() == caller:
                    read[tap.name] = tap.read(output, mask)

            return hook

        layers = [self.model.get_submodule(name) for name in self.ending.layers]
        hooks = [
            layer.register_forward_hook(at_end(name)) for name, layer in zip(self.ending.layers, layers, strict=True)
        ]
        hooks += [self.model.get_submodule(tap.name).register_forward_hook(at_tap(tap)) for tap in self.taps]
        try:
            with evaluating(self.model):
                logits = logits_of(call(self.model, x))
        finally:
            for hook in hooks:
                hook.remove()
        wanted = (*self.ending.layers, *(tap.name for tap in self.taps))
        for name in wanted:
            if name not in ends and name not in read:
                raise BackboneError(expected("model", f"one that runs `{name}`", "a pass without it"))
        inputs, outputs = zip(*(ends[name] for name in self.ending.layers), strict=True)
        pooled = pool(self.ending, together(inputs, layers), positions(outputs[0], layers[0]), logits)
        if not self.taps:
            return pooled
        return torch.cat([pooled, *(read[tap.name].to(pooled.dtype) for tap in self.taps)], dim=1)


def split(
    model: nn.Module, batch: Any, *, layers: str | Sequence[str] = "last", last_layer: str | None = None
) -> Backbone:
    """Find the layer that produces the network's output, by running one batch, and check that it does.

    Args:
        model: any module that maps a batch to one output vector an input: the logits, or something with `.logits`.
        batch: inputs on the model's device, in any form the model takes.
        layers: "last" for the penultimate features alone, "auto" to tap earlier stages as well, or names of modules.
        last_layer: name of the last layer, if it should not be found.

    Raises:
        BackboneError: no linear layer computes the output, or the model is not a function of its input.
    """
    model = unwrap(model)
    few = shorten(batch, FEW)
    names = dict(model.named_modules())
    if last_layer is not None and (last_layer not in names or not is_last_layer(names[last_layer])):
        _refuse_name(last_layer, names)
    ran: list[Ran] = []
    ends: list[tuple[str, nn.Module, Call]] = []

    def watch(name: str, module: nn.Module):
        wanted = is_last_layer(module) if last_layer is None else name == last_layer

        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            left, entered = tensor_in(output), inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
            if left is not None and left.ndim > 1:
                before = None if entered is None else tuple(entered.shape)
                ran.append(Ran(name, before, tuple(left.shape), any(True for _ in module.children())))
            if wanted and isinstance(output, Tensor) and entered is not None:
                ends.append((name, module, (entered.detach().clone(), output.detach().clone())))

        return hook

    hooks = [module.register_forward_hook(watch(name, module)) for name, module in names.items()]
    try:
        with evaluating(model), torch.no_grad():
            logits = logits_of(call(model, few))
    finally:
        for hook in hooks:
            hook.remove()
    _check_repeats(model, few, logits)
    if logits.ndim == 0 or len(logits) != size_of(few):
        got = f"shape {tuple(logits.shape)}"
        raise BackboneError(expected("model(batch)", f"one output for each of {size_of(few)} inputs", got))
    ending = find_ending(ends, logits)
    if ending is None:
        raise refuse([(name, module) for name, module, _ in ends], logits, last_layer)
    return _with_taps(Backbone(model, ending), few, layers, ran)


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile` and data-parallel wrappers, which know nothing of hooks added later."""
    if isinstance(model, torch.jit.ScriptModule):
        raise BackboneError(expected("model", "a network in Python", "TorchScript, which cannot be watched running"))
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _with_taps(backbone: Backbone, few: Any, layers: str | Sequence[str], ran: list[Ran]) -> Backbone:
    """Add the taps that `layers` asks for."""
    if isinstance(layers, str) and layers == "last":
        return backbone
    inputs = next((value for _, value in tensors_of(few) if value.is_floating_point() and value.ndim > 2), None)
    seen = {module.name for module in ran}
    modules = dict(backbone.model.named_modules())
    convolutional = (
        inputs is not None
        and inputs.ndim == 3
        and any(isinstance(modules[name], nn.Conv1d) and modules[name].kernel_size != (1,) for name in seen)
    )
    ran = [module for module in ran if module.name and module.name not in backbone.ending.layers]
    if isinstance(layers, str):
        if layers != "auto":
            raise BackboneError(expected("layers", "'auto', 'last' or a list of module names", repr(layers)))
        taps = find_taps(ran, inputs, convolutional)
    else:
        taps = named_taps(list(layers), ran, inputs, convolutional, list(modules))
    with torch.no_grad():
        found = Backbone(backbone.model, backbone.ending, taps)(few)
    return Backbone(backbone.model, backbone.ending, _without_repeats(found, backbone.penultimate, taps))


def _without_repeats(features: Tensor, width: int, taps: Sequence[Tap]) -> list[Tap]:
    """Leave out means that are the penultimate features themselves, as those of the last stage often are."""
    kept = []
    start = width
    for tap in taps:
        channels = tap.columns // 2 if tap.reads == "both" else tap.columns
        means = features[:, start : start + channels]
        start += tap.columns
        repeats = channels == width and torch.allclose(means, features[:, :width], rtol=1e-3, atol=1e-5)
        if not repeats:
            kept.append(tap)
        elif tap.reads == "both":
            kept.append(Tap(tap.name, tap.layout, channels, "deviation"))
    return kept


@torch.no_grad()
def _check_repeats(model: nn.Module, inputs: Any, logits: Tensor) -> None:
    """Refuse a model that is not a function of its input: nothing it says could be stored."""
    with evaluating(model):
        again = logits_of(call(model, inputs))
    if again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        got = "different outputs in two passes over one batch, in eval mode; is there randomness in `forward`?"
        raise BackboneError(expected("model", "one that returns the same output for the same input", got))


def _refuse_name(name: str, modules: dict[str, nn.Module]) -> None:
    known = [known for known, module in modules.items() if is_last_layer(module)]
    got = f"{name!r}, a {type(modules[name]).__name__}" if name in modules else repr(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise BackboneError(expected("last_layer", "the name of a linear layer of the model", got) + hint)
