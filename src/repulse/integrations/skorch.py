"""skorch: heads are fitted when its training ends, on the rows that it trained and validated on."""

from __future__ import annotations

from typing import Any

from repulse._extras import needs
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.prediction import Prediction
from repulse.recipe import Recipe
from repulse.retrofit import AUTO, retrofit

with needs("skorch", extra="skorch"):
    from skorch import NeuralNet, NeuralNetRegressor
    from skorch.callbacks import Callback


class Retrofit(Callback):
    """Retrofit the module of a skorch net at the end of its training; `ensemble_of(net)` and `predict(net, X)` use it.

    The rows that skorch holds out to watch its training (`train_split`) are the validation data.

    Args:
        repulsion: where heads should disagree, as in `repulse.retrofit`.
        recipe: of the heads; if None, `Recipe()`, or `Recipe(task="regression")` for a `NeuralNetRegressor`.
        folder: where to save the heads; None for nowhere.
    """

    def __init__(self, repulsion: Any = AUTO, recipe: Recipe | None = None, folder: str | None = None) -> None:
        self.repulsion = repulsion
        self.recipe = recipe
        self.folder = folder

    def on_epoch_end(self, net: NeuralNet, dataset_train: Any = None, dataset_valid: Any = None, **_: Any) -> None:
        """Remember the data sets of this training."""
        self.datasets_ = dataset_train, dataset_valid

    def on_train_end(self, net: NeuralNet, X: Any = None, y: Any = None, **_: Any) -> None:
        """Fit the heads on the data that was trained on."""
        train, valid = self.datasets_
        recipe = self.recipe
        if recipe is None and isinstance(net, NeuralNetRegressor):
            recipe = Recipe(task="regression")
        self.ensemble_ = retrofit(
            net.module_,
            net.get_iterator(train, training=False),
            validation=None if valid is None else net.get_iterator(valid, training=False),
            repulsion=self.repulsion,
            recipe=recipe,
            progress=bool(net.verbose),
        )
        if self.folder is not None:
            self.ensemble_.save(self.folder)


def ensemble_of(net: NeuralNet) -> Ensemble:
    """Return the ensemble that the callback made of a net."""
    for _, callback in getattr(net, "callbacks_", ()):
        if isinstance(callback, Retrofit) and hasattr(callback, "ensemble_"):
            return callback.ensemble_
    raise DataError(expected("net", "trained with the callback `Retrofit`", "one that was not"))


def predict(net: NeuralNet, X: Any) -> Prediction:
    """Predict with uncertainty what skorch's own `predict` takes."""
    batches = net.get_iterator(net.get_dataset(X), training=False)
    return ensemble_of(net).predict((batch[0] for batch in batches), progress=False)
