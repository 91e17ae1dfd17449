"""Everything that writes a file: how it is written, and whether what is found afterwards is whole."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import repulse
from repulse import ActiveLearning, Ensemble, fit_heads
from repulse.backbone import compute_features, split
from repulse.backbone.fingerprint import weights_of
from repulse.baselines import KNN
from repulse.baselines.last_layer import LastLayer
from repulse.evaluation import Evaluation, evaluate
from repulse_lab.campaign.finding import QUICK, batches, ensemble, inputs, network
from repulse_lab.jobs.job import Job, Place, Result, execute, result, work
from repulse_lab.networks.train import Schedule, train


@dataclass(frozen=True)
class Writer:
    """Something that writes files.

    Attributes:
        name: in words.
        prepare: puts an older state into a folder.
        write: writes the new state there.
        check: fails unless the folder gives the old state or the new one; may go on with what was begun.
        refuses: whether a damaged file is an error, not something to be made again.
        damaged: whether every byte of its files is under a digest.
    """

    name: str
    prepare: Callable[[Path], object]
    write: Callable[[Path], object]
    check: Callable[[Path], object]
    refuses: bool = True
    damaged: bool = True


def _score(folder: Path) -> Tensor:
    return repulse.load(folder, network()).score(inputs(9, 5))


def _saved_ensemble() -> Writer:
    old, new = ensemble(0), ensemble(1)
    known = [e.score(inputs(9, 5)) for e in (old, new)]

    def check(folder: Path) -> None:
        assert any(torch.equal(_score(folder), score) for score in known), "neither the old nor the new"

    return Writer("a saved ensemble", old.save, new.save, check)


def _kept_features() -> Writer:
    backbone = split(network(), inputs(6))
    data = [(x.clone(), y) for x, y in batches(3)]
    right = compute_features(backbone, data, None, progress=False)

    def write(folder: Path) -> Any:
        return compute_features(backbone, data, None, cache=folder, progress=False)

    def check(folder: Path) -> None:
        found = write(folder)  # what was begun is gone on with
        assert torch.equal(found.train, right.train), "other features"
        assert torch.equal(found.targets, right.targets), "other targets"

    return Writer("features kept in a folder", lambda folder: None, write, check, refuses=False)


def _saved_with_features() -> Writer:
    old, new = ensemble(0), ensemble(1)
    known = [(e.score(inputs(9, 5)), e.required_features("a campaign").train) for e in (old, new)]

    def check(folder: Path) -> None:
        found = repulse.load(folder, network())
        score, kept = found.score(inputs(9, 5)), found.required_features("a campaign").train
        assert any(torch.equal(score, s) and torch.equal(kept, k) for s, k in known), "heads with features of others"

    def save(made: Ensemble, folder: Path) -> None:
        made.save(folder, features=True)
        assert len(list(folder.iterdir())) == 3, "something is left"

    return Writer("a saved ensemble with its features", partial(save, old), partial(save, new), check)


def _saved_watch() -> Writer:
    gate = copy.copy(ensemble(0)).gate(batches(), progress=False)
    old, new = gate.watch(), gate.watch()
    old.update(inputs(9, 5))
    new.update(inputs(30, 6))
    known = [watch.update(gate(inputs(9, 7))).evidence_epistemic for watch in map(copy.deepcopy, (old, new))]

    def check(folder: Path) -> None:
        found = gate.resume(folder / "watch.state").update(inputs(9, 7)).evidence_epistemic
        assert found in known, "other evidence"

    return Writer(
        "a watch over a stream",
        lambda f: old.save(f / "watch.state"),
        lambda f: new.save(f / "watch.state"),
        check,
    )


def _saved_evaluation() -> Writer:
    old, new = (evaluate(ensemble(i), batches(), name=f"{i}", progress=False) for i in (0, 1))

    def check(folder: Path) -> None:
        assert Evaluation.from_json(folder / "e.json") in (old, new), "other figures"

    return Writer("an evaluation", lambda f: old.to_json(f / "e.json"), lambda f: new.to_json(f / "e.json"), check)


def _training() -> Writer:
    schedule = Schedule(epochs=6, lr=0.1, batch_size=20)
    images, targets = inputs(), torch.arange(60) % 3

    def write(folder: Path) -> str:
        model = network()
        train(model, images, targets, schedule, checkpoint=folder, progress=False)
        return weights_of(model)

    with tempfile.TemporaryDirectory() as name:
        right = write(Path(name))

    def check(folder: Path) -> None:
        assert write(folder) == right, "other weights"  # goes on to the very numbers of an undisturbed training

    return Writer("a training", lambda folder: None, write, check, refuses=True, damaged=False)


def _saved_method() -> Writer:
    layer, targets = LastLayer(inputs(3, 1), torch.zeros(3)), torch.arange(60) % 3
    old, new = KNN(layer).fit(inputs(60), targets), KNN(layer).fit(inputs(60, 1), targets)
    known = [method.score(inputs(9, 5)) for method in (old, new)]

    def check(folder: Path) -> None:
        found = KNN.load(folder / "method").score(inputs(9, 5))
        assert any(torch.equal(found, score) for score in known), "other scores"

    return Writer("a saved baseline", lambda f: old.save(f / "method"), lambda f: new.save(f / "method"), check)


def _saved_labels() -> Writer:
    def learning(count: int) -> ActiveLearning:
        made = ActiveLearning(inputs(), lambda *_: None)
        made.tell(range(count), [i % 3 for i in range(count)])
        return made

    def check(folder: Path) -> None:
        found = ActiveLearning(inputs(), lambda *_: None)
        found.load(folder / "labels.json")
        assert found.known in (learning(20).known, learning(40).known), "other labels"

    return Writer(
        "labels of active learning",
        lambda f: learning(20).save(f / "labels.json"),
        lambda f: learning(40).save(f / "labels.json"),
        check,
    )


@work(seconds=lambda about: 1.0)
def square(about: Mapping[str, Any], place: Place) -> Result:
    """Do a little work."""
    heads = fit_heads(inputs(), torch.arange(60) % 3, None, QUICK.replace(seed=about["seed"]), progress=False)
    return {"figures": {"value": float(about["value"] ** 2), "weight": float(heads.vectors().double().sum())}}


def _cell() -> Writer:
    job = Job(square, {"value": 7, "seed": 3})

    def write(folder: Path) -> None:
        execute(job, Place(folder, folder))

    def check(folder: Path) -> None:
        write(folder)  # a damaged one is done again
        found = result(job, Place(folder, folder))
        right = square({"value": 7, "seed": 3}, Place(folder, folder))
        assert found == json.loads(json.dumps(right)), "another result"
        assert [path.name for path in (folder / "cells").iterdir()] == [f"{job.key}.json"], "something is left"

    return Writer("the cell of a job", lambda folder: None, write, check, refuses=False)


@cache
def writers() -> tuple[Writer, ...]:
    """Return all of them."""
    makes = (_kept_features, _saved_ensemble, _saved_with_features, _saved_method, _saved_labels, _saved_watch)
    return tuple(make() for make in (*makes, _saved_evaluation, _cell, _training))
