"""Lightning: a callback that retrofits when training ends, and a module that tests and predicts with an ensemble."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repulse import metrics
from repulse._extras import needs
from repulse._operators import define_missing
from repulse.backbone.batches import inputs_and_targets
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction
from repulse.recipe import Recipe
from repulse.retrofit import AUTO, retrofit

with needs("lightning", extra="lightning"):
    define_missing()
    from lightning.pytorch import Callback, LightningModule, Trainer


class Retrofit(Callback):
    """Retrofit the network when training ends, log what was measured, and save the heads beside the checkpoint.

    Heads belong to one state of the network. If the trainer writes checkpoints, that is the best one (the last, if it
    monitors nothing), of which a copy is retrofitted; otherwise the network as it is. The heads of `epoch=3.ckpt` are
    saved in `epoch=3.heads/`. In a distributed run all processes take part, as in `repulse.retrofit`.

    Args:
        network: name of the attribute of your module that is the network; the module itself if None.
        repulsion: where heads should disagree, as in `repulse.retrofit`.
        recipe: of the heads.
        folder: where to save the heads instead.
        options: other arguments of `repulse.retrofit`.

    Attributes:
        ensemble: the ensemble, once training has ended.
        folder: where its heads were saved, if they were.
    """

    def __init__(
        self,
        network: str | None = None,
        *,
        repulsion: Any = AUTO,
        recipe: Recipe | None = None,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.network, self.repulsion, self.recipe, self.options = network, repulsion, recipe, options
        self.folder = None if folder is None else Path(folder)
        self.ensemble: Ensemble | None = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Retrofit on the trainer's own loaders."""
        checkpoint = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if checkpoint:
            kept = torch.load(checkpoint, map_location=pl_module.device, weights_only=True)
            pl_module = _copy(pl_module)
            pl_module.load_state_dict(kept["state_dict"])
        network = pl_module if self.network is None else pl_module.get_submodule(self.network)
        self.ensemble = retrofit(
            network,
            _loader("train_dataloader", trainer.train_dataloader),
            validation=None if trainer.val_dataloaders is None else _loader("val_dataloaders", trainer.val_dataloaders),
            repulsion=self.repulsion,
            recipe=self.recipe,
            **self.options,
        )
        self._log(trainer)
        if checkpoint and self.folder is None:
            self.folder = Path(checkpoint).with_suffix(".heads")
        if self.folder is not None and trainer.is_global_zero:
            self.ensemble.save(self.folder)

    def _log(self, trainer: Trainer) -> None:
        """Log the summary of the fit, with names such as `repulse/validation/ensemble/nll`."""
        assert self.ensemble is not None
        summary = self.ensemble.summary()
        found = {f"{kind}/{name}": v for kind in ("network", "ensemble") for name, v in getattr(summary, kind).items()}
        if summary.separation is not None:
            found["separation"] = summary.separation
        for logger in trainer.loggers:
            logger.log_metrics({f"repulse/{summary.data}/{name}": v for name, v in found.items()}, trainer.global_step)


class EnsembleModule(LightningModule):
    """An ensemble for `trainer.predict`, which returns a mapping of tensors per batch, and for `trainer.test`.

    Args:
        ensemble: that `repulse.retrofit` made, or `repulse.load`.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.ensemble = ensemble
        self._seen: list[tuple[Prediction, torch.Tensor]] = []

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Return what the ensemble returns in place of logits."""
        return self.ensemble(*inputs, **named)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, torch.Tensor]:
        """Return `probs` (or `mean`), `aleatoric` and `epistemic` of one batch: Lightning takes no frozen classes."""
        prediction = self.ensemble.predict(batch, progress=False).cpu()
        what = "mean" if isinstance(prediction, RegressionPrediction) else "probs"
        return {name: getattr(prediction, name) for name in (what, "aleatoric", "epistemic")}

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Predict one labelled batch."""
        _, targets = inputs_and_targets(batch, f"test batch {batch_idx}")
        self._seen.append((self.ensemble.predict(batch, progress=False).cpu(), targets.cpu()))

    def on_test_epoch_end(self) -> None:
        """Log accuracy, NLL and ECE (or RMSE, NLL and coverage) over all test batches, and the mean doubts."""
        prediction = Prediction.cat([part for part, _ in self._seen])
        targets = torch.cat([part for _, part in self._seen])
        self._seen.clear()
        found = {"nll": metrics.nll(prediction, targets)}
        if isinstance(prediction, ClassPrediction):
            found |= {"accuracy": metrics.accuracy(prediction, targets), "ece": metrics.ece(prediction, targets)}
        if isinstance(prediction, RegressionPrediction):
            found |= {"rmse": metrics.rmse(prediction, targets)}
            found["coverage_95"] = metrics.interval_coverage(prediction, targets)
        found |= {name: float(getattr(prediction, name).mean()) for name in ("aleatoric", "epistemic")}
        self.log_dict({f"test/{name}": float(value) for name, value in found.items()})


def _copy(module: LightningModule) -> LightningModule:
    """Copy a module without its trainer, which holds loaders and processes."""
    trainer, module.trainer = module.trainer, None
    try:
        return copy.deepcopy(module)
    finally:
        module.trainer = trainer


def _loader(name: str, loaders: Any) -> Any:
    """Return the trainer's loader, of which there must be one."""
    if isinstance(loaders, list | tuple) and len(loaders) == 1:
        loaders = loaders[0]
    if loaders is None or isinstance(loaders, list | tuple | dict | nn.Module):
        raise DataError(expected(f"trainer.{name}", "one loader", f"a {type(loaders).__name__}"))
    return loaders
