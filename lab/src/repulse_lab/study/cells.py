"""Cells as jobs: one method, fitted on the features of one network and measured on everything."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repulse.baselines import METHODS, LastLayer, LastLayerEnsemble, Method, RepulsiveDeepEnsemble, Resources, build
from repulse.particles.fit import LARGE_SCALE
from repulse.prediction import ClassPrediction
from repulse.recipe import FS_RLL_E, NAMED, RLL_E
from repulse_lab.jobs.job import Place, Result, work
from repulse_lab.study.features import LazyFeatures, View, features_of
from repulse_lab.study.measures import Trial, measured
from repulse_lab.study.problems import images_of, problem_of
from repulse_lab.study.training import fresh

CODE = (
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse.metrics",
    "repulse.evaluation",
    "repulse.baselines.contract",
    "repulse_lab.study.measures",
)
TIMED = 5000
"""Number of predictions that are timed."""
REPULSIVE_EPOCHS = 3
"""Epochs of networks that are trained together, which takes as long as training all of them."""


@work(*CODE, seconds=lambda about: METHODS.get(about["method"], Method).seconds)
def measure(about: Mapping[str, Any], place: Place) -> Result:
    """Measure every figure of one method.

    `about` holds the problem, the network, the seed of the network (`network_seed`) and that of the method, the layers
    that the method sees, the set to repel on, and changes to the recipe of heads; for a deep ensemble, the networks and
    seeds of its members instead.
    """
    trial, seconds = fit_method(about, place)
    test = trial.sets()[0][:TIMED]
    start = time.process_time()
    trial.method.predict_and_score(test)
    milliseconds = 1e6 * (time.process_time() - start) / len(test)
    figures = measured(trial) | {"fit_seconds": seconds, "milliseconds": milliseconds}
    figures["parameters"] = _parameters(trial, about, place)
    figures |= {f"chosen {name}": float(getattr(trial.method, name)) for name in trial.method.chosen}
    return {"figures": {key: value for key, value in figures.items() if math.isfinite(value)}}


def networks_of(about: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], int]]:
    """Return the networks, and their seeds, whose features a method sees."""
    members = about.get("members") or [{"network": about["network"], "seed": about["network_seed"]}]
    return [(member["network"], member["seed"]) for member in members]


def _parameters(trial: Trial, about: Mapping[str, Any], place: Place) -> float:
    """Count those of the networks and of heads instead of their last layer; NaN for methods that store other things.

    Heads around the network keep its last layer, and the axes along which they measure distances: these count too.
    """
    if trial.method.takes == "inputs":
        return math.nan
    features = [features_of(about["problem"], *network, place) for network in networks_of(about)]
    count = sum(weights.numel() for each in features for weights in each.network.parameters())
    if isinstance(trial.method, LastLayerEnsemble):
        last = sum(weights.numel() for weights in features[0].backbone.weights)
        return count - last + sum(weights.numel() for weights in trial.method.heads.state_dict().values())
    return count if about["method"] == "MAP" or "members" in about else math.nan


def fit_method(about: Mapping[str, Any], place: Place) -> tuple[Trial, float]:
    """Return the fitted method with its features, and the seconds of the fit (NaN for networks, trained before)."""
    if "members" in about:
        return _deep_ensemble(about, place), math.nan
    if about["method"].startswith("repulsive DE"):
        return _repulsive_deep_ensemble(about, place)
    features = features_of(about["problem"], about["network"], about["network_seed"], place)
    view = features.view(about["layers"])
    method = _method(about, view, features.backbone.outputs)
    start = time.process_time()
    method.fit(view.train, features.images.targets)
    return Trial(method, features.images, view), time.process_time() - start


def _method(about: Mapping[str, Any], view: View, classes: int) -> Method:
    repelled = view.repulsion[about["repulsion"]] if about.get("repulsion") else None
    if about["method"] in NAMED:
        recipe = NAMED[about["method"]].replace(**about.get("recipe", {}), seed=about["seed"])
        if recipe.tap_scale == "auto" and recipe.whiten:  # tables calibrate such heads, as validation data would
            recipe = recipe.replace(tap_scale=LARGE_SCALE)
        return LastLayerEnsemble(classes, recipe, repelled, view.taps, view.network)
    return build(about["method"], Resources(view.layer, repelled, view.taps, about["seed"]))


@dataclass
class Members(Method):
    """A deep ensemble on the features of all its members side by side: mean softmax, mutual information.

    Args:
        layers: the last layer of each member.
    """

    layers: Sequence[LastLayer]

    name = "DE"

    def _fit(self, features: Tensor, targets: Tensor) -> None:
        """Do nothing: the members are trained already."""

    def _predict(self, features: Tensor) -> ClassPrediction:
        parts = features.split([layer.weight.shape[1] for layer in self.layers], dim=1)
        logits = [layer(part) for layer, part in zip(self.layers, parts, strict=True)]
        return ClassPrediction(torch.stack(logits).log_softmax(dim=-1))


def _deep_ensemble(about: Mapping[str, Any], place: Place) -> Trial:
    views = [features_of(about["problem"], *network, place).view("last") for network in networks_of(about)]
    method, view = joined(views)
    return Trial(method, images_of(problem_of(about["problem"]), place.data), view)


def joined(views: Sequence[View]) -> tuple[Members, View]:
    """Return a deep ensemble of networks and their features side by side."""
    layers = [view.layer for view in views]
    outside = {name: torch.cat([view.outside[name] for view in views], dim=1) for name in views[0].outside}
    test = torch.cat([view.test for view in views], dim=1)
    return Members(layers), View(test[:0], test, outside, LazyFeatures({}), 0, lambda: layers[0], layers[0])


def _repulsive_deep_ensemble(about: Mapping[str, Any], place: Place) -> tuple[Trial, float]:
    """Train networks together that repel each other: on a set in function space, or else in parameter space."""
    images = images_of(problem_of(about["problem"]), place.data)
    members = [fresh({**about, "seed": seed}) for seed in about["seeds"]]
    recipe = (FS_RLL_E if "repulsion" in about else RLL_E).replace(epochs=REPULSIVE_EPOCHS)
    outside = images.repulsion[about["repulsion"]] if "repulsion" in about else None
    assert outside is None or isinstance(outside, Tensor)
    method = RepulsiveDeepEnsemble(members, recipe, outside, images.prepared)
    start = time.process_time()
    method.fit(images.train, images.targets)
    seconds = time.process_time() - start
    return Trial(method, images, None), seconds
