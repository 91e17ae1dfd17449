"""What methods are built from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from repulse.baselines.last_layer import LastLayer


@dataclass(frozen=True)
class Resources:
    """Everything that a method may need before its fit.

    Attributes:
        layer: the last layer of the network.
        repulsion: features of the repulsion samples, for methods that use them.
        taps: number of columns of the features, the last ones, that are taps of earlier layers.
        seed: for methods that are random.
    """

    layer: LastLayer
    repulsion: Tensor | None = None
    taps: int = 0
    seed: int = 0

    @property
    def outputs(self) -> int:
        """Number of classes."""
        return self.layer.classes
