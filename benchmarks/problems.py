"""The problems on which settings are compared, as dictionaries of features: taken from the laboratory, computed once.

Each has `train`, `labels`, the sets that are judged and repelled on, the weight and bias of the network's last layer,
and how many columns of the features are taps.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from repulse_lab.jobs.job import Job, Place
from repulse_lab.jobs.runner import run
from repulse_lab.paper import text
from repulse_lab.study.features import NetworkFeatures, features_job, features_of
from repulse_lab.study.presets import LENET, RESNET20
from repulse_lab.study.training import Network

Data = dict[str, Tensor]
SYNTHETIC = "synthetic images"


def _features(problem: str, network: Network, place: Place) -> NetworkFeatures:
    run([features_job(problem, network, 0, place.data)], place)
    return features_of(problem, network.about, 0, place)


def _data(features: NetworkFeatures, repelled: dict[str, str], parts: Data) -> Data:
    view = features.view("auto")
    made = {"train": view.train, "labels": features.images.targets, **view.outside, **parts}
    made |= {name: view.repulsion[where] for name, where in repelled.items()}
    return {**made, "weight": view.network.weight, "bias": view.network.bias, "taps": torch.tensor(view.taps)}


def cifar(place: Place) -> Data:
    """Return CIFAR-10 by the published ResNet-20."""
    features = _features("cifar10", RESNET20, place)
    test = {"test": features.view("auto").test, "test_labels": features.images.test_targets}
    return _data(features, {"natural": "Tiny ImageNet", "synthetic": SYNTHETIC}, test)


def digits(place: Place) -> Data:
    """Return DirtyMNIST by a LeNet."""
    features = _features("dirty-mnist", LENET, place)
    test, pairs = features.view("auto").test, features.images.pairs
    assert pairs is not None
    parts = {"clean": test[: pairs.clean], "ambiguous": test[pairs.clean :]}
    parts |= {"samples": pairs.samples, "targets": pairs.targets}
    return _data(features, {"synthetic": SYNTHETIC}, parts)


def clinc(place: Place) -> Data:
    """Return CLINC150 by sentence embeddings."""
    run([Job(text.sentences, text.SENTENCES)], place)
    data = load_file(text.path_of(text.SENTENCES, place))
    data |= {"labels": data["train labels"], "test_labels": data["test labels"], "out of scope": data["outside"]}
    return {**data, "taps": torch.tensor(data["train"].shape[1] - data["weight"].shape[1])}


PROBLEMS = {"cifar": cifar, "digits": digits, "clinc": clinc}


def load(name: str, root: Path, keep: Path) -> Data:
    """Return one of the problems."""
    return PROBLEMS[name](Place(root, keep, True))
