"""OpenOOD: a postprocessor, so that its evaluator can run `repulse` as one more row of its benchmark.

OpenOOD asks that postprocessors inherit from its own class, have `setup`, `postprocess` and `inference`, and return a
confidence that is larger inside the distribution: here the negative of the ensemble's score. It is not on PyPI; where
it is not installed the same class works on its own, with loaders of the form that OpenOOD's have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.prediction import ClassPrediction
from repulse.retrofit import retrofit

METRICS = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
"""Columns of OpenOOD's table, in percent; out of distribution is the positive class of all but AUPR_IN."""


def postprocessor(ensemble: Ensemble | None = None, **options: Any) -> Any:
    """Return a postprocessor for OpenOOD's `Evaluator(net, id_name, postprocessor=...)`.

    Args:
        ensemble: if there is one already; otherwise `setup` retrofits the net on the benchmark's training data, with
            its in-distribution validation data. It looks at no out-of-distribution data.
        options: other arguments of `repulse.retrofit`.
    """
    bases: tuple[type, ...] = (RepulsePostprocessor,)
    with suppress(ImportError):
        from openood.postprocessors import BasePostprocessor  # pyright: ignore[reportMissingImports]

        bases = (RepulsePostprocessor, BasePostprocessor)
    return type("RepulsePostprocessor", bases, {})(ensemble, **options)


class RepulsePostprocessor:
    """What OpenOOD calls; made by `postprocessor`.

    Attributes:
        ensemble: the ensemble, once `setup` was called.
    """

    APS_mode = False
    """No hyperparameter is searched on the benchmark's validation data."""
    hyperparam_search_done = True

    def __init__(self, ensemble: Ensemble | None = None, **options: Any) -> None:
        self.config, self.ensemble, self.options = None, ensemble, options

    def setup(self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]) -> None:
        """Retrofit the net, unless there is an ensemble."""
        if self.ensemble is None:
            validation = _Pairs(id_loader_dict["val"]) if "val" in id_loader_dict else None
            options = {"validation": validation, **self.options}
            self.ensemble = retrofit(net, _Pairs(id_loader_dict["train"]), **options)

    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted class and the confidence of each input."""
        if self.ensemble is None:
            raise DataError(expected("the postprocessor", "set up, by `setup` or with an `ensemble`", "neither"))
        prediction = self.ensemble.predict(data, progress=False)
        assert isinstance(prediction, ClassPrediction)
        return prediction.labels, -prediction.score

    def inference(
        self, net: nn.Module, data_loader: Any, progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return predictions, confidences and labels of a loader of mappings with `data` and `label`."""
        found = [(*self.postprocess(net, data), label) for data, label in _Pairs(data_loader)]
        predicted, confidence, labels = (torch.cat(column).cpu().numpy() for column in zip(*found, strict=True))
        return predicted.astype(int), confidence, labels.astype(int)


def evaluator(net: nn.Module, id_name: str, ensemble: Ensemble | None = None, **options: Any) -> Any:
    """Return OpenOOD's own `Evaluator` with this postprocessor; `.eval_ood()` prints and returns its table.

    Args:
        net: the base classifier, as OpenOOD takes it.
        id_name: its name of the benchmark, such as "cifar10".
        ensemble: as in `postprocessor`.
        options: other arguments of the `Evaluator`, such as `data_root` and `batch_size`.
    """
    try:
        from openood.evaluation_api import Evaluator  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as reason:
        message = "This needs OpenOOD, which is installed from its repository (see its README)."
        raise ModuleNotFoundError(message, name=reason.name) from reason
    return Evaluator(net, id_name, postprocessor=postprocessor(ensemble), **options)


class _Pairs:
    """A loader of OpenOOD's batches, as pairs of inputs and labels; it can be read again."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader:
            yield batch["data"], batch["label"]

    def __len__(self) -> int:
        return len(self.loader)
