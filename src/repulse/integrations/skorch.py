"""skorch: heads are fitted when its training ends, on the rows that it trained and validated on."""

from __future__ import annotations

from typing import Any

from repulse._extras import needs
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.recipe import Recipe
from repulse.retrofit import AUTO, retrofit

with needs("skorch", extra="skorch"):
    from skorch import NeuralNet, NeuralNetRegressor
    from skorch.callbacks import Callback


class Retrofit(Callback):
    """Retrofit the module of a skorch net at the end of its training; the net then has an `ensemble_`.

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
        net.ensemble_ = retrofit(  # pyright: ignore[reportAttributeAccessIssue]
            net.module_,
            net.get_iterator(train, training=False),
            validation=None if valid is None else net.get_iterator(valid, training=False),
            repulsion=self.repulsion,
            recipe=recipe,
            progress=bool(net.verbose),
        )
        if self.folder is not None:
            net.ensemble_.save(self.folder)  # pyright: ignore[reportAttributeAccessIssue]


def predict(net: NeuralNet, X: Any) -> Any:
    """Predict with uncertainty what skorch's `predict` takes, by the net's `ensemble_`."""
    ensemble = getattr(net, "ensemble_", None)
    if not isinstance(ensemble, Ensemble):
        raise DataError(expected("net", "trained with the callback `Retrofit`", "one without an `ensemble_`"))
    batches = net.get_iterator(net.get_dataset(X), training=False)
    return ensemble.predict((batch[0] for batch in batches), progress=False)
