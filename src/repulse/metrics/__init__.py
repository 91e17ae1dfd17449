"""Pure functions that measure predictions and their uncertainties. Out-of-distribution is always the positive class."""

from repulse.metrics.calibration import accuracy, brier, ece, nll, reliability
from repulse.metrics.human import human_correlation
from repulse.metrics.multilabel import label_auroc, label_average_precision, label_ece, label_f1, label_nll
from repulse.metrics.ranking import aupr, auroc, fpr_at_95, misclassification_auroc, roc_curve
from repulse.metrics.regression import interval_coverage, rmse
from repulse.metrics.resampling import Interval, bootstrap
from repulse.metrics.selective import aurc, coverage_at_risk, risk_coverage
from repulse.metrics.streaming import PositionMetrics, StreamingRanking

__all__ = [
    "Interval",
    "PositionMetrics",
    "StreamingRanking",
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "coverage_at_risk",
    "ece",
    "fpr_at_95",
    "human_correlation",
    "interval_coverage",
    "label_auroc",
    "label_average_precision",
    "label_ece",
    "label_f1",
    "label_nll",
    "misclassification_auroc",
    "nll",
    "reliability",
    "risk_coverage",
    "rmse",
    "roc_curve",
]
