"""Small ensembles of each kind that is deployed and exported, and inputs that they have not seen."""

from __future__ import annotations

import copy
import functools
import warnings

import torch
from torch import nn

import repulse
from families import SMALL, TIMM_VIT, Several, hugging_face, sentences, timm_model
from models import CLASSES, images, normal
from repulse.backbone.batches import map_tensors

QUICK = repulse.Recipe(epochs=1, heads=3)


def small_cnn(classes=CLASSES):
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Conv2d(6, 8, 3, stride=2)),
        *(nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)),
    )


def bert():
    return hugging_face("BertForSequenceClassification", "BertConfig", vocab_size=100, **{**SMALL, **FEW})


FEW = {"num_hidden_layers": 2}
LABELS = torch.arange(10) % CLASSES
KINDS = {
    "cnn": lambda: (small_cnn(), images(16), images(16, seed=1), LABELS),
    "timm vit": lambda: (
        timm_model("vit_tiny_patch16_224", **{**TIMM_VIT, "depth": 2}),
        images(32),
        images(32, seed=1),
        LABELS,
    ),
    "hf bert": lambda: (bert(), sentences(), sentences(seed=1), LABELS),
    "regression": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        normal(400, 4),
        normal(10, 4, seed=1),
        normal(400, 4)[:, 0] + 0.3 * normal(400, seed=2),
    ),
    "several inputs": lambda: (Several(), (normal(10, 4), normal(10, 2)), (normal(8, 4), normal(8, 2)), LABELS),
    "several labels": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        normal(10, 4),
        normal(10, 4, seed=1),
        (normal(10, 3, seed=2) > 0).float(),
    ),
    "several targets": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        normal(200, 4),
        normal(10, 4, seed=1),
        normal(200, 2, seed=2),
    ),
    "one logit": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
        normal(10, 4),
        normal(10, 4, seed=1),
        torch.arange(10) % 2,
    ),
}


@functools.cache
def ensemble_of(kind):
    """An ensemble, and inputs that it has not seen; tests leave both as they are."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", repulse.FitWarning)
        torch.manual_seed(0)
        model, x, other, targets = KINDS[kind]()
        task = TASKS.get(kind, "classification")
        recipe = (repulse.Recipe() if kind == "regression" else QUICK).replace(task=task)  # heads that have converged
        ensemble = repulse.retrofit(model, [(x, targets)], recipe=recipe, progress=False, **NAMES.get(kind, {}))
    return ensemble, other


TASKS = {"regression": "regression", "several targets": "regression", "several labels": "multilabel"}
NAMES = {"cnn": {"class_names": [f"class {i}" for i in range(CLASSES)]}}


def differences(ensemble, answer, inputs):
    """The largest difference between each named output and what `predict` says, relative to numbers above one.

    In double precision: heads whose common part is large lose digits in single precision, which a fold keeps.
    """
    doubled = map_tensors(inputs, lambda value: value.double() if value.is_floating_point() else value)
    prediction = copy.deepcopy(ensemble).double().predict(doubled)
    wanted = {name: getattr(prediction, name) for name in answer}
    return {
        name: float(((wanted[name] - answer[name]) / wanted[name].abs().clamp_min(1)).abs().max()) for name in answer
    }
