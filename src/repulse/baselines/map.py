"""MAP: the network alone, ranked by the entropy of its softmax (Hendrycks and Gimpel, 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from repulse.baselines.detector import Detector
from repulse.baselines.registry import register


@register
@dataclass
class MAP(Detector):
    """Score by the entropy of the prediction of the network, which is left as it is."""

    name = "MAP"
    family = "network"
    seconds = 3.0
