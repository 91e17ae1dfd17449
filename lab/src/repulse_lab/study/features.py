"""Features as jobs: every image of a collection goes through a network once, for all that is fitted on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study.bench import Bench
from repulse_lab.study.collections import files_of, images_of, repulsion_of, sets_of
from repulse_lab.study.training import PUBLISHED, Network, load_network, make_ambiguous_digits, training_job

READERS = (
    "repulse_lab.data.images",
    "repulse_lab.data.cifar",
    "repulse_lab.data.glyphs",
    "repulse_lab.data.scenes",
    "repulse_lab.data.toys",
    "repulse_lab.study.dirty_mnist",
)


def _seconds(about: Mapping[str, Any]) -> float:
    each = {"lenet": 0.05, "resnet20": 0.9, "resnet32": 1.4}.get(about["network"]["name"], 0.4)
    return (110_000 if about["collection"] == "dirty-mnist" else 90_000) * each / 1000 + 10


@work(
    "repulse.backbone",
    "repulse.repulsion",
    *READERS,
    "repulse_lab.study.bench",
    "repulse_lab.study.collections",
    seconds=_seconds,
)
def compute_features(about: Mapping[str, Any], place: Place) -> Result:
    """Features of all sets but those to repel on, which are computed for the first who asks; kept in files."""
    view = bench_for(about["collection"], about["network"], about["seed"], place).view("last")
    correct = view.layer(view.test).argmax(dim=1) == images_of(about["collection"], place.data).test_targets
    return {"figures": {"features": float(view.train.shape[1]), "accuracy": 100 * float(correct.double().mean())}}


@cache
def features_job(collection: str, network: Network, seed: int, data: Path) -> Job:
    """The job that computes features by a network, which is trained before unless it is published."""
    about = {"collection": collection, "network": network.about, "seed": seed if network.schedule else 0}
    about |= {"judged": sets_of(collection, data), "repelled": repulsion_of(collection, data)}
    about |= {"files": files_of(collection, data)}
    if network.schedule:
        needs = (training_job(collection, network.about, seed),)
    else:
        about |= {"weights": PUBLISHED[network.name]}
        needs = (Job(make_ambiguous_digits, {}),) if collection == "dirty-mnist" else ()
    return Job(compute_features, about, needs, () if network.schedule else ("repulse_lab.networks.resnet_cifar",))


def bench_for(collection: str, network: Mapping[str, Any], seed: int, place: Place) -> Bench:
    """The features of a network, computed or from the files."""
    return _bench(collection, json.dumps(network, sort_keys=True), seed, place.data, place.keep, place.progress)


@lru_cache(maxsize=2)
def _bench(collection: str, network: str, seed: int, data: Path, keep: Path, progress: bool) -> Bench:
    place = Place(data, keep, progress)
    model = load_network(collection, json.loads(network), seed, place)
    return Bench(images_of(collection, data), model, keep / "features", progress)
