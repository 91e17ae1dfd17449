"""Which inputs to label next: by uncertainty, one by one or as a batch."""

from repulse.active.acquire import Acquisition, ActiveLearning, acquire
from repulse.active.batchbald import batchbald

__all__ = ["Acquisition", "ActiveLearning", "acquire", "batchbald"]
