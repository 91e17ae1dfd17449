"""Networks as jobs: trained once, kept, and shared by every experiment that needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repulse._tensors import read_tensors, write_tensors
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.networks import build
from repulse_lab.networks.train import SCHEDULES, train
from repulse_lab.study.dirty_mnist import ambiguous_mnist
from repulse_lab.study.problems import DirtyMnist, problem_of


@dataclass(frozen=True)
class Network:
    """A description of a network.

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
        """Return what decides its weights, apart from the seed and the data."""
        return {key: value for key, value in asdict(self).items() if key not in ("label", "like") and value}


@dataclass(frozen=True)
class Networks:
    """The networks of a table.

    Attributes:
        networks: in the order of the table.
        seeds: number of each that are trained; of published ones, number of times that methods are fitted.
        members: number of networks in a deep ensemble of each, if it is not the number of seeds; a deep ensemble of
            published networks has all of them.
    """

    networks: Sequence[Network]
    seeds: Mapping[str, int] | int
    members: int | None = None

    def count(self, network: Network) -> int:
        """Return the number of seeds of a network."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds[network.label]


COST = {"lenet": 0.11, "vgg11": 0.02, "vgg16": 0.035, "resnet18": 0.03, "resnet50": 0.2, "resnet101": 0.4}
"""Milliseconds to train on one image on one core: of LeNet, and of others divided by `width**1.65`."""


def _seconds(about: Mapping[str, Any]) -> float:
    network, schedule = about["network"], SCHEDULES[about["network"]["schedule"]]
    images = 120_000 if about["problem"] == "dirty-mnist" else 50_000
    width = network.get("width") or (10 if network["name"] == "wrn28-10" else 64)
    each = COST["lenet"] if network["name"] == "lenet" else COST.get(network["name"], 0.5) * width**1.65
    return schedule.epochs * images * each / 1000


@work("repulse_lab.study.ambiguous", seconds=lambda about: 270.0)
def make_ambiguous_digits(about: Mapping[str, Any], place: Place) -> Result:
    """Build AmbiguousMNIST, unless it is there."""
    made = ambiguous_mnist(place.data, "train", progress=place.progress)
    return {"figures": {"images": float(len(made))}}


def ambiguous_digits_job(problem: str) -> tuple[Job, ...]:
    """Return the job that builds ambiguous digits, for a problem that has them."""
    return (Job(make_ambiguous_digits, {}),) if isinstance(problem_of(problem), DirtyMnist) else ()


@work("repulse_lab.networks", "repulse_lab.data.images", "repulse_lab.study.dirty_mnist", seconds=_seconds)
def train_network(about: Mapping[str, Any], place: Place) -> Result:
    """Train a network and keep its weights in a file."""
    problem = problem_of(about["problem"])
    images, targets = problem.training_set(place.data, place.progress)
    network = fresh(about)
    job = training_job(about["problem"], about["network"], about["seed"])
    folder = place.keep / "networks" / job.key
    how = {"mean": problem.mean, "std": problem.std, "seed": about["seed"], "checkpoint": folder}
    schedule = SCHEDULES[about["network"]["schedule"]]
    last = train(network, images, targets, schedule, **how, progress=place.progress)[-1]
    write_tensors(_weights(job, place), network.state_dict())
    return {"figures": {"loss": last.loss, "training accuracy": 100 * last.accuracy}}


def training_job(problem: str, network: Mapping[str, Any], seed: int) -> Job:
    """Return the job that trains a network."""
    about = {"problem": problem, "network": dict(network), "seed": seed}
    return Job(train_network, about, ambiguous_digits_job(problem))


def fresh(about: Mapping[str, Any]) -> nn.Module:
    """Return the network before its training."""
    channels, size, classes = problem_of(about["problem"]).shape
    options = {key: value for key, value in about["network"].items() if key not in ("name", "schedule")}
    return build(about["network"]["name"], classes, channels, size, seed=about["seed"], **options)


def load_network(problem: str, network: Mapping[str, Any], seed: int, place: Place) -> nn.Module:
    """Return a network with its published or trained weights, in eval mode."""
    if network.get("schedule"):
        job = training_job(problem, network, seed)
        made = fresh(job.about)
        made.load_state_dict(read_tensors(_weights(job, place))[0])
    else:
        published = problem_of(problem).published[network["name"]]
        made = published.load(published.path(place.data))
    return made.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]


def _weights(job: Job, place: Place) -> Path:
    return place.keep / "networks" / job.key / "weights.safetensors"
