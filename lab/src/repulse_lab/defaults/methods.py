"""What is compared: the network alone, other methods, and the default of `repulse`, all judged on the same sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import repulse
from repulse import LL_E, ClassPrediction, Prediction, Recipe, RegressionPrediction
from repulse.baselines import DDU, KNN, MAP, Laplace, Temperature, ViM
from repulse_lab.defaults.features import FeatureSets
from repulse_lab.defaults.problem import Samples, Task, Trained

Judged = dict[str, tuple[Prediction, Tensor]]
"""Of every evaluated set: predictions, and scores (larger is further out of distribution)."""

MEMBERS = 5
"""Number of networks of the deep ensemble."""


@dataclass(frozen=True)
class Bench:
    """One seed of a problem, ready for methods.

    Attributes:
        trained: network and data.
        task: of the network.
        seed: of whatever is random in a method.
        folder: where features may be kept.
    """

    trained: Trained
    task: Task
    seed: int
    folder: Path

    @cached_property
    def features(self) -> FeatureSets:
        """Features of all sets."""
        return FeatureSets(self.trained, self.folder / "features" if self.trained.slow else None)

    @property
    def targets(self) -> Tensor:
        """Targets of the training samples."""
        assert self.trained.train.targets is not None
        return self.trained.train.targets


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: as the table prints it.
        judge: fits it and evaluates it on all sets.
        tasks: for which it exists.
        possible: whether a problem has what it needs.
        library: whether its result depends on how the library fits heads and chooses taps.
    """

    name: str
    judge: Callable[[Bench], Judged]
    tasks: tuple[Task, ...] = ("classification",)
    possible: Callable[[Bench], bool] = lambda bench: True
    library: bool = False


@torch.no_grad()
def outputs_of(network: nn.Module, samples: Samples) -> Tensor:
    """Compute the outputs of a network."""
    return torch.cat([network(batch) for batch in Samples(samples.inputs, None, samples.prepare)])


def _on_features(make: Callable[..., Any], taps: bool, bench: Bench) -> Judged:
    """Fit a method on features, and evaluate it."""
    sets = bench.features
    of = sets.with_taps if taps else sets.penultimate
    method = make(sets.wide_layer if taps else sets.layer, bench.seed).fit(of("train"), bench.targets)
    return {name: method.predict_and_score(of(name)) for name in bench.trained.evaluated}


def _temperature(bench: Bench) -> Judged:
    sets, labels = bench.features, bench.trained.validation.targets
    assert labels is not None
    network = MAP(sets.layer).fit(sets.penultimate("train"), bench.targets)
    method = Temperature(network).calibrate(sets.penultimate("validation"), labels)
    return {name: method.predict_and_score(sets.penultimate(name)) for name in bench.trained.evaluated}


def _last_layer_ensemble(taps: bool, bench: Bench) -> Judged:
    sets = bench.features
    of = sets.with_taps if taps else sets.penultimate
    columns = sets.backbone.width - sets.backbone.penultimate if taps else 0
    recipe = LL_E.replace(seed=bench.seed)
    classes = sets.layer.classes
    heads = repulse.fit_heads(of("train"), bench.targets, None, recipe, classes=classes, taps=columns, progress=False)
    predictions = {name: heads.predict(of(name)) for name in bench.trained.evaluated}
    return {name: (p, p.epistemic) for name, p in predictions.items()}


def _deep_ensemble(bench: Bench) -> Judged:
    member = bench.trained.member
    assert member is not None
    networks = [member(number) for number in range(MEMBERS)]
    sets = bench.trained.evaluated
    outputs = {name: torch.stack([outputs_of(net, s) for net in networks]) for name, s in sets.items()}
    if bench.task == "regression":
        return _gaussians(bench, outputs)
    predictions = {name: ClassPrediction(logits.log_softmax(dim=-1)) for name, logits in outputs.items()}
    return {name: (p, p.epistemic) for name, p in predictions.items()}


def _network_regression(bench: Bench) -> Judged:
    sets = bench.trained.evaluated
    return _gaussians(bench, {name: outputs_of(bench.trained.model, s).unsqueeze(0) for name, s in sets.items()})


def _gaussians(bench: Bench, outputs: dict[str, Tensor]) -> Judged:
    """Return Gaussian predictions whose noise, the same everywhere, is the most likely on the validation rows."""
    means = {name: value.squeeze(-1) for name, value in outputs.items()}
    targets = bench.trained.validation.targets
    assert targets is not None
    error = (means["validation"].mean(dim=0) - targets).square().mean()
    candidates = [
        RegressionPrediction(means["validation"], torch.full_like(means["validation"], float(error) * share))
        for share in torch.logspace(-2, 1, 61).tolist()
    ]
    best = max(candidates, key=lambda p: float(p.log_likelihood(targets).double().mean()))
    noise = float(best.variances.flatten()[0])
    predictions = {name: RegressionPrediction(m, torch.full_like(m, noise)) for name, m in means.items()}
    return {name: (p, p.epistemic) for name, p in predictions.items()}


def _retrofit(given: bool, bench: Bench) -> Judged:
    """Call `retrofit` with its defaults, and evaluate the ensemble."""
    trained = bench.trained
    known = inspect.signature(repulse.retrofit).parameters
    options: dict[str, Any] = {"recipe": Recipe(seed=bench.seed, task=bench.task), "progress": False}
    if "validation" in known:
        options["validation"] = trained.validation
    if trained.slow:
        options["cache"] = bench.folder / "retrofit"
    if given:
        options["repulsion"] = trained.repulsion
    ensemble = repulse.retrofit(trained.model, trained.train, **options)
    judged = {}
    for name, samples in trained.evaluated.items():
        unlabelled = Samples(samples.inputs, None, samples.prepare)
        prediction = ensemble.predict(unlabelled, progress=False)
        judged[name] = prediction, prediction.epistemic
    return judged


def _has_taps(bench: Bench) -> bool:
    return bench.features.has_taps


def _detectors() -> list[Method]:
    makers: dict[str, Callable[..., Any]] = {
        "DDU": lambda layer, seed: DDU(layer),
        "ViM": lambda layer, seed: ViM(layer),
        "KNN": lambda layer, seed: KNN(layer),
        "LL-Laplace": lambda layer, seed: Laplace(layer, seed=seed),
    }
    made = []
    for name, make in makers.items():
        made.append(Method(name, partial(_on_features, make, False)))
        made.append(Method(f"{name} + taps", partial(_on_features, make, True), possible=_has_taps, library=True))
    return made


NETWORK, REPULSE, GIVEN = "network", "repulse", "repulse, given samples"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(NETWORK, partial(_on_features, lambda layer, seed: MAP(layer), False)),
        Method("network, temperature", _temperature),
        Method("network, noise", _network_regression, ("regression",)),
        Method(
            f"DE-{MEMBERS}",
            _deep_ensemble,
            ("classification", "regression"),
            lambda bench: bench.trained.member is not None,
        ),
        *_detectors(),
        Method("LL-E", partial(_last_layer_ensemble, False), library=True),
        Method("LL-E + taps", partial(_last_layer_ensemble, True), possible=_has_taps, library=True),
        Method(REPULSE, partial(_retrofit, False), ("classification", "regression"), library=True),
        Method(GIVEN, partial(_retrofit, True), possible=lambda b: b.trained.repulsion is not None, library=True),
    )
}
"""Every method by its name, in the order of the table."""


def base_of(task: Task) -> str:
    """Return the name of the row that is the network alone."""
    return NETWORK if task == "classification" else "network, noise"
