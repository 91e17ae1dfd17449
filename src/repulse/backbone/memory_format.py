"""Which memory format a network computes faster in, found out on the first batches of a pass over much data.

Convolutions are often up to twice as fast on images that have their channels last in memory, and some are slower; it
depends on the network, the processor and the batch. So the first batches are computed both ways in turn, each once, and
the rest in the way that took less time. Weights stay as they are: a convolution arranges them for itself.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn

from repulse.backbone.batches import channels_last, first_samples, is_image, map_tensors, size_of, tensors_of
from repulse.backbone.endings import nearly_equal
from repulse.backbone.split import PROBE_SAMPLES, Backbone

TRIALS = 3
"""Number of batches that are timed in each format."""

MIN_BATCHES = 30
"""Minimum number of batches of a pass for which the choice is worth its time."""

MAX_TIME_RATIO = 0.9
"""Channels are put last if that takes at most this share of the time, so that chance seldom decides."""


class MemoryFormatChooser:
    """Runs a network, and sets its `channels_last` as soon as it knows what is faster.

    Args:
        backbone: the network.
        batches: how many the pass has, if known.
    """

    def __init__(self, backbone: Backbone, batches: int | None) -> None:
        self.backbone = backbone
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        convolves = any(isinstance(module, nn.Conv2d) for module in backbone.modules())
        self.trying = convolves and not backbone.channels_last and (batches is None or batches >= MIN_BATCHES)

    def __call__(self, inputs: Any) -> Tensor:
        """Compute the features of some inputs."""
        if not self.trying:
            return self.backbone.run(inputs)
        if not any(self.seconds.values()) and not self._agree(first_samples(inputs, PROBE_SAMPLES)):
            self.trying = False
            return self.backbone.run(inputs)
        last = len(self.seconds[True]) < len(self.seconds[False])
        started = time.perf_counter()
        features = self.backbone(map_tensors(inputs, channels_last) if last else inputs)
        features.sum().item()  # waits for a device that computes on its own
        self.seconds[last].append((time.perf_counter() - started) / max(size_of(inputs), 1))
        if len(self.seconds[True]) == TRIALS:
            self.trying = False
            self.backbone.channels_last = min(self.seconds[True]) < MAX_TIME_RATIO * min(self.seconds[False])
        return features

    def _agree(self, few: Any) -> bool:
        """Check whether there are images, and the network computes the same from them in both formats."""
        if not any(is_image(value) for _, value in tensors_of(few)):
            return False
        plain = self.backbone(few)
        try:
            other = self.backbone(map_tensors(few, channels_last))
        except RuntimeError:  # a view that wants channels first
            return False
        return nearly_equal(other, plain)
