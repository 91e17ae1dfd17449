"""Checks that all metrics share, so that a wrong argument is named in one sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repulse.errors import DataError, RecipeError, check_dense, check_positive_integer, expected
from repulse.prediction import (
    ClassPrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    PositionPrediction,
    Prediction,
    RegressionPrediction,
)
from repulse.prediction.base import P
from repulse.prediction.multilabel import check_labels

MOST_BINS = 2**20


def checked(prediction: Any, targets: Any, kind: type[P] = Prediction) -> tuple[P, Tensor]:
    """Return a prediction of this kind and its targets, on the CPU, with targets of the type that the kind needs."""
    if not isinstance(prediction, kind):
        raise DataError(expected("prediction", f"a {kind.__name__}", type(prediction).__name__))
    if not isinstance(targets, Tensor):
        raise DataError(expected("targets", "a tensor", type(targets).__name__))
    _check_real("targets", targets)
    if isinstance(prediction, PositionPrediction):
        wanted = "one output per input; `PositionMetrics` counts over positions"
        raise DataError(expected("prediction", f"of {wanted}", type(prediction).__name__))
    shape = prediction.target_shape
    if tuple(targets.shape) != shape or not len(prediction):
        got = f"shape {tuple(targets.shape)}"
        soft = isinstance(prediction, ClassPrediction) and targets.shape == prediction.log_probs.shape[1:]
        got += "; of probabilities of classes take `targets.argmax(dim=1)`" if soft else ""
        raise DataError(expected("targets", f"of shape {shape}, not empty", got))
    prediction, targets = prediction.cpu(), targets.cpu()
    if isinstance(prediction, MultilabelPrediction):
        targets = targets.float()
        check_labels("targets", targets, shape)
    if isinstance(prediction, ClassPrediction):
        _check_classes(prediction, targets)
        targets = targets.long()
    if isinstance(prediction, RegressionPrediction | MultiregressionPrediction):
        _check_numbers(prediction, targets)
    return prediction, targets  # pyright: ignore[reportReturnType]


def vector(name: str, values: Any, what: str = "values") -> Tensor:
    """Return a non-empty vector without NaN, in double precision on the CPU; infinite values are allowed."""
    if not isinstance(values, Tensor):
        hint = f"; pass one of its {what}, such as `.epistemic`" if isinstance(values, Prediction) else ""
        raise DataError(expected(name, f"a vector of {what}", f"{type(values).__name__}{hint}"))
    _check_real(name, values)
    if values.ndim != 1 or not len(values):
        raise DataError(expected(name, f"a non-empty vector of {what}", f"shape {tuple(values.shape)}"))
    if bool(torch.isnan(values).any()):
        raise DataError(expected(name, "free of NaN", f"{int(torch.isnan(values).sum())} NaN {what}"))
    return values.detach().double().cpu()


def check_bins(bins: Any) -> None:
    """Refuse what is no number of bins, or one for which no memory is left."""
    check_positive_integer("bins", bins)
    if bins > MOST_BINS:
        raise RecipeError(expected("bins", f"at most {MOST_BINS:,}", f"{bins:,}"))


def _check_real(name: str, values: Tensor) -> None:
    check_dense(name, values)
    if values.is_complex():
        raise DataError(expected(name, "real numbers", f"{values.dtype}"))


def check_share(name: str, value: Any) -> None:
    """Refuse what does not lie strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise RecipeError(expected(name, "a number between 0 and 1", repr(value)))


def _check_classes(prediction: ClassPrediction, targets: Tensor) -> None:
    classes = prediction.log_probs.shape[-1]
    if targets.is_floating_point() or int(targets.min()) < 0 or int(targets.max()) >= classes:
        got = f"{targets.dtype} from {targets.min()} to {targets.max()}"
        raise DataError(expected("targets", f"integers from 0 to {classes - 1}", got))
    if bool(torch.isnan(prediction.log_probs).any()):
        raise DataError(expected("prediction", "free of NaN", "NaN log-probabilities"))


def _check_numbers(prediction: RegressionPrediction | MultiregressionPrediction, targets: Tensor) -> None:
    if not bool(torch.isfinite(targets).all()):
        raise DataError(expected("targets", "finite", "NaN or infinite values"))
    if not bool(torch.isfinite(prediction.means).all() & torch.isfinite(prediction.variances).all()):
        raise DataError(expected("prediction", "finite", "NaN or infinite means or variances"))
    if bool((prediction.variances <= 0).any()):
        raise DataError(expected("prediction", "of positive variances", f"{float(prediction.variances.min()):.3g}"))
