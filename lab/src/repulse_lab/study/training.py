"""Networks as jobs: trained once, kept, and shared by every experiment that needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from repulse._files import write_whole
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.networks import build
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published
from repulse_lab.networks.train import SCHEDULES, train
from repulse_lab.study.collections import DIGIT_MEAN, DIGIT_STD, training_set
from repulse_lab.study.dirty_mnist import ambiguous_mnist

PUBLISHED = {"resnet20": "resnet20-12fca82f.th", "resnet32": "resnet32-d509ac18.th"}
SHAPES = {"dirty-mnist": (1, 28, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}
"""Channels, size and classes."""


@dataclass(frozen=True)
class Network:
    """A network, in words.

    Attributes:
        label: in tables.
        name: as in `repulse_lab.networks.build`.
        schedule: how it is trained; empty for published weights.
        width: see `build`.
        spectral_norm: see `build`.
        mod: see `build`.
        like: the network of the paper that it stands for.
    """

    label: str
    name: str
    schedule: str = ""
    width: int | None = None
    spectral_norm: float | None = None
    mod: bool = False
    like: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """What decides its weights, beside the seed and the data."""
        return {key: value for key, value in asdict(self).items() if key not in ("label", "like") and value}


COST = {"lenet": 0.11, "vgg11": 0.02, "vgg16": 0.035, "resnet18": 0.03, "resnet50": 0.2, "resnet101": 0.4}
"""Milliseconds for one image of training on one core, of LeNet, and of others for each squared channel of the width."""


def _seconds(about: Mapping[str, Any]) -> float:
    network, schedule = about["network"], SCHEDULES[about["network"]["schedule"]]
    images = 120_000 if about["collection"] == "dirty-mnist" else 50_000
    width = network.get("width") or (10 if network["name"] == "wrn28-10" else 64)
    each = COST["lenet"] if network["name"] == "lenet" else COST.get(network["name"], 0.5) * width**1.65
    return schedule.epochs * images * each / 1000


@work("repulse_lab.study.ambiguous", seconds=lambda about: 270.0)
def make_ambiguous_digits(about: Mapping[str, Any], place: Place) -> Result:
    """AmbiguousMNIST, unless it is there."""
    made = ambiguous_mnist(place.data, "train", progress=place.progress)
    return {"figures": {"images": float(len(made))}}


@work("repulse_lab.networks", "repulse_lab.data.images", "repulse_lab.study.dirty_mnist", seconds=_seconds)
def train_network(about: Mapping[str, Any], place: Place) -> Result:
    """A trained network, whose weights are kept in a file."""
    images, targets = training_set(about["collection"], place.data, place.progress)
    network = fresh(about)
    job = training_job(about["collection"], about["network"], about["seed"])
    folder = place.keep / "networks" / job.key
    mean, std = (DIGIT_MEAN, DIGIT_STD) if about["collection"] == "dirty-mnist" else (MEAN, STD)
    how = {"mean": mean, "std": std, "seed": about["seed"], "checkpoint": folder, "progress": place.progress}
    records = train(network, images, targets, SCHEDULES[about["network"]["schedule"]], **how)
    write_whole(_weights(job, place), save({k: v.contiguous() for k, v in network.state_dict().items()}))
    last = records[-1]
    return {"figures": {"loss": last.loss, "training accuracy": 100 * last.accuracy}}


def training_job(collection: str, network: Mapping[str, Any], seed: int) -> Job:
    """The job that trains a network."""
    needs = (Job(make_ambiguous_digits, {}),) if collection == "dirty-mnist" else ()
    return Job(train_network, {"collection": collection, "network": dict(network), "seed": seed}, needs)


def fresh(about: Mapping[str, Any]) -> nn.Module:
    """The network before its training."""
    channels, size, classes = SHAPES[about["collection"]]
    options = {key: value for key, value in about["network"].items() if key not in ("name", "schedule")}
    return build(about["network"]["name"], classes, channels, size, seed=about["seed"], **options)


def load_network(collection: str, network: Mapping[str, Any], seed: int, place: Place) -> nn.Module:
    """A network with its published or trained weights, in eval mode."""
    if network.get("schedule"):
        job = training_job(collection, network, seed)
        made = fresh(job.about)
        made.load_state_dict(load_file(_weights(job, place)))
    else:
        made = load_published(place.data / "weights" / PUBLISHED[network["name"]], int(network["name"][6:]))
    return made.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]


def _weights(job: Job, place: Place) -> Path:
    return place.keep / "networks" / job.key / "weights.safetensors"
