"""Estimators for scikit-learn: `RepulseClassifier` and `RepulseRegressor`.

Given a trained network they retrofit it; without one they train a small perceptron on the standardised columns first.
Either way `fit` holds out some of the rows, which decide when to stop, the temperature and the noise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from repulse._extras import needs
from repulse.errors import DataError, expected
from repulse.integrations._perceptron import train_perceptron
from repulse.prediction import (
    ClassPrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    Prediction,
    RegressionPrediction,
)
from repulse.recipe import Recipe, check_recipe
from repulse.retrofit import AUTO, retrofit

with needs("scikit-learn", extra="sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

BATCH = 512
"""Rows that the network sees at once."""

MIN_HELD_OUT = 8
"""Rows below which nothing is held out: so few would decide by chance."""


class _Repulse(BaseEstimator):
    """What both estimators share: rows in, an ensemble inside, a `Prediction` out."""

    def __init__(
        self,
        network: nn.Module | None = None,
        *,
        hidden: tuple[int, ...] = (128, 128),
        epochs: int = 200,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        validation_fraction: float = 0.15,
        repulsion: Any = AUTO,
        recipe: Recipe | None = None,
        random_state: Any = 0,
    ) -> None:
        self.network = network
        self.hidden = hidden
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.repulsion = repulsion
        self.recipe = recipe
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags

    def predict_uncertainty(self, X: Any) -> Prediction:
        """Return everything that is known of each row, as `Ensemble.predict` does."""
        check_is_fitted(self)
        inputs = self._inputs(np.asarray(validate_data(self, X, reset=False, dtype="numeric", allow_nd=True)))
        return self._in_units(Prediction.cat([self.ensemble_.predict(part) for part in inputs.split(BATCH)]))

    def epistemic(self, X: Any) -> np.ndarray:
        """Return how far heads disagree on each row, `(n,)`: large where the training data has nothing like it."""
        return self.predict_uncertainty(X).epistemic.numpy()

    def aleatoric(self, X: Any) -> np.ndarray:
        """Return the uncertainty that all heads share, `(n,)`: large where equal rows had different targets."""
        return self.predict_uncertainty(X).aleatoric.numpy()

    def _fit(self, X: np.ndarray, targets: Tensor, outputs: int, recipe: Recipe, strata: np.ndarray | None) -> None:
        """Train a perceptron if there is no network, and retrofit it."""
        if self.network is None and X.ndim != 2:
            raise DataError(expected("X", "a table of rows and columns, or a `network` for other inputs", X.shape))
        seed = check_random_state(self.random_state).randint(2**31)
        self.columns_ = _Columns(X) if self.network is None else None
        kept, held = _split(len(X), self.validation_fraction, strata, seed)
        inputs = self._inputs(X)
        train = inputs[kept], targets[kept]
        validation = None if held is None else (inputs[held], targets[held])
        network = self.network
        if network is None:
            options = {"epochs": self.epochs, "lr": self.lr, "weight_decay": self.weight_decay, "seed": seed}
            options["labels"] = recipe.task == "multilabel"
            network = train_perceptron(train, validation, outputs, tuple(self.hidden), **options)
        self.ensemble_ = retrofit(
            network,
            list(zip(*(part.split(BATCH) for part in train), strict=True)),
            validation=None if validation is None else [validation],
            repulsion=self.repulsion,
            recipe=recipe.replace(seed=seed) if self.recipe is None else recipe,
            progress=False,
        )
        if self.network is None:
            self.ensemble_.double()

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Return rows as the network takes them; in double precision, if it is ours, for tables are small."""
        if self.columns_ is not None:
            return torch.from_numpy(self.columns_(X))
        return torch.from_numpy(np.ascontiguousarray(X, np.float32))

    def _in_units(self, prediction: Prediction) -> Prediction:
        return prediction.cpu()


class RepulseClassifier(ClassifierMixin, _Repulse):
    """A classifier of rows, into one class or several labels at once, whose probabilities come with two kinds of doubt.

    Several labels are targets `(n, K)` of 0 and 1, for which a recipe of a classification serves as well.

    Args:
        network: a trained `torch.nn.Module` that takes `X` as it is; its outputs are the classes in sorted order. If
            None, a perceptron is trained on the standardised columns.
        hidden: widths of the perceptron's hidden layers.
        epochs: passes over the rows when the perceptron is trained, at most.
        lr: its learning rate.
        weight_decay: its weight decay.
        validation_fraction: share of the rows to hold out; 0 for none.
        repulsion: where heads should disagree, as in `repulse.retrofit`.
        recipe: of the heads; `Recipe()` with a seed from `random_state` if None.
        random_state: of everything random.

    Attributes:
        classes_: the classes, sorted.
        ensemble_: the `repulse.Ensemble`, to save, export or plot.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train (without a network) and retrofit."""
        how = {"dtype": "numeric", "allow_nd": True, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, multi_output=True, **how)
        check_classification_targets(y)
        if y.ndim == 2 and type_of_target(y) == "multilabel-indicator":
            self.classes_ = np.arange(y.shape[1])
            targets = torch.from_numpy(np.asarray(y, np.float32))
            recipe = self.recipe or Recipe()
            if check_recipe(recipe).task == "classification":
                recipe = recipe.replace(task="multilabel")
            self._fit(X, targets, y.shape[1], _recipe_for(recipe, "multilabel"), None)
            return self
        y = column_or_1d(y, warn=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.network is not None:
            codes = self._codes_of_network(X, y, codes)
        if len(self.classes_) < 2:
            raise DataError(expected("y", "of at least two classes", "one class"))
        targets = torch.from_numpy(codes.astype(np.int64))
        self._fit(X, targets, len(self.classes_), _recipe_for(self.recipe, "classification"), codes)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class `(n, K)`, in the order of `classes_`; of several labels, of each."""
        prediction = self.predict_uncertainty(X)
        assert isinstance(prediction, ClassPrediction | MultilabelPrediction)
        probs = prediction.probs.double().numpy()
        if isinstance(prediction, MultilabelPrediction):
            return probs
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row; of several labels, 0 or 1 for each, `(n, K)`."""
        probs = self.predict_proba(X)
        if self.ensemble_.heads.task.kind == "multilabel":
            return (probs > 0.5).astype(np.int64)
        return self.classes_[probs.argmax(axis=1)]

    def _codes_of_network(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return class indices of a given network, some of which the rows may lack."""
        with torch.no_grad():
            outputs = self.network(torch.from_numpy(np.asarray(X[:2], np.float32))).shape[-1]  # pyright: ignore[reportOptionalCall]
        outputs = max(outputs, 2)
        if np.issubdtype(y.dtype, np.integer) and y.min() >= 0 and y.max() < outputs:
            self.classes_ = np.arange(outputs, dtype=y.dtype)
            return y
        if len(self.classes_) != outputs:
            wanted = f"of {outputs} classes, as many as the network has, or numbers below that"
            raise DataError(expected("y", wanted, f"{len(self.classes_)} classes"))
        return codes


class RepulseRegressor(RegressorMixin, _Repulse):
    """A regressor of rows, of one number or of several, that come with standard deviations.

    Args:
        network: a trained `torch.nn.Module` with one output per target that takes `X` as it is. If None, a perceptron
            is trained on the standardised columns.
        hidden: widths of the perceptron's hidden layers.
        epochs: passes over the rows when the perceptron is trained, at most.
        lr: its learning rate.
        weight_decay: its weight decay.
        validation_fraction: share of the rows to hold out; 0 for none.
        repulsion: where heads should disagree, as in `repulse.retrofit`.
        recipe: of the heads; `Recipe(task="regression")` with a seed from `random_state` if None.
        random_state: of everything random.

    Attributes:
        ensemble_: the `repulse.Ensemble`; that of a perceptron predicts in units of `scale_` around `centre_`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train (without a network) and retrofit."""
        how = {"dtype": "numeric", "allow_nd": True, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, y_numeric=True, multi_output=True, **how)
        y = np.asarray(y, np.float64)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        self.centre_, self.scale_ = np.zeros(y.shape[1:]), np.ones(y.shape[1:])
        if self.network is None:
            deviation = y.std(axis=0)
            self.centre_, self.scale_ = y.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
        targets = torch.from_numpy(((y - self.centre_) / self.scale_).astype(np.float32))
        self._fit(X, targets, math.prod(y.shape[1:]), _recipe_for(self.recipe, "regression"), None)
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of each row and, if asked, its standard deviation: noise and doubt together.

        Of several targets, `(n, D)` each.
        """
        prediction = self.predict_uncertainty(X)
        assert isinstance(prediction, RegressionPrediction | MultiregressionPrediction)
        mean = prediction.mean.double().numpy()
        return (mean, prediction.std.double().numpy()) if return_std else mean

    def _in_units(self, prediction: Prediction) -> Prediction:
        prediction = prediction.cpu()
        assert isinstance(prediction, RegressionPrediction | MultiregressionPrediction)
        scale, centre = (torch.from_numpy(np.asarray(one)).to(prediction.means) for one in (self.scale_, self.centre_))
        return replace(prediction, means=prediction.means * scale + centre, variances=prediction.variances * scale**2)


class _Columns:
    """Standardise columns by their mean and deviation; columns without any stay at zero."""

    def __init__(self, X: np.ndarray) -> None:
        X = np.asarray(X, np.float64)
        self.mean, self.std = X.mean(axis=0), X.std(axis=0)
        self.std[self.std < 1e-12 * np.maximum(np.abs(self.mean), 1e-300)] = 1.0

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (np.asarray(X, np.float64) - self.mean) / self.std


def _recipe_for(recipe: Recipe | None, task: Any) -> Recipe:
    if recipe is not None and check_recipe(recipe).task != task:
        raise DataError(expected("recipe", f"one of a {task}", recipe.task))
    return recipe or Recipe(task=task)


def _split(count: int, share: float, strata: np.ndarray | None, seed: int) -> tuple[Tensor, Tensor | None]:
    """Return indices of the rows to fit, and of those to hold out; None if that would be too few."""
    if isinstance(share, bool) or not 0 <= share < 1:
        raise DataError(expected("validation_fraction", "at least 0 and below 1", repr(share)))
    size = round(share * count)
    if size < MIN_HELD_OUT:
        return torch.arange(count), None
    if strata is not None and (np.bincount(strata)[np.unique(strata)].min() < 2 or len(np.unique(strata)) > size):
        strata = None
    kept, held = train_test_split(np.arange(count), test_size=size, random_state=seed, stratify=strata)
    return torch.from_numpy(kept), torch.from_numpy(held)
