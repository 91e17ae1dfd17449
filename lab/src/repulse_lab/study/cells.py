"""Cells as jobs: one method, fitted on the features of one network and measured on everything."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repulse.baselines import METHODS, DeepEnsemble, LastLayer, LastLayerEnsemble, Method, Resources, build
from repulse.prediction import ClassPrediction
from repulse.recipe import NAMED
from repulse_lab.jobs.job import Place, Result, work
from repulse_lab.study.bench import OnDemand, View
from repulse_lab.study.collections import images_of
from repulse_lab.study.features import bench_for
from repulse_lab.study.measures import Dirt, Trial, measure_digits, measure_photographs

MAIN = ("KMNIST", "FashionMNIST", "Omniglot")
"""Sets whose mean is taken on digits, as in the paper."""

CODE = (
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse.metrics",
    "repulse.evaluation",
    "repulse.baselines.contract",
    "repulse_lab.study.measures",
)


@work(*CODE, seconds=lambda about: METHODS.get(about["method"], Method).seconds)
def measure(about: Mapping[str, Any], place: Place) -> Result:
    """Every figure of one method.

    `about` holds the collection, the network, the seed of the network (`network_seed`) and that of the method, the
    layers that the method sees, the set to repel on, and changes to the recipe of heads; for a deep ensemble, the
    networks and seeds of its members instead.
    """
    trial, seconds = fitted(about, place)
    test = trial.sets()[0][:5000]
    start = time.process_time()
    trial.method.predict_and_score(test)
    milliseconds = 1e6 * (time.process_time() - start) / len(test)
    if about["collection"] == "dirty-mnist":
        figures = measure_digits(trial, Dirt.of(place.data), MAIN)
    else:
        figures = measure_photographs(trial)
    figures |= {"fit_seconds": seconds, "milliseconds": milliseconds, "parameters": _parameters(trial, about, place)}
    return {"figures": {key: value for key, value in figures.items() if math.isfinite(value)}}


def _parameters(trial: Trial, about: Mapping[str, Any], place: Place) -> float:
    """Of the networks and, instead of their last layer, the heads; NaN for methods that also store other things."""
    if "members" in about:
        members = [(one["network"], one["seed"]) for one in about["members"]]
    else:
        members = [(about["network"], about["network_seed"])]
    benches = [bench_for(about["collection"], *member, place) for member in members]
    count = sum(weights.numel() for bench in benches for weights in bench.network.parameters())
    if isinstance(trial.method, LastLayerEnsemble):
        last = sum(weights.numel() for weights in benches[0].backbone.weights)
        return count - last + sum(weights.numel() for weights in trial.method.heads.parameters())
    return count if about["method"] == "MAP" or "members" in about else math.nan


def fitted(about: Mapping[str, Any], place: Place) -> tuple[Trial, float]:
    """The fitted method on its features, and how many seconds the fit took (NaN for networks, trained before)."""
    if "members" in about:
        return _deep_ensemble(about, place), math.nan
    bench = bench_for(about["collection"], about["network"], about["network_seed"], place)
    view = bench.view(about["layers"])
    method = _made(about, view, bench.backbone.outputs)
    start = time.process_time()
    method.fit(view.train, bench.images.targets)
    return Trial(method, bench.images, view), time.process_time() - start


def _made(about: Mapping[str, Any], view: View, classes: int) -> Method:
    repelled = view.repulsion[about["repulsion"]] if about.get("repulsion") else None
    if about["method"] in NAMED:
        recipe = NAMED[about["method"]].replace(**about.get("recipe", {}), seed=about["seed"])
        return LastLayerEnsemble(classes, recipe, repelled, view.taps)
    return build(about["method"], Resources(view.layer, repelled, view.taps, about["seed"]))


def code_of(method: str) -> tuple[str, ...]:
    """The module of a method, whose code decides what it finds, and those of other methods that it uses."""
    if method not in METHODS:
        return (DeepEnsemble.__module__,)
    own = sys.modules[METHODS[method].__module__]
    others = {getattr(thing, "__module__", None) for thing in vars(own).values()}
    others = {name for name in others if name and name.startswith("repulse.baselines.")}
    return (own.__name__, *sorted(others - {own.__name__, "repulse.baselines.contract"}))


@dataclass
class Members(Method):
    """A deep ensemble on the features of all its members side by side: mean softmax, mutual information.

    Args:
        layers: the last layer of each member.
    """

    layers: Sequence[LastLayer]

    name = "DE"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        """The members are trained already."""

    def _predict(self, features: Tensor) -> ClassPrediction:
        parts = features.split([layer.weight.shape[1] for layer in self.layers], dim=1)
        logits = [layer(part) for layer, part in zip(self.layers, parts, strict=True)]
        return ClassPrediction(torch.stack(logits).log_softmax(dim=-1))


def _deep_ensemble(about: Mapping[str, Any], place: Place) -> Trial:
    tests, outsides, layers = [], [], []
    for member in about["members"]:
        view = bench_for(about["collection"], member["network"], member["seed"], place).view("last")
        tests.append(view.test)
        outsides.append(view.outside)
        layers.append(view.layer)
    outside = {name: torch.cat([one[name] for one in outsides], dim=1) for name in outsides[0]}
    joined = View(tests[0][:0], torch.cat(tests, dim=1), outside, OnDemand({}), 0, lambda: layers[0])
    return Trial(Members(layers), images_of(about["collection"], place.data), joined)
