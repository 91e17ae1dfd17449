"""The loop that learns: which inputs to label next, what the new labels change, which labels to look at again."""

from repulse.active.acquire import Acquisition, ActiveLearning, acquire
from repulse.active.audit import Audit, audit
from repulse.active.batchbald import batchbald
from repulse.active.update import forget, update

__all__ = ["Acquisition", "ActiveLearning", "Audit", "acquire", "audit", "batchbald", "forget", "update"]
