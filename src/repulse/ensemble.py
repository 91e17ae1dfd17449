"""Ensemble: a network and its heads, as one module that predicts with uncertainty."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from repulse import checkpoint
from repulse.backbone.batches import (
    as_inputs,
    describe_batch,
    explaining_failures,
    how_to_tensor,
    is_one_batch,
    map_tensors,
    rows_are_samples,
    size_of,
    tensors_of,
    to_device,
)
from repulse.backbone.fingerprint import fingerprint_of, weights_of
from repulse.backbone.places import Place, Places
from repulse.backbone.reading import all_of, bar, length_of, read_ahead, shuffles
from repulse.backbone.split import Backbone
from repulse.deploy import Deployed
from repulse.errors import DataError, DataWarning, expected
from repulse.kept import KeptFeatures, KeptIn
from repulse.particles.at_positions import combined_positions, predict_positions
from repulse.particles.heads import Heads
from repulse.particles.history import History
from repulse.prediction import Prediction
from repulse.recipe import Recipe
from repulse.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from repulse.decide.gate import Gate
    from repulse.decide.promise import Sets
    from repulse.decide.reason import Reason, Reasons


WITHIN = "; `decide.gate_within` accepts its parts"
"""What to take in place of a gate."""


class Ensemble(nn.Module):
    """The network that was retrofitted, with an ensemble of heads in place of its last layer.

    Called like the network it returns the logarithm of the mean class probabilities (or, for regression, the mean), so
    that it drops in wherever the network's logits went. `predict` tells what it does not know.

    Attributes:
        backbone: the network, shared and unchanged, seen as features and last layer.
        heads: the fitted heads.
        repulsion: in words, where the heads were made to disagree.
        class_names: names of the classes, if they are known.
        network: fingerprint of the network as it was when the heads were fitted.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: Heads,
        repulsion: str = "nowhere",
        class_names: Sequence[str] | None = None,
        network: Mapping[str, str] | None = None,
        summary: Summary | None = None,
        gate: checkpoint.KeptGate | None = None,
        kept: KeptFeatures | KeptIn | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = heads
        self.repulsion = repulsion
        self.class_names = None if class_names is None else tuple(class_names)
        self._summary, self._gate, self._kept = summary, gate, kept
        self._kept_in = kept if isinstance(kept, KeptIn) else None
        self.network = dict(fingerprint_of(backbone.model) if network is None else network)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the fit."""
        return self.heads.recipe

    @property
    def history(self) -> History:
        """Diagnostics of the fit, one record per epoch; a table in notebooks, `history.to_frame()` for pandas."""
        return History(self.heads.history)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the fit: the loss, and how far heads disagree on the data and where they repel each other.

        Args:
            path: where to write the figure, in the format of the suffix.
        """
        from repulse._pictures import fit_panels, save_picture

        figure = fit_panels(self.history)
        if path is not None:
            save_picture(figure, path)
        return figure

    def summary(self) -> Summary:
        """Return what was measured at the fit: network and ensemble side by side, and what was chosen or assumed."""
        if self._summary is None:
            raise DataError("This ensemble has no summary: it was not made by `retrofit`.")
        return self._summary

    @property
    def kept(self) -> KeptFeatures | None:
        """The features that the heads were fitted on, if they are at hand; those of a saved ensemble are read now."""
        if isinstance(self._kept, KeptIn):
            self._kept = self._kept.read(self.heads.features)
        return self._kept

    def _repr_html_(self) -> str:
        told = "" if self._summary is None else self._summary._repr_html_()
        return f"<p><code>{html.escape(repr(self))}</code></p>{told}"

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.backbone.model

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the modules that heads see: the taps, and the last layer, whose inputs they see."""
        return (*(tap.name for tap in self.backbone.taps), *self.backbone.ending.layers)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the log of the mean class probabilities, in the shape of the network's output, called as it is.

        Differentiable.

        In place of a single logit, the log of the odds; for regression the mean; `(B, 1)`, or `(B,)` if the network
        returns that.
        """
        x = as_inputs(self.model, inputs, named)
        if self.backbone.ending.positions:
            log_probs = combined_positions(self.heads, self.backbone.locate(x))
            return log_probs.movedim(1, -1) if self.backbone.ending.positions == "channels_last" else log_probs
        features = self.backbone(x)
        combined = self.heads.task.combined(self.heads(features))
        if self.backbone.outputs == 1 and combined.shape[1] == 2:  # a single logit was fitted as two
            combined = combined[:, 1:] - combined[:, :1]
        return combined.squeeze(1) if self.backbone.ending.flat else combined

    def predict(self, x: Any, progress: bool = True) -> Prediction:
        """Predict with uncertainty.

        Args:
            x: inputs (a tensor, a mapping of tensors, several in a tuple), one batch `(inputs, targets)` as the loader
                gives it, or a whole loader (a list of tensors that are all inputs is a loader).
            progress: show a bar over a loader when it takes more than two seconds.
        """
        return Prediction.cat(list(self._parts(x, progress)))

    def stream(self, loader: Any, progress: bool = True) -> Iterator[Prediction]:
        """Iterate over the predictions of one batch after another, however many there are: none is kept.

        Args:
            loader: batches, each as `predict` takes it.
            progress: show a bar when it takes more than two seconds.
        """
        if self._is_one_batch(loader) or not isinstance(loader, Iterable):
            got = "a single batch, which `predict` takes" if self._is_one_batch(loader) else type(loader).__name__
            raise DataError(expected("loader", "batches", got))
        return self._stream(loader, progress)

    def score(self, x: Any) -> Tensor:
        """Return how far out-of-distribution each sample is, `(B,)`; see `Prediction.score`.

        Of a loader only these numbers are kept.
        """
        return torch.cat([part.score for part in self._parts(x, progress=True)])

    def predict_and_score(self, x: Any) -> tuple[Prediction, Tensor]:
        """Return both from one pass."""
        prediction = self.predict(x)
        return prediction, prediction.score

    def gate(
        self,
        data: Any = None,
        *,
        false_alarms: float = 0.05,
        risk: float | None = None,
        delta: float = 0.05,
        alpha: float = 0.1,
        sets: Sets | None = None,
        by_class: bool = False,
        tolerance: float | None = None,
        progress: bool = True,
    ) -> Gate:
        """Make a gate, which decides on inputs with guarantees; without data, return the one that is kept.

        `gate(x)` then accepts the prediction, abstains, or calls the input foreign. `save` keeps the last gate that
        was made, and after `load` this method, called without arguments, returns it.

        Args:
            data: labelled data that neither the network nor the heads were fitted to: `(inputs, targets)` or a loader.
            false_alarms: largest share of inputs like these that may be called foreign, by their epistemic uncertainty.
            risk: largest share of wrong predictions among those accepted; None accepts all that is not foreign.
            delta: probability with which `risk` may be exceeded, over draws of the data.
            alpha: largest share of inputs like these whose set of classes, or interval, may miss the target.
            sets: how sets are made: "lac" (smallest; the default), "aps", "raps"; for numbers how intervals are:
                "normalised" (by the standard deviation; the default), "cqr" (by quantiles).
            by_class: let `false_alarms` hold within each predicted class, which takes more data.
            tolerance: for numbers, the error from which on a prediction is wrong; needed for `risk`.
            progress: show a bar when it takes more than two seconds.

        Raises:
            DataError: there are too few samples for what is to be promised, or no gate is kept.
        """
        from repulse.decide import gate as gates
        from repulse.decide.promise import Promise

        self.check_one_output("gate")
        if data is None:
            if self._gate is None:
                raise DataError(expected("data", "calibration data, as no gate is kept", None))
            return gates.restore(self, self._gate)
        kind = sets or ("lac" if self.heads.task.class_count is not None else "normalised")
        promise = Promise(false_alarms, risk, delta, alpha, kind, by_class, tolerance)
        gate = gates.calibrate(self, self.backbone.places.labelled(data), promise, progress)
        self._gate = gate.kept()
        return gate

    @property
    def kept_gate(self) -> checkpoint.KeptGate | None:
        """What is kept of the last gate: its promise and basis, and its calibration data."""
        return self._gate

    @property
    def has_gate(self) -> bool:
        """Whether a gate is kept, which `gate()` returns."""
        return self._gate is not None

    def save(self, folder: str | Path, features: bool = False) -> Path:
        """Write the heads, all that is known of their fit, and the last gate to a folder; the network is not in it.

        A kill leaves what was there before, or the new; `repulse.load(folder, model)` brings it back.

        Args:
            folder: made if it is not there.
            features: also write the features that the heads were fitted on, which `update`, `forget` and the nearest
                training inputs of `why` need: 4 bytes per feature and sample.
        """
        where = KeptIn(Path(folder), weights_of(self.heads))
        stay = self._kept_in is not None and Path(folder).resolve() == self._kept_in.folder.resolve()
        kept = where.write(self.required_features("features=True")) if features else where.files() if stay else []
        about = (self.repulsion, self.class_names, self.network, self._summary, self._gate)
        folder = checkpoint.save(checkpoint.Contents(self.backbone, self.heads, *about), folder)
        where.sweep(but=kept)
        return folder

    def update(self, data: Iterable[Any] | None = None, **options: Any) -> Ensemble:
        """Return an ensemble that has learnt new labelled data; see `repulse.active.update`."""
        from repulse.active.update import update

        self._check_whole("update")
        return update(self, data, **options)

    def forget(self, indices: Sequence[int] | Tensor, **options: Any) -> Ensemble:
        """Return an ensemble fitted without some of the training inputs; see `repulse.active.forget`."""
        from repulse.active.update import forget

        self._check_whole("forget")
        return forget(self, indices, **options)

    def why(self, x: Any, **options: Any) -> Reason | Reasons:
        """Explain the doubt about one input, or about each of a batch; see `repulse.decide.why`."""
        from repulse.decide.why import why

        return why(self, x, **options)

    def required_features(self, what: str) -> KeptFeatures:
        """Return the features that the heads were fitted on, which `what` needs."""
        kept = self.kept
        if kept is None:
            wanted = "an ensemble with the features of its fit, made by `retrofit` or saved with `features=True`"
            raise DataError(expected(f"the ensemble, for `{what}`,", wanted, "one without them"))
        return kept

    def _check_whole(self, what: str) -> None:
        """Refuse a verb that there is only for networks with one output per input."""
        if self.backbone.ending.positions:
            got = "one with an output at every position" + (WITHIN if what == "gate" else "")
            raise DataError(expected(f"the ensemble, for `{what}`,", "one with one output per input", got))

    def check_one_output(self, what: str) -> None:
        """Refuse a verb that there is only for one class or one number per input."""
        self._check_whole(what)
        task = self.heads.task
        if task.kind not in ("classification", "regression"):
            got = "one that predicts several " + ("labels" if task.kind == "multilabel" else "numbers")
            wanted = "one that predicts one class or one number per input"
            got += WITHIN if what == "gate" and task.kind == "multilabel" else ""
            raise DataError(expected(f"the ensemble, for `{what}`,", wanted, got))

    def deploy(self) -> Deployed:
        """Return a plain module that maps inputs to named tensors, for serving and for export.

        It checks nothing and adds no hooks when it is called: what `predict` refuses comes out as NaN. The memory of
        weights is shared with the network and the heads. If there is a gate, its p-value and decision are among the
        tensors.
        """
        gate = self.gate().deployed().to(next(self.heads.parameters()).device) if self.has_gate else None
        return Deployed(self.backbone, self.heads, gate)

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the whole ensemble, network included, as an ONNX file (needs `pip install 'repulse[onnx]'`).

        Outputs are those of `deploy`, such as `probs, aleatoric, epistemic, total`, and the number of samples is free.
        What a gate promises is in the metadata of the file.

        Args:
            path: of the file.
            example: inputs of any number of samples; not needed if the ensemble knows their shapes from its fit.
        """
        from repulse.integrations.onnx import export

        return export(self, path, example)

    def _is_one_batch(self, x: Any) -> bool:
        places = self.backbone.places
        return places.is_batch(x) if places.describe_batches else is_one_batch(x, self.backbone.several)

    def _inputs_of(self, batch: Any, name: str) -> Any:
        return self.backbone.places.inputs_in(batch, name, self.backbone.several)

    def _parts(self, x: Any, progress: bool) -> Iterator[Prediction]:
        """Iterate over the prediction of one batch, or over those of a loader."""
        if self._is_one_batch(x):
            yield self._predict(self._inputs_of(x, "x"))
        elif isinstance(x, Iterable) and not isinstance(x, str | np.ndarray):
            yield from self._stream(x, progress)
        else:
            got = f"{describe_batch(x)}{how_to_tensor(x)}"
            raise DataError(expected("x", "inputs, a batch or a loader", got))

    def _stream(self, loader: Iterable[Any], progress: bool) -> Iterator[Prediction]:
        some = False
        if shuffles(loader):
            message = "The loader shuffles, so predictions come in an order that cannot be told; pass `shuffle=False`."
            warnings.warn(message, DataWarning, stacklevel=4)
        total = length_of(loader)
        with closing(read_ahead(loader, next(self.heads.parameters()).device)) as read:
            for i, batch in enumerate(all_of(bar(read, "predicting", total, progress), total, "x")):
                some, name = True, f"batch {i} of `x`"
                yield self._predict(self._inputs_of(batch, name), name)
        if not some:
            raise DataError(expected("x", "a loader of at least one batch", "none"))

    @torch.no_grad()
    def _predict(self, inputs: Any, name: str = "x") -> Prediction:
        tensors = tensors_of(inputs)
        for (_, value), form in zip(tensors, self.backbone.forms, strict=False):
            if value.ndim == len(form.shape):
                got = f"one sample of shape {tuple(value.shape)}; `x.unsqueeze(0)` is a batch of one"
                raise DataError(expected(name, "a batch", got))
        if tensors and rows_are_samples(inputs) and not size_of(inputs):  # what networks make of none differs
            return self._predict(map_tensors(inputs, _one_like), name)[:0]
        device = next(self.heads.parameters()).device
        positions = self.backbone.ending.positions
        with explaining_failures(inputs, name, DataError):
            if positions:
                found = self.backbone.locate(to_device(inputs, device))
            else:
                features = self.backbone.run(to_device(inputs, device))
        if positions:
            return predict_positions(self.heads, found, channels_last=positions == "channels_last")  # pyright: ignore
        return self.heads.predict(features)  # pyright: ignore[reportPossiblyUnboundVariable]

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.heads.parameters())
        number = len(self.backbone.taps)
        taps = f"{number} tap{'s' if number > 1 else ''}; " if number else ""
        return (
            f"Ensemble({self.heads.extra_repr()}; {count:,} parameters in place of {self.backbone.ending} of "
            f"{type(self.model).__name__}; {taps}repelled {self.repulsion})"
        )


def load(
    folder: str | Path,
    model: nn.Module,
    *,
    inputs: Place | None = None,
    targets: Place | None = None,
    output: Place | None = None,
) -> Ensemble:
    """Load an ensemble that was saved, around the network it was fitted on.

    Args:
        folder: what `ensemble.save` was given.
        model: the same network with the same weights; it is shared, not copied, and the heads go to its device.
        inputs: where inputs are in batches, as for `retrofit`; needed again only if it was a function.
        targets: where targets are, likewise.
        output: where logits are in the network's output, likewise.

    Raises:
        CheckpointError: the folder is not one of `save`, is damaged, was written in another format, or its heads were
            fitted on another network, or with a function that is not given again.
    """
    contents = checkpoint.read(folder, model, Places(inputs, targets, output))
    about = (contents.repulsion, contents.class_names, contents.network, contents.summary, contents.gate)
    return Ensemble(contents.backbone, contents.heads, *about, kept=KeptIn(Path(folder), weights_of(contents.heads)))


def _one_like(values: Tensor) -> Tensor:
    """Return one sample of the form of some, which may be none, also where these are sparse."""
    return torch.ones(1, *values.shape[1:], dtype=values.dtype, device=values.device)
