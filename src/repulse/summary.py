"""What a retrofit did, in numbers and in words: the network and the ensemble on the same data, side by side."""

from __future__ import annotations

import html
import math
import warnings
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from repulse import metrics
from repulse._mapped import read_blocks, row_chunks
from repulse.errors import FitWarning
from repulse.particles.calibrate import network_outputs
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification, Multilabel, Multiregression, Regression
from repulse.prediction import (
    ClassPrediction,
    MultilabelPrediction,
    MultiregressionPrediction,
    Prediction,
    RegressionPrediction,
)

MAX_ROWS = 5000
"""Rows that are looked at, at most."""

WORSE = {"accuracy": 0.005, "nll": 0.02, "ece": 0.01, "aurc": 0.002, "rmse": 0.02}
"""By how much the ensemble may be worse than the network before a warning says so; RMSE relative to the network's."""

MANY_ROWS = 2000
"""Rows from which on these margins hold; for fewer they are as much wider as the standard error of a mean is."""

SEPARATED = 0.6
"""AUROC of repulsion samples below which they look like the data."""


@dataclass(frozen=True)
class Summary:
    """What was measured when heads were fitted.

    Attributes:
        data: "validation" or "training", the data that was looked at.
        samples: how many of its rows.
        network: metrics of the network alone: accuracy, nll, ece, aurc; for several labels nll, ece, auroc and
            average_precision, means over labels; for regression rmse (of each target), nll, coverage_95.
        ensemble: the same of the ensemble.
        epistemic: mean epistemic uncertainty on that data, and on the repulsion samples if there are any.
        separation: AUROC of telling repulsion samples from that data by epistemic uncertainty; None without any.
        centre: in words, what the mean prediction is.
        assumed: what was taken for granted for want of validation data.
    """

    data: str
    samples: int
    network: dict[str, float]
    ensemble: dict[str, float]
    epistemic: dict[str, float]
    separation: float | None
    centre: str
    assumed: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        """Return in words what should not pass silently."""
        found = []
        wider = max(1.0, math.sqrt(MANY_ROWS / max(self.samples, 1)))
        judged = self.network if self.data == "validation" else {}  # of its training data it knows more than heads may
        for name, before in judged.items():
            kind = name.split()[0]
            if kind not in WORSE:
                continue
            after, margin = self.ensemble[name], WORSE[kind]
            loss = before - after if kind == "accuracy" else after - before
            if loss > wider * (margin * before if kind == "rmse" else margin):
                found.append(
                    f"On {self.data} data the ensemble has {_name(name)} {after:.3g} where the network alone has "
                    f"{before:.3g}: it is worse than the network there."
                )
        if self.separation is not None and self.separation < SEPARATED:
            found.append(
                f"Heads disagree on the repulsion samples hardly more than on {self.data} data (AUROC "
                f"{self.separation:.2f}): the samples look like the data, or the network cannot tell them apart."
            )
        return found

    def warn(self) -> None:
        """Warn about what `warnings` finds."""
        for message in self.warnings():
            warnings.warn(message, FitWarning, stacklevel=3)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, None where there is no number."""
        return _without_nan(asdict(self))

    @staticmethod
    def from_dict(kept: dict[str, Any]) -> Summary:
        """Return the summary that `to_dict` described."""
        known = {one.name: kept[one.name] for one in fields(Summary)}
        for name in ("network", "ensemble", "epistemic"):
            known[name] = {str(key): math.nan if v is None else float(v) for key, v in known[name].items()}
        return Summary(**known)

    def rows(self) -> list[tuple[str, float, float]]:
        """Return the name of each metric, and its value for the network and for the ensemble."""
        return [(_name(name), self.network[name], self.ensemble[name]) for name in self.network]

    def __str__(self) -> str:
        lines = [f"{'on ' + self.data + ' data':<20}{'network':>10}{'ensemble':>10}   ({self.samples:,} samples)"]
        lines += [f"{name:<20}{before:>10.4g}{after:>10.4g}" for name, before, after in self.rows()]
        lines += [f"{'epistemic, ' + name:<20}{'':>10}{value:>10.4g}" for name, value in self.epistemic.items()]
        if self.separation is not None:
            lines.append(f"{'repulsion AUROC':<20}{'':>10}{self.separation:>10.4g}")
        return "\n".join([*lines, self.centre, *self.assumed, *(f"! {message}" for message in self.warnings())])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{before:.4g}</td><td>{after:.4g}</td></tr>"
            for name, before, after in self.rows()
        )
        cells += "".join(
            f"<tr><td>epistemic, {html.escape(name)}</td><td></td><td>{value:.4g}</td></tr>"
            for name, value in self.epistemic.items()
        )
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in [self.centre, *self.assumed, *self.warnings()])
        head = f"<tr><th>{self.data} data, {self.samples:,} samples</th><th>network</th><th>ensemble</th></tr>"
        return f"<table>{head}{cells}</table>{notes}"


@torch.no_grad()
def summarise(
    heads: Heads,
    network: tuple[Tensor, Tensor],
    features: Tensor,
    targets: Tensor,
    validation: tuple[Tensor, Tensor] | None,
    repulsion: Tensor | None,
) -> Summary:
    """Measure the network and the ensemble on validation data or, without any, on training data.

    Args:
        heads: the fitted heads.
        network: weight and bias of the network's last layer.
        features: of the training data.
        targets: of the training data.
        validation: features and targets that nothing was fitted to.
        repulsion: features of the repulsion samples.
    """
    rows, labels = (features, targets) if validation is None else validation
    step = -(-len(rows) // MAX_ROWS)
    rows, labels = read_blocks(rows, range(0, len(rows), step), 1).float(), labels[::step].cpu()
    if isinstance(heads.task, Classification) and labels.ndim == 2:  # probabilities of classes
        labels = labels.argmax(dim=1)
    ours = _predicted(heads, rows)
    far = None if repulsion is None else _predicted(heads, repulsion[:: -(-len(repulsion) // MAX_ROWS)].float())
    theirs = _network_alone(heads, network, rows, labels)
    inside = ours.of_inputs("epistemic")
    epistemic, separation = {"data": float(inside.mean())}, None
    if far is not None:
        outside = far.of_inputs("epistemic")
        epistemic["repulsion"] = float(outside.mean())
        separation = None if heads.count == 1 else float(metrics.auroc(inside, outside))
    return Summary(
        "training" if validation is None else "validation",
        len(rows),
        _metrics(theirs, labels),
        _metrics(ours, labels),
        epistemic,
        separation,
        _centre_in_words(heads),
        _assumptions(heads, validation),
    )


def _predicted(heads: Heads, rows: Tensor) -> Prediction:
    return Prediction.cat([heads.predict(part).cpu() for part in row_chunks(rows)])


def _network_alone(heads: Heads, network: tuple[Tensor, Tensor], rows: Tensor, labels: Tensor) -> Prediction:
    """Return what the network predicts; as a regression, with the noise of its residuals on these rows."""
    outputs = network_outputs(network, rows).cpu()
    if isinstance(heads.task, Classification):
        return ClassPrediction(outputs.log_softmax(dim=-1).unsqueeze(0))
    if isinstance(heads.task, Multilabel):
        return MultilabelPrediction(outputs.unsqueeze(0))
    if isinstance(heads.task, Multiregression):
        means = outputs[:, : heads.task.targets]
        spread = (labels - means).double().square().mean(dim=0).clamp_min(1e-12).to(means)
        return MultiregressionPrediction(means.unsqueeze(0), spread.expand(1, *means.shape))
    mean = outputs[:, 0]
    variance = (labels - mean).double().square().mean().clamp_min(1e-12).to(mean)
    return RegressionPrediction(mean.unsqueeze(0), variance.expand(1, len(mean)))


def _metrics(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    if isinstance(prediction, ClassPrediction):
        return {
            "accuracy": metrics.accuracy(prediction, labels),
            "nll": metrics.nll(prediction, labels),
            "ece": metrics.ece(prediction, labels),
            "aurc": metrics.aurc(1 - prediction.confidence, prediction.labels != labels),
        }
    if isinstance(prediction, MultilabelPrediction):
        each = {
            "nll": metrics.label_nll(prediction, labels),
            "ece": metrics.label_ece(prediction, labels),
            "auroc": metrics.label_auroc(prediction, labels),
            "average_precision": metrics.label_average_precision(prediction, labels),
        }
        return {name: float(values.nanmean()) for name, values in each.items()}
    if isinstance(prediction, MultiregressionPrediction):
        each = [_metrics(prediction.target(k), labels[:, k]) for k in range(prediction.targets)]
        errors = {f"rmse {k + 1}": one["rmse"] for k, one in enumerate(each)}
        coverage = sum(one["coverage_95"] for one in each) / len(each)
        return {**errors, "nll": metrics.nll(prediction, labels), "coverage_95": coverage}
    assert isinstance(prediction, RegressionPrediction)
    found = {"rmse": metrics.rmse(prediction, labels), "nll": metrics.nll(prediction, labels)}
    return {**found, "coverage_95": metrics.interval_coverage(prediction, labels)}


def _centre_in_words(heads: Heads) -> str:
    if not isinstance(heads, CentredHeads):
        return "the mean prediction is that of the heads"
    alpha, temperature = heads.centre.alpha, heads.centre.temperature
    who = {1.0: "the network's", 0.0: "the heads' own"}.get(
        alpha, f"{alpha:.0%} the network's, the rest the heads' own"
    )
    words = f"the mean prediction is {who}"
    if isinstance(heads.task, Classification | Multilabel) and temperature != 1:
        words += f", at temperature {temperature:.2f}"
    if isinstance(heads.task, Regression) and heads.task.noise is not None:
        words += f", with noise of {heads.task.noise:.4g}"
    if isinstance(heads.task, Multiregression) and heads.task.noise is not None:
        words += ", with noise of " + ", ".join(f"{noise:.4g}" for noise in heads.task.noise)
    return words


def _assumptions(heads: Heads, validation: Any) -> list[str]:
    if validation is not None or not isinstance(heads, CentredHeads):
        return []
    if isinstance(heads.task, Classification | Multilabel):
        return ["no validation data was given: confidences are the network's, and as overconfident as they were"]
    return ["no validation data was given: the noise is assumed, not measured"]


def _name(metric: str) -> str:
    known = {
        "nll": "NLL",
        "ece": "ECE",
        "aurc": "AURC",
        "auroc": "AUROC",
        "average_precision": "average precision",
        "coverage_95": "coverage of 95 %",
    }
    return known.get(metric, metric.replace("rmse", "RMSE"))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
