"""One pass of a method over one set of data, batch by batch, in whatever form the data comes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repulse.backbone.batches import rows_are_samples, size_of
from repulse.baselines.contract import Predictor
from repulse.errors import DataError, expected
from repulse.evaluation.overlap import Index
from repulse.metrics.streaming import PositionMetrics
from repulse.prediction import (
    ClassPrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    PositionPrediction,
    Prediction,
    RegressionPrediction,
    mean_log_probs,
)
from repulse.prediction.multilabel import label_mean_log_probs
from repulse.prediction.positions import UNLABELLED

KINDS = (ClassPrediction, MultilabelPrediction, RegressionPrediction, MultiregressionPrediction, PositionPrediction)
"""Predictions of which there are metrics."""


@dataclass(frozen=True)
class Pass:
    """What one pass over a set keeps: of each sample only what the metrics need.

    Attributes:
        scores: score of each sample.
        shared: for each other set, the share of the samples that it also contains.
        seconds: time that the method took.
        prediction: for sets with targets, the mixture of all members.
        targets: for sets with targets, these.
        aleatoric: for sets with targets, the aleatoric uncertainty of each prediction.
        total: for sets with targets, the total uncertainty of each prediction.
        positions: for sets with targets at every position, their metrics; then there is no prediction.
    """

    scores: Tensor
    shared: dict[str, float]
    seconds: float
    prediction: Prediction | None = None
    targets: Tensor | None = None
    aleatoric: Tensor | None = None
    total: Tensor | None = None
    positions: PositionMetrics | None = None


def pass_over(
    method: Predictor, label: str, batches: Iterator[tuple[Any, Tensor | None]], known: dict[str, Index], own: Index
) -> Pass:
    """Predict a set batch by batch.

    Args:
        method: what predicts.
        label: name of the set, for messages.
        batches: inputs with their targets if they are in-distribution, or with None.
        known: indices of other sets, to look up the inputs in.
        own: index to which inputs with targets are added.
    """
    parts, copies, predictions, seconds = defaultdict(list), defaultdict(list), [], 0.0
    positions: PositionMetrics | None = None
    for inputs, targets in batches:
        began = time.perf_counter()
        prediction, scores = _predict_and_score(method, inputs, label)
        seconds += time.perf_counter() - began
        parts["scores"].append(scores)
        for key, index in known.items():
            copies[key].append(index.find(inputs))
        if targets is not None and isinstance(prediction, PositionPrediction):
            own.add(inputs)
            positions = positions or PositionMetrics(prediction.probs.shape[prediction.class_axis])
            positions.update(prediction, targets)
        elif targets is not None:
            own.add(inputs)
            labels = targets.cpu()
            if isinstance(prediction, ClassPrediction) and labels.ndim == 1:  # others are refused where they are used
                prediction, labels = prediction[labels != UNLABELLED], labels[labels != UNLABELLED]
            predictions.append(_mixture(prediction))
            for key, part in (("targets", labels), ("aleatoric", prediction.aleatoric), ("total", prediction.total)):
                parts[key].append(part.cpu())
    joined = {key: torch.cat(found).double() for key, found in copies.items()}
    shared = {key: float(found.sum()) / max(len(found), 1) for key, found in joined.items()}
    whole = {key: torch.cat(found) for key, found in parts.items()}
    return Pass(
        shared=shared,
        seconds=seconds,
        prediction=Prediction.cat(predictions) if predictions else None,
        positions=positions,
        **whole,
    )


def _predict_and_score(method: Predictor, inputs: Any, label: str) -> tuple[Prediction, Tensor]:
    """Return both from one pass, checked and on the CPU."""
    prediction, scores = method.predict_and_score(inputs)
    size = size_of(inputs) if rows_are_samples(inputs) or not isinstance(prediction, KINDS) else len(prediction)
    if not isinstance(prediction, KINDS) or len(prediction) != size:
        got = f"{len(prediction)}" if isinstance(prediction, Prediction) else type(prediction).__name__
        raise DataError(expected(f"the predictions for a batch of {label!r}", f"{size}, one per sample", got))
    if not isinstance(scores, Tensor) or scores.shape != (size,):
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise DataError(expected(f"the scores of a batch of {label!r}", f"of shape ({size},)", got))
    if bool(torch.isnan(scores).any()):
        raise DataError(expected(f"the scores of {label!r}", "free of NaN", f"{int(scores.isnan().sum())} NaN"))
    return prediction.cpu(), scores.detach().double().cpu()


def _mixture(prediction: Prediction) -> Prediction:
    """Reduce members to their mean: once the uncertainties are known, metrics need no more."""
    if isinstance(prediction, ClassPrediction):
        return ClassPrediction(mean_log_probs(prediction.log_probs).unsqueeze(0))
    if isinstance(prediction, MultilabelPrediction):
        log_probs = label_mean_log_probs(prediction.logits)
        return MultilabelPrediction((log_probs[..., 1] - log_probs[..., 0]).unsqueeze(0))
    return prediction
