"""How good the predictions and their uncertainties are. Out-of-distribution is the positive class throughout."""

from repulse.metrics.calibration import accuracy, brier, ece, nll, reliability
from repulse.metrics.ranking import aupr, auroc, fpr_at_95, roc_curve
from repulse.metrics.selective import aurc, risk_coverage

__all__ = [
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "ece",
    "fpr_at_95",
    "nll",
    "reliability",
    "risk_coverage",
    "roc_curve",
]
