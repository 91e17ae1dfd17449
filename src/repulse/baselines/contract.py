"""The one contract that every method keeps, ours and the others', and the last layer that most of them start from.

`fit(features, targets)`, `predict(features) -> Prediction`, `score(features) -> (B,)`; a larger score means further out
of distribution, always. What ranks, tabulates or tests methods knows only this; a new method is one new file.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from repulse._files import write_whole
from repulse.errors import CheckpointError, DataError, RecipeError, check_positive_integer, expected
from repulse.particles.fit import fit_heads
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import LL_E

M = TypeVar("M", bound="Method")

CHUNK = 4096
"""Samples that a method looks at together, unless it needs less memory than that."""


@dataclass(frozen=True, eq=False)
class LastLayer:
    """A linear layer from features to logits: the network's own, or one fitted on features it never saw.

    Attributes:
        weight: `(K, d)`.
        bias: `(K,)`.
    """

    weight: Float[Tensor, "K d"]
    bias: Float[Tensor, " K"]

    @classmethod
    def fit(
        cls, features: Tensor, targets: Tensor, classes: int | None = None, taps: int = 0, seed: int = 0
    ) -> LastLayer:
        """One linear layer, fitted as one head of an ensemble is: for features that are more than the network's own."""
        recipe = LL_E.replace(heads=1, seed=seed)
        head = fit_heads(features, targets, None, recipe, classes=classes, taps=taps, progress=False)
        return cls(head.weight[0].detach(), head.bias[0].detach())

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return len(self.bias)

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return torch.addmm(self.bias, features.to(self.weight.dtype), self.weight.T)


class Method(ABC):
    """What every method does; subclasses are dataclasses and write `_fit`, `_predict` and, if it differs, `_score`.

    Settings are fields of the dataclass, and so is what the fit finds (with `init=False`, and no value before it).
    """

    name: ClassVar[str]
    """Short name, as tables print it."""
    seeded: ClassVar[bool] = False
    """Whether its result depends on a seed."""
    takes: ClassVar[str] = "features"
    """What `fit` and `predict` want: "features", or the network's own "inputs"."""

    @torch.inference_mode(False)  # whatever the caller's mode is
    @torch.enable_grad()
    def fit(self: M, features: Tensor, targets: Tensor) -> M:
        """Learn from training features `(N, d)` and their classes `(N,)`."""
        self._check(features)
        if not isinstance(targets, Tensor) or targets.shape != (len(features),) or targets.is_floating_point():
            got = f"{targets.dtype}, shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets)
            raise DataError(expected("targets", f"integers of shape ({len(features)},)", got))
        classes = self.classes
        if int(targets.min()) < 0 or (classes is not None and int(targets.max()) >= classes):
            got = f"classes from {int(targets.min())} to {int(targets.max())}"
            raise DataError(expected("targets", f"classes from 0 to {(classes or 0) - 1}", got))
        self._fit(features.detach(), targets.long())
        return self

    @torch.no_grad()
    def predict(self, features: Tensor) -> Prediction:
        """Class probabilities and uncertainty of features `(B, d)`."""
        self._check_fitted()
        self._check(features)
        return Prediction.cat([self._predict(part) for part in features.split(CHUNK)])

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """How far out of distribution each sample is, `(B,)`; larger is further."""
        return self.predict_and_score(features)[1]

    @torch.no_grad()
    def predict_and_score(self, features: Tensor) -> tuple[Prediction, Tensor]:
        """Both at once, which costs less than one after the other."""
        prediction = self.predict(features)
        parts, start = [], 0
        for part in features.split(CHUNK):
            parts.append(self._score(part, prediction[start : start + len(part)]))
            start += len(part)
        scores = torch.cat(parts)
        if bool(scores.isnan().any()):
            raise DataError(expected(f"scores of {self.name}", "numbers", f"{int(scores.isnan().sum())} NaN"))
        largest = torch.finfo(torch.float32).max
        return prediction, scores.double().clamp(-largest, largest).float()

    @property
    def classes(self) -> int | None:
        """Number of classes, if it is known before the fit."""
        return None

    @property
    def columns(self) -> int | None:
        """Dimension of the features, if it is known before the fit."""
        return None

    def _check(self, features: Tensor, name: str | None = None) -> None:
        """Refuse what cannot be features (or inputs)."""
        name = name or self.takes
        if not isinstance(features, Tensor):
            raise DataError(expected(name, "a tensor", type(features).__name__))
        flat = self.takes == "features"
        if not len(features) or (flat and features.ndim != 2):
            got = f"shape {tuple(features.shape)}"
            raise DataError(expected(name, "of shape (samples, dimensions), not empty", got))
        if flat and self.columns is not None and features.shape[1] != self.columns:
            raise DataError(expected(name, f"of shape (samples, {self.columns})", f"shape {tuple(features.shape)}"))
        if not bool(torch.isfinite(features).all()):
            raise DataError(expected(name, "finite", "NaN or infinite values"))

    def _check_fitted(self) -> None:
        if not all(hasattr(self, field.name) for field in fields(self)):  # pyright: ignore[reportArgumentType]
            raise DataError(f"Expected {self.name} to be fitted first; call `fit(features, targets)`.")

    @abstractmethod
    def _fit(self, features: Tensor, targets: Tensor) -> None: ...

    @abstractmethod
    def _predict(self, features: Tensor) -> Prediction: ...

    def _score(self, features: Tensor, prediction: Prediction) -> Tensor:
        """What members disagree on; of a single member, its entropy."""
        return prediction.epistemic if prediction.members > 1 else prediction.total

    def save(self, path: str | Path) -> Path:
        """Keep the settings and what was fitted in one safetensors file."""
        self._check_fitted()
        tensors: dict[str, Tensor] = {}
        settings: dict[str, Any] = {}
        for field in fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = value.contiguous()
            elif isinstance(value, LastLayer):
                tensors |= {
                    f"{field.name}.{part.name}": getattr(value, part.name).contiguous() for part in fields(value)
                }
            elif value is None or isinstance(value, bool | int | float | str):
                settings[field.name] = value
            else:
                raise CheckpointError(f"{self.name} cannot be saved: its `{field.name}` is no tensor or number.")
        path = Path(path)
        write_whole(path, save(tensors, {"method": type(self).__name__, "settings": json.dumps(settings)}))
        return path

    @classmethod
    def load(cls: type[M], path: str | Path) -> M:
        """Bring back what `save` kept."""
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, struct.error) as reason:
            raise CheckpointError(expected(f"the file {path}", "a saved method", str(reason))) from reason
        if about.get("method") != cls.__name__:
            raise CheckpointError(expected(f"the file {path}", f"a saved {cls.__name__}", about.get("method")))
        values: dict[str, Any] = {**json.loads(about["settings"]), **tensors}
        for name in {key.split(".")[0] for key in tensors if "." in key}:
            values[name] = LastLayer(values.pop(f"{name}.weight"), values.pop(f"{name}.bias"))
        known = {field.name: field.init for field in fields(cls)}  # pyright: ignore[reportArgumentType]
        if set(values) != set(known):
            raise CheckpointError(expected(f"the file {path}", f"{sorted(known)}", f"{sorted(values)}"))
        method = cls(**{name: value for name, value in values.items() if known[name]})
        for name, value in values.items():
            setattr(method, name, value)
        return method


@dataclass
class Detector(Method):
    """A method that keeps the network's own predictions and only ranks inputs in its own way.

    Args:
        layer: the network's last layer.
    """

    layer: LastLayer

    @property
    def classes(self) -> int:
        return self.layer.classes

    @property
    def columns(self) -> int:
        return self.layer.weight.shape[1]

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        """Nothing to learn, unless a subclass has."""

    def _predict(self, features: Tensor) -> ClassPrediction:
        return ClassPrediction(self.layer(features).log_softmax(dim=-1).unsqueeze(0))


def class_means(features: Tensor, targets: Int[Tensor, " N"], classes: int) -> tuple[Tensor, Tensor]:
    """Mean of each class in float64 `(K, d)`, zero where it has no sample, and how many samples each has."""
    check_positive_integer("classes", classes)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, targets, features.double())
    count = torch.bincount(targets, minlength=classes)
    return sums / count.clamp_min(1).unsqueeze(1), count


def check_share(share: float) -> None:
    """Refuse a share of the data to hold back that leaves nothing."""
    if not 0 <= share < 1:
        raise RecipeError(expected("share", "at least 0 and below 1", share))
