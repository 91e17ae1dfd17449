"""One pass of a method over one set of data, batch by batch, in whatever form the data comes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from repulse.backbone.batches import size_of
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.evaluation.overlap import Index
from repulse.particles.heads import Particles
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction, mean_log_probs


@runtime_checkable
class Method(Protocol):
    """What can be evaluated. A `predict_and_score(x)` that returns both from one pass is used if there is one."""

    def predict(self, x: Any, /) -> Prediction:
        """Predictions for a batch."""
        ...

    def score(self, x: Any, /) -> Tensor:
        """One number a sample, `(B,)`; larger means further out of distribution."""
        ...


@dataclass(frozen=True)
class Pass:
    """What a pass leaves: of each sample no more than the metrics need.

    Attributes:
        scores: of each sample.
        shared: for each other set, which share of the samples is also there.
        seconds: that the method took.
        prediction: with targets, the mixture of all members; then also their `aleatoric` and `total` uncertainty.
    """

    scores: Tensor
    shared: dict[str, float]
    seconds: float
    prediction: Prediction | None = None
    targets: Tensor | None = None
    aleatoric: Tensor | None = None
    total: Tensor | None = None


def pass_over(
    method: Method, label: str, batches: Iterator[tuple[Any, Tensor | None]], known: dict[str, Index], own: Index
) -> Pass:
    """Predict batch by batch.

    Args:
        method: what predicts.
        label: name of the set, for messages.
        batches: inputs with targets, which are in distribution, or with None.
        known: indices of other sets, in which the inputs are looked up.
        own: index to which inputs with targets are added.
    """
    parts, copies, predictions, seconds = defaultdict(list), defaultdict(list), [], 0.0
    for inputs, targets in batches:
        began = time.perf_counter()
        prediction, scores = _predict_and_score(method, inputs, label)
        seconds += time.perf_counter() - began
        parts["scores"].append(scores)
        for key, index in known.items():
            copies[key].append(index.find(inputs))
        if targets is not None:
            own.add(inputs)
            predictions.append(_mixture(prediction))
            for key, part in (("targets", targets), ("aleatoric", prediction.aleatoric), ("total", prediction.total)):
                parts[key].append(part.cpu())
    shared = {key: float(torch.cat(found).double().mean()) for key, found in copies.items()}
    whole = {key: torch.cat(found) for key, found in parts.items()}
    return Pass(
        shared=shared, seconds=seconds, prediction=Prediction.cat(predictions) if predictions else None, **whole
    )


def _predict_and_score(method: Method, inputs: Any, label: str) -> tuple[Prediction, Tensor]:
    """Both from one pass where that can be, checked, on the CPU."""
    both, size = getattr(method, "predict_and_score", None), size_of(inputs)
    if both is not None:
        prediction, scores = both(inputs)
    else:
        prediction = method.predict(inputs)
        if isinstance(method, Ensemble | Particles):  # one head alone has nothing to disagree with
            scores = prediction.epistemic if prediction.members > 1 else prediction.total
        else:
            scores = method.score(inputs)
    if not isinstance(prediction, ClassPrediction | RegressionPrediction) or len(prediction) != size:
        got = f"{len(prediction)}" if isinstance(prediction, Prediction) else type(prediction).__name__
        raise DataError(expected(f"the predictions for a batch of {label!r}", f"{size}, one a sample", got))
    if not isinstance(scores, Tensor) or scores.shape != (size,):
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise DataError(expected(f"the scores of a batch of {label!r}", f"of shape ({size},)", got))
    if bool(torch.isnan(scores).any()):
        raise DataError(expected(f"the scores of {label!r}", "free of NaN", f"{int(scores.isnan().sum())} NaN"))
    return prediction.cpu(), scores.detach().double().cpu()


def _mixture(prediction: Prediction) -> Prediction:
    """Members only matter through their mean once the uncertainties are known, and many classes are much to keep."""
    if isinstance(prediction, ClassPrediction):
        return ClassPrediction(mean_log_probs(prediction.log_probs).unsqueeze(0))
    return prediction
