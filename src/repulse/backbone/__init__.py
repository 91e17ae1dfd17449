"""The network as it was: where it ends, and the features it computes before that."""

from repulse.backbone.features import Features, compute_features
from repulse.backbone.split import Backbone, split

__all__ = ["Backbone", "Features", "compute_features", "split"]
