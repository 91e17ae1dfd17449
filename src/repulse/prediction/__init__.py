"""What predictions hold: one file per kind of output, and how uncertainty splits into aleatoric and epistemic parts."""

from repulse.prediction.base import Prediction, as_columns
from repulse.prediction.classes import ClassAnswer, ClassPrediction
from repulse.prediction.multilabel import MultilabelPrediction
from repulse.prediction.multiregression import MultiregressionPrediction
from repulse.prediction.numbers import RegressionAnswer, RegressionPrediction
from repulse.prediction.positions import DensePrediction, PositionPrediction, TokenPrediction
from repulse.prediction.uncertainty import entropy, expected_entropy, mean_log_probs, mutual_information, uncertainties

__all__ = [
    "ClassAnswer",
    "ClassPrediction",
    "DensePrediction",
    "MultilabelPrediction",
    "MultiregressionPrediction",
    "PositionPrediction",
    "Prediction",
    "RegressionAnswer",
    "RegressionPrediction",
    "TokenPrediction",
    "as_columns",
    "entropy",
    "expected_entropy",
    "mean_log_probs",
    "mutual_information",
    "uncertainties",
]
