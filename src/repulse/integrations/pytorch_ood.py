"""pytorch-ood: the ensemble as one of its detectors, so that its metrics and benchmarks take it as they take others."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn

from repulse._extras import needs
from repulse._operators import define_missing
from repulse.ensemble import Ensemble
from repulse.retrofit import retrofit

with needs("pytorch-ood", extra="pytorch-ood"):
    define_missing()
    from pytorch_ood.api import Detector, RequiresFittingException


class RepulseDetector(Detector):
    """Score inputs by the disagreement of heads: larger is further out of distribution, as everywhere in pytorch-ood.

    Args:
        model: a trained network, which `fit` retrofits, or an `Ensemble`, which is used as it is.
        options: other arguments of `repulse.retrofit`, such as `validation`.
    """

    requires_fit = True

    def __init__(self, model: nn.Module | Ensemble, **options: Any) -> None:
        self.model, self.options = model, options
        self.ensemble = model if isinstance(model, Ensemble) else None

    def fit(self, data_loader: Any) -> Self:
        """Retrofit the network on training data; an ensemble that was given stays as it is.

        Labels below 0, which mark other data in pytorch-ood, have no place in it.
        """
        if not isinstance(self.model, Ensemble):
            self.ensemble = retrofit(self.model, data_loader, **self.options)
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Return the score of each input, `(B,)`."""
        if self.ensemble is None:
            raise RequiresFittingException
        return self.ensemble.score(x)
