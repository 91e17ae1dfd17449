"""Corrupted images as jobs: their features, made once for each network and corruption, and methods judged on them.

A deep ensemble needs no images either: the logits of its members come from their features.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repulse import metrics
from repulse._tensors import read_tensors, write_tensors
from repulse.backbone import split
from repulse.prediction import ClassPrediction, Prediction
from repulse_lab.data import load
from repulse_lab.data.corruptions import KINDS, SEVERITIES, corrupt
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study.cells import CODE, fit_method, networks_of
from repulse_lab.study.features import BATCH, features_of
from repulse_lab.study.problems import images_of, problem_of
from repulse_lab.study.training import load_network, training_job

CLEAN = "clean"
SHOWN = (1, 3, 5)
"""Severities at which corruptions are shown one by one."""
NO_TAPS = ("resnet32",)
"""Networks of which only the penultimate features are wanted, as members of a deep ensemble."""


def _pass_seconds(about: Mapping[str, Any]) -> float:
    each = {"resnet20": 1.6, "resnet32": 2.4, "resnet18": 2.0}.get(about["network"]["name"], 200.0)
    return 1 + len(_severities(about["kind"])) * about["count"] * each / 1000


@work(
    "repulse_lab.data.corruptions",
    "repulse_lab.data.images",
    "repulse.backbone",
    "repulse_lab.networks",
    seconds=_pass_seconds,
)
def corrupt_images(about: Mapping[str, Any], place: Place) -> Result:
    """Keep, in a file, features by one network of the first test images under one corruption at each severity."""
    images = images_of(problem_of(about["problem"]), place.data)
    network = load_network(about["problem"], about["network"], about["seed"], place)
    layers = "last" if about["network"]["name"] in NO_TAPS else "auto"
    backbone = split(network, images.prepared(images.train[:4]), layers=layers)
    kept: dict[str, Tensor] = {}
    for severity in _severities(about["kind"]):
        batch, targets = _corrupted(about, severity, place)
        with torch.no_grad():
            parts = [backbone(images.prepared(part)) for part in batch.split(BATCH)]
        kept |= {f"features {severity}": torch.cat(parts), "targets": targets}  # the same at each severity
    write_tensors(_file(about, about["network"], about["seed"], about["kind"], place), kept)
    return {"figures": {"images": float(about["count"])}}


def corruption_job(about: Mapping[str, Any], network: Mapping[str, Any], seed: int, kind: str) -> Job:
    """Return the job that keeps features of images under one corruption, or of clean ones.

    Args:
        about: with the "problem", the "count" of images, and whether they come from the "published" files.
        network: as plain JSON.
        seed: of the network.
        kind: of corruption, or "clean".
    """
    what = {key: about[key] for key in ("problem", "count", "published")}
    what |= {"network": dict(network), "seed": seed, "kind": kind}
    needs = (training_job(about["problem"], network, seed),) if network.get("schedule") else ()
    return Job(corrupt_images, what, needs)


def _file(about: Mapping[str, Any], network: Mapping[str, Any], seed: int, kind: str, place: Place) -> Path:
    return place.keep / "corrupted" / f"{corruption_job(about, network, seed, kind).key}.safetensors"


def _severities(kind: str) -> Sequence[int]:
    return (0,) if kind == CLEAN else SEVERITIES


def _corrupted(about: Mapping[str, Any], severity: int, place: Place) -> tuple[Tensor, Tensor]:
    images, count = images_of(problem_of(about["problem"]), place.data), about["count"]
    if severity and about["published"]:
        batch, targets = load(f"{about['problem']}-c", f"{about['kind']}-{severity}", place.data).labelled
        return batch[:count], targets[:count]
    batch = images.test[:count]
    return corrupt(batch, about["kind"], severity) if severity else batch, images.test_targets[:count]


def _seconds(about: Mapping[str, Any]) -> float:
    return {"SNGP": 12.0, "LL-Laplace": 38.0, "repulse": 11.0}.get(about["method"], 3.0) * about["count"] / 1000


@work(*CODE, "repulse_lab.study.features", "repulse_lab.study.cells", seconds=_seconds)
def judge_under_corruption(about: Mapping[str, Any], place: Place) -> Result:
    """Judge a method, fitted on clean training features, on all corrupted images.

    What calibrates is calibrated on the clean test images that are not judged.
    """
    trial, _ = fit_method(about, place)
    if trial.method.calibrates:
        rest = slice(about["count"], None)
        trial.method.calibrate(trial.sets()[0][rest], trial.images.test_targets[rest])
    networks = networks_of(about)
    changes = [features_of(about["problem"], *one, place).transform(about.get("layers", "last")) for one in networks]
    found: dict[tuple[str, int], dict[str, float]] = {}
    for kind in (CLEAN, *KINDS):
        files = [read_tensors(_file(about, *network, kind, place))[0] for network in networks]
        for severity in _severities(kind):
            parts = [change(file[f"features {severity}"]) for change, file in zip(changes, files, strict=True)]
            prediction = trial.method.predict(torch.cat(parts, dim=1))
            found[kind, severity] = _judged(prediction, files[0]["targets"])
    return {"figures": summary(found)}


def _judged(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    """Compute all metrics on one set; a single member has no epistemic uncertainty to speak of."""
    assert isinstance(prediction, ClassPrediction)
    found = {"nll": metrics.nll(prediction, targets), "ece": 100 * metrics.ece(prediction, targets)}
    found["accuracy"] = 100 * metrics.accuracy(prediction, targets)
    several = prediction.members > 1
    return found | ({"epistemic": float(prediction.epistemic.double().mean())} if several else {})


def summary(found: Mapping[tuple[str, int], Mapping[str, float]]) -> dict[str, float]:
    """Average over corruptions at each severity, over all severities, and list some corruptions one by one."""
    figures: dict[str, float] = {}
    for metric in found[CLEAN, 0]:
        means = [statistics.fmean(found[kind, severity][metric] for kind in KINDS) for severity in SEVERITIES]
        figures |= {f"{metric} severity {s}": mean for s, mean in enumerate([found[CLEAN, 0][metric], *means])}
        figures[f"{metric} mean"] = statistics.fmean(means)
        for kind in KINDS:
            figures |= {f"{metric} {words(kind)} {s}": found[kind, s][metric] for s in SHOWN}
    return figures


def words(kind: str) -> str:
    """Return the name of a corruption."""
    return kind.replace("_", " ")
