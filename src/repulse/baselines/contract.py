"""The one contract of every method, ours and the baselines'.

    fit(features, targets) -> self
    predict(features)      -> Prediction
    score(features)        -> (B,), larger = more out-of-distribution, always

What a method is and needs are attributes of its class. Whatever ranks, tabulates, plots or tests methods knows only
this file; a new method is one new file in this folder (see `registry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from repulse._modes import without_autocast
from repulse.baselines import _checks, _saving
from repulse.baselines.resources import Resources
from repulse.errors import DataError, expected
from repulse.prediction import Prediction

M = TypeVar("M", bound="Method")

CHUNK = 4096
"""Maximum number of samples processed at once."""


@runtime_checkable
class Predictor(Protocol):
    """What can be evaluated: every fitted `Method`, `Heads`, `Networks`, `Ensemble`, or a class of yours."""

    def predict(self, x: Any, /) -> Prediction:
        """Return predictions with their uncertainty for a batch."""
        ...

    def score(self, x: Any, /) -> Tensor:
        """Return one number per sample, `(B,)`; larger means more out-of-distribution."""
        ...

    def predict_and_score(self, x: Any, /) -> tuple[Prediction, Tensor]:
        """Return both, from one pass if that is possible."""
        return self.predict(x), self.score(x)


class Method(ABC):
    """Base class of all methods; subclasses are dataclasses that define `_fit`, `_predict` and, if needed, `_score`.

    Settings are fields of the dataclass. So is what the fit finds, with `init=False` and no value before the fit.
    """

    name: str
    """Short name, as tables print it."""
    family: Literal["network", "logits", "distance", "density", "posterior", "outliers", "heads", "networks"]
    """What the score is computed from. Tables list methods in this order."""
    takes: Literal["features", "inputs"] = "features"
    """What `fit` and `predict` expect: features, or the inputs of the network."""
    random: bool = False
    """Whether the result depends on a seed."""
    uses_repulsion: bool = False
    """Whether the fit needs repulsion samples."""
    accepts_taps: bool = True
    """Whether features may include taps of earlier layers, which make them several times wider."""
    calibrates: bool = False
    """Whether `calibrate` changes anything."""
    chosen: tuple[str, ...] = ()
    """Fields with the constants that `calibrate` chooses."""
    extra: str | None = None
    """Optional dependencies that it needs: `pip install 'repulse[extra]'`."""
    seconds: float = 6.0
    """Approximate time of a fit on 50,000 samples of 64 features and its evaluation, on two CPU cores."""

    @classmethod
    def build(cls: type[M], resources: Resources) -> M:
        """Return the method with its fields `layer`, `outputs`, `repulsion`, `taps` and `seed` from the resources."""
        if cls.uses_repulsion and resources.repulsion is None:
            raise DataError(expected("repulsion", f"features of out-of-distribution samples for {cls.name}", "None"))
        given = {"layer", "outputs", "taps", "seed"} | ({"repulsion"} if cls.uses_repulsion else set())
        own = [field.name for field in fields(cls) if field.init]  # pyright: ignore[reportArgumentType]
        return cls(**{key: getattr(resources, key) for key in own if key in given})

    @torch.inference_mode(False)  # whatever the modes of the caller are
    @torch.enable_grad()
    @without_autocast()
    def fit(self: M, features: Tensor, targets: Tensor) -> M:
        """Learn from training features `(N, d)` and their classes `(N,)`."""
        _checks.check_features(self, features)
        _checks.check_targets(self, features, targets)
        self._fit(features.detach(), targets.long())
        return self

    @torch.no_grad()
    def predict(self, features: Tensor) -> Prediction:
        """Return class probabilities and their uncertainty for features `(B, d)`."""
        _checks.check_fitted(self)
        _checks.check_features(self, features)
        return Prediction.cat([self._predict(part) for part in features.split(CHUNK)])

    def score(self, features: Tensor) -> Tensor:
        """Return how far out-of-distribution each sample is, `(B,)`; larger is further."""
        return self.predict_and_score(features)[1]

    @torch.no_grad()
    def predict_and_score(self, features: Tensor) -> tuple[Prediction, Tensor]:
        """Return both from one pass."""
        prediction = self.predict(features)
        starts = range(0, len(features), CHUNK)
        parts = [self._score(features[i : i + CHUNK], prediction[i : i + CHUNK]) for i in starts]
        return prediction, _checks.finite_scores(self, torch.cat(parts))

    def calibrate(self: M, features: Tensor, targets: Tensor) -> M:
        """Adjust the confidence of the fitted method on samples that nothing was trained on.

        Does nothing unless `calibrates`.
        """
        return self

    def save(self, path: str | Path) -> Path:
        """Write the settings and what was fitted to one safetensors file."""
        _checks.check_fitted(self)
        return _saving.save(self, path)

    @classmethod
    def load(cls: type[M], path: str | Path) -> M:
        """Read what `save` wrote."""
        return _saving.load(cls, path)

    @property
    def classes(self) -> int | None:
        """Number of classes, if it is known before the fit."""
        return None

    @property
    def columns(self) -> int | None:
        """Dimension of the features, if it is known before the fit."""
        return None

    @abstractmethod
    def _fit(self, features: Tensor, targets: Tensor) -> None: ...

    @abstractmethod
    def _predict(self, features: Tensor) -> Prediction: ...

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        """Compute the score: unless overridden, the disagreement of members or the entropy of a single one."""
        return prediction.score
