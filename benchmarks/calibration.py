"""Which labels to calibrate on, and why LL-Laplace's ECE on CIFAR-10 is several times the paper's.

First table: LL-Laplace with another link and with other prior precisions, one at a time. The precision that maximises
the marginal likelihood on the training data is what `LL-Laplace` uses; other structures are methods of their own
(`repulse-lab evaluate --methods "LL-Laplace (full)"`). Second table: constants that are chosen on held-back training
images, and on one half of the test labels (judged on the other half, both ways). Features of the published ResNet-20
are taken from, and kept in, the job store.

    REPULSE_DATA=DIR python benchmarks/calibration.py [--out results]
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from repulse import metrics
from repulse.baselines import Resources, build
from repulse.baselines._search import smallest
from repulse.baselines.laplace import Kronecker
from repulse.evaluation.table import Column, Table
from repulse.prediction import ClassPrediction
from repulse_lab.data.registry import data_root
from repulse_lab.jobs.job import Place
from repulse_lab.study.features import NetworkFeatures, View, features_of
from repulse_lab.study.measures import Trial, measured
from repulse_lab.study.presets import RESNET20
from repulse_lab.study.problems import halves

COLUMNS = [Column("prior precision", 2), Column("NLL", 3, "lower"), Column("ECE", 2, "lower")]


def with_precision(posterior: Kronecker, old: float, new: float) -> Kronecker:
    """Return the posterior under another prior precision."""
    return replace(
        posterior, precision=posterior.precision - old + new, bias_precision=posterior.bias_precision - old + new
    )


def sampled(posterior: Kronecker, view: View, features: Tensor) -> ClassPrediction:
    """Predict by 100 draws of the logits, as `LL-Laplace` does."""
    noise = torch.randn(100, view.layer.classes, generator=torch.Generator().manual_seed(0))
    return ClassPrediction((view.layer(features) + posterior.deviations(features, noise)).log_softmax(dim=-1))


def probit(posterior: Kronecker, view: View, features: Tensor) -> ClassPrediction:
    """Predict by the probit approximation: logits divided by `sqrt(1 + pi / 8 variance)`, each its own."""
    variances = posterior.variances(features) @ posterior.u.square().T
    logits = view.layer(features) / (1 + math.pi / 8 * variances).sqrt().float()
    return ClassPrediction(logits.log_softmax(dim=-1).unsqueeze(0))


def row(prediction: ClassPrediction, targets: Tensor, precision: float) -> list[float]:
    """Return the numbers of a row."""
    return [precision, metrics.nll(prediction, targets), 100 * metrics.ece(prediction, targets)]


def tuned(posterior: Kronecker, delta: float, view: View, targets: Tensor) -> list[float]:
    """Choose the precision on one half of the test labels and judge on the other half, both ways."""
    first, second = halves(len(targets))
    parts, chosen = [], []
    for known, here in ((second, first), (first, second)):

        def loss(x: float, known: Tensor = known) -> float:
            return metrics.nll(sampled(with_precision(posterior, delta, x), view, view.test[known]), targets[known])

        chosen.append(smallest(loss, delta, step=4.0))
        prediction = sampled(with_precision(posterior, delta, chosen[-1]), view, view.test[here])
        parts.append((prediction, targets[here]))
    whole = ClassPrediction.cat([prediction for prediction, _ in parts])
    return row(whole, torch.cat([part for _, part in parts]), sum(chosen) / 2)


def constants(features: NetworkFeatures) -> Table:
    """Return what is chosen on training images, and on half of the test labels."""
    view, images = features.view("last"), features.images
    table = Table("chosen on", [Column("constant", 2), *COLUMNS[1:]])
    for name in ("MAP + temperature", "SNGP"):
        method = build(name, Resources(view.layer)).fit(view.train, images.targets)
        (field,) = method.chosen
        prediction = method.predict(view.test)
        assert isinstance(prediction, ClassPrediction)
        table.add(f"{name}: training images", [row(prediction, images.test_targets, getattr(method, field))])
        found = measured(Trial(method, images, view))
        table.add(f"{name}: half of the test labels", [[getattr(method, field), found["nll"], found["ece"]]])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of `repulse-lab reproduce`")
    place = Place(data_root(), (parser.parse_args().out / "cpu" / "cache").resolve())
    features = features_of("cifar10", RESNET20.about, 0, place)
    view, targets = features.view("last"), features.images.test_targets
    table = Table("LL-Laplace on ResNet-20", COLUMNS)
    table.add("MAP", [row(ClassPrediction(view.layer(view.test).log_softmax(-1).unsqueeze(0)), targets, math.inf)])
    posterior = Kronecker.of(view.layer.weight, view.layer.bias, view.train)
    delta = float(posterior.bias_precision.min())  # the smallest curvature is zero: softmax ignores a common shift
    table.add("kron, marginal likelihood", [row(sampled(posterior, view, view.test), targets, delta)])
    table.add("the same, probit link", [row(probit(posterior, view, view.test), targets, delta)])
    for factor in (0.1, 0.01, 0.001):
        changed = with_precision(posterior, delta, factor * delta)
        table.add(
            f"kron, {factor:g} of that precision", [row(sampled(changed, view, view.test), targets, factor * delta)]
        )
    table.add("kron, precision by half of the test labels", [tuned(posterior, delta, view, targets)])
    print(table.markdown())
    print("\n" + constants(features).markdown())


if __name__ == "__main__":
    main()
