"""Find the last linear layer of a network by running it, and read the features that enter it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.errors import BackboneError, expected
from repulse.modes import evaluating


class Backbone(nn.Module):
    """A network seen as features and a last linear layer; the network itself is shared, not copied or changed.

    Attributes:
        model: the network.
        last_name: name of its last linear layer.
    """

    def __init__(self, model: nn.Module, last_name: str) -> None:
        super().__init__()
        self.model = model
        self.last_name = last_name

    @property
    def last(self) -> nn.Linear:
        """The last layer."""
        layer = self.model.get_submodule(self.last_name)
        if not isinstance(layer, nn.Linear):
            raise BackboneError(expected(self.last_name, "a linear layer", type(layer).__name__))
        return layer

    def forward(self, x: Tensor) -> Float[Tensor, "B d"]:
        """The features that enter the last layer, in eval mode."""
        captured: list[Tensor] = []
        caller = threading.get_ident()  # the model may be serving other threads, whose features are theirs

        def capture(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if threading.get_ident() == caller:
                captured.append(inputs[0])

        hook = self.last.register_forward_pre_hook(capture)
        try:
            with evaluating(self.model):
                self.model(x)
        finally:
            hook.remove()
        if not captured:
            raise BackboneError(expected("model", f"one that runs `{self.last_name}`", "a pass without it"))
        return captured[-1]


def split(model: nn.Module, batch: Tensor) -> Backbone:
    """Find the linear layer that produces the network's output, by running one batch, and check that it does.

    Args:
        model: any module that maps a batch to `(B, K)` logits.
        batch: one batch of inputs on the model's device.

    Raises:
        BackboneError: no linear layer computes the output.
    """
    ran: list[tuple[str, Any]] = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output, name=name: ran.append((name, inputs[0].detach())))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with evaluating(model), torch.no_grad():
            outputs = model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise BackboneError(expected("model(batch)", "a tensor of shape (batch, outputs)", got))
    if not ran:
        raise BackboneError(expected("model", "a network with a linear layer", "one that runs none"))
    name, features = ran[-1]
    layer = model.get_submodule(name)
    again = nn.functional.linear(features, layer.weight, layer.bias)  # pyright: ignore[reportArgumentType]
    if again.shape != outputs.shape or not torch.allclose(again, outputs, rtol=1e-3, atol=1e-4):
        raise BackboneError(
            expected(
                "model",
                "a network whose output is that of its last linear layer",
                f"something else after `{name}`; if it is a softmax, let the model return logits",
            )
        )
    if features.ndim != 2:
        raise BackboneError(expected(f"the input of `{name}`", "of shape (batch, features)", tuple(features.shape)))
    return Backbone(model, name)
