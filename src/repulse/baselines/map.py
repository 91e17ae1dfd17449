"""MAP: the network alone, ranked by the entropy of its softmax (Hendrycks and Gimpel, 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from repulse.baselines.contract import Detector


@dataclass
class MAP(Detector):
    """The network as it is; its score is the entropy of its prediction."""

    name: ClassVar[str] = "MAP"
