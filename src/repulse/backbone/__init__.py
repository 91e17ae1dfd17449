"""The network as it was: where it ends, and the features it computes before that."""

from repulse.backbone.endings import Ending
from repulse.backbone.features import Features, compute_features
from repulse.backbone.split import Backbone, split
from repulse.backbone.taps import Tap

__all__ = ["Backbone", "Ending", "Features", "Tap", "compute_features", "split"]
