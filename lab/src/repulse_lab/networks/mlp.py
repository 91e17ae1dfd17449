"""A plain network of linear layers and rectifiers, for toys."""

from __future__ import annotations

from torch import nn


class MLP(nn.Sequential):
    """Hidden layers of one width, then a linear one.

    Args:
        inputs: numbers that go in; images are flattened.
        outputs: numbers that come out.
        width: units of a hidden layer.
        layers: how many hidden layers.
    """

    def __init__(self, inputs: int, outputs: int, width: int = 128, layers: int = 3) -> None:
        widths = [inputs, *[width] * layers]
        hidden = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(widths[-1], outputs))
