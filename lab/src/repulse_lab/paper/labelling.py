"""Buying labels among ambiguous digits: one strategy, from the first labels to the last.

A pool holds sixty ambiguous pairs of an image and a label for every clean digit. Starting from two clean digits of each
class, five pairs are bought at a time, with the tool that users have, `repulse.ActiveLearning`; networks, and what is
fitted on their features, start from scratch at every step. In the paper's pool an ambiguous image is ten pairs with ten
labels; buying one of them buys no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse.active.acquire import ActiveLearning
from repulse.backbone.split import split
from repulse.baselines import DDU, MAP, DeepEnsemble, LastLayer, LastLayerEnsemble, Method
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import FS_RLL_E, NAMED
from repulse_lab.data import load
from repulse_lab.data.images import normalise
from repulse_lab.jobs.job import Place, Result, work
from repulse_lab.networks import build
from repulse_lab.networks.train import Schedule, train
from repulse_lab.study.dirty_mnist import ambiguous_mnist
from repulse_lab.study.problems import DIRTY_MNIST

CLASSES, FIRST, EACH = 10, 2, 5
"""Classes, labels of each to begin with, and labels bought at a time."""
BATCH, OUTSIDE = 500, 10_000
"""Images that are looked at together, and pairs of the pool to repel on."""

STRATEGIES = {
    "DE-3 PE": ("DE-3", "total"),
    "DE-3 MI": ("DE-3", "epistemic"),
    "MAP": ("MAP", "total"),
    "DDU": ("DDU", "own"),
    "LL-E PE": ("LL-E", "total"),
    "LL-E MI": ("LL-E", "epistemic"),
    "fs-RLL-E PE": ("fs-RLL-E", "total"),
    "fs-RLL-E MI": ("fs-RLL-E", "epistemic"),
    "repulse MI": ("repulse", "epistemic"),
    "repulse BatchBALD": ("repulse", "batchbald"),
    "random": ("MAP", "random"),
}
"""Who is asked, and by which score of `repulse.active.acquire` they choose."""
RECIPES = NAMED | {"fs-RLL-E": FS_RLL_E.replace(strength=0.1)}
REPELLED = ("fs-RLL-E", "repulse")


@dataclass(frozen=True, eq=False)
class Pool:
    """What can be bought.

    Attributes:
        inputs: images as the network takes them, every one once: first the clean ones.
        clean: how many are clean.
        numbers: the image of each pair.
        targets: the label of each pair.
    """

    inputs: Tensor
    clean: int
    numbers: Tensor
    targets: Tensor

    @staticmethod
    def drawn(root: Path, clean: int, ambiguous: int, labels: int, seed: int) -> Pool:
        """Draw some of the training digits, and ambiguous ones with some of their ten labels."""
        generator = torch.Generator().manual_seed(seed)
        images, targets = load("mnist", "train", root).labelled
        dirt = ambiguous_mnist(root, "train", progress=False)
        taken = torch.randperm(len(images), generator=generator)[:clean]
        others = torch.randperm(len(dirt), generator=generator)[:ambiguous]
        numbers = torch.cat([torch.arange(clean), clean + torch.arange(len(others)).repeat_interleave(labels)])
        drawn = torch.cat([targets[taken], dirt.labels[others, :labels].flatten()])
        return Pool(as_inputs(torch.cat([images[taken], dirt.images[others]])), clean, numbers, drawn)

    def first(self) -> Tensor:
        """Return the same number of clean pairs of each class."""
        targets = self.targets[: self.clean]
        return torch.cat([(targets == label).nonzero().flatten()[:FIRST] for label in range(CLASSES)])


@dataclass(frozen=True, eq=False)
class Exam:
    """Test digits, clean ones first, and the ten labels of the others."""

    inputs: Tensor
    targets: Tensor
    labels: Tensor

    @staticmethod
    def of(root: Path, part: int) -> Exam:
        """Take one in `part` of the clean and of the ambiguous test images, the same ones always."""
        images, targets = load("mnist", "test", root).labelled
        dirt = ambiguous_mnist(root, "test", progress=False)
        some, others = (torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // part]
                        for n in (len(images), len(dirt)))  # fmt: skip
        return Exam(as_inputs(torch.cat([images[some], dirt.images[others]])), targets[some], dirt.labels[others])

    def accuracies(self, labels: Tensor) -> tuple[float, float]:
        """Compute the accuracy of labels in per cent, on all pairs of an image and a label and on the clean ones."""
        clean = len(self.targets)
        right = labels[:clean] == self.targets
        every = torch.cat([right, (labels[clean:].unsqueeze(1) == self.labels).flatten()])
        return 100 * float(every.double().mean()), 100 * float(right.double().mean())


def as_inputs(images: Tensor) -> Tensor:
    return normalise(images, DIRTY_MNIST.mean, DIRTY_MNIST.std)


@dataclass(frozen=True, eq=False)
class Asked:
    """What a method says of the images of a pool, by their numbers: the ten pairs of one image are predicted once."""

    prediction: Prediction
    scores: Tensor
    examine: Callable[[Tensor], Prediction]

    def predict(self, numbers: Tensor) -> Prediction:
        return self.prediction[numbers]

    def score(self, numbers: Tensor) -> Tensor:
        return self.scores[numbers]


def _asked(method: Method, seen: Tensor, view: Callable[[Tensor], Tensor]) -> Asked:
    """Ask a method that takes what `view` makes of inputs; `seen` is the pool as it takes it."""
    return Asked(*method.predict_and_score(seen), lambda inputs: method.predict(view(inputs)))


@dataclass(frozen=True, eq=False)
class Learner:
    """Trains networks on what is labelled, and a method on top."""

    pool: Pool
    method: str
    about: Mapping[str, Any]

    def train(self, indices: Tensor, labels: Tensor) -> Asked:
        """Train from scratch; for a seed and a number of labels, all methods begin with the same weights."""
        seed = 100_000 * self.about["seed"] + 10 * len(indices)
        numbers = self.pool.numbers[indices]
        members = 3 if self.method == "DE-3" else 1
        networks = [self._network(numbers, labels, seed + member) for member in range(members)]
        if self.method == "DE-3":
            return _asked(DeepEnsemble(networks), self.pool.inputs, lambda inputs: inputs)
        backbone = split(networks[0], self.pool.inputs[:2])

        @torch.no_grad()
        def view(inputs: Tensor) -> Tensor:
            return torch.cat([backbone(part) for part in inputs.split(BATCH)])

        seen = view(self.pool.inputs)
        return _asked(self._fitted(LastLayer(*backbone.weights), seen, indices, labels, seed), seen, view)

    def _network(self, numbers: Tensor, labels: Tensor, seed: int) -> nn.Module:
        draws = torch.arange(self.about["draws"]) % len(numbers)  # the training shuffles them
        network = build(classes=CLASSES, channels=1, size=28, seed=seed, **self.about["network"])
        schedule = Schedule(**self.about["schedule"])
        train(network, self.pool.inputs[numbers[draws]], labels[draws], schedule, seed=seed, progress=False)
        return network

    def _fitted(self, layer: LastLayer, seen: Tensor, indices: Tensor, labels: Tensor, seed: int) -> Method:
        numbers = self.pool.numbers[indices]
        if self.method in RECIPES:
            steps = self.about["head steps"]
            recipe = RECIPES[self.method].replace(**self.about["heads"].get(self.method, {}), seed=seed)
            recipe = recipe.replace(epochs=steps // max(len(numbers) // recipe.batch_size, 1))
            outside = seen[self._unlabelled(indices, seed)] if self.method in REPELLED else None
            method = LastLayerEnsemble(CLASSES, recipe, outside, layer=layer)
        else:
            method = {"MAP": MAP, "DDU": DDU}[self.method](layer)
        return method.fit(seen[numbers], labels)

    def _unlabelled(self, indices: Tensor, seed: int) -> Tensor:
        """Return images of some pairs that are not bought yet, to repel on."""
        free = torch.ones(len(self.pool.numbers), dtype=torch.bool)
        free[indices] = False
        left = self.pool.numbers[free]
        return left[torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))[:OUTSIDE]]


def _seconds(about: Mapping[str, Any]) -> float:
    method = STRATEGIES[about["strategy"]][0]
    one = about["draws"] * (1.5e-4 if about["network"]["name"] == "lenet" else 0.02)
    heads = about["head steps"] * 1e-3 if method in RECIPES else 0.0
    return about["rounds"] * (one * (3 if method == "DE-3" else 1) + heads + 0.4)


METHODS = tuple(
    f"repulse.baselines.{name}"
    for name in ("contract", "last_layer", "detector", "heads", "map", "ddu", "_gaussians", "deep_ensemble")
)
CODE = (
    "repulse.active.acquire",
    "repulse.active.batchbald",
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse_lab.networks",
    "repulse.backbone.split",
    "repulse_lab.data.images",
)


@work(*CODE, *METHODS, seconds=_seconds)
def buy(about: Mapping[str, Any], place: Place) -> Result:
    """Follow one strategy from the first labels to the last: what it bought, and how good that made it."""
    pool = Pool.drawn(place.data, about["clean"], about["ambiguous"], about["labels"], about["seed"])
    exam = Exam.of(place.data, about["test"])
    method, score = STRATEGIES[about["strategy"]]
    learner = Learner(pool, method, about)
    learning = ActiveLearning(pool.numbers, learner.train, score, seed=about["seed"], batch_size=4096, progress=False)
    first = pool.first()
    learning.tell(first, pool.targets[first])
    curves: dict[str, list[float]] = {"samples": [], "accuracy": [], "clean accuracy": [], "ambiguous share": []}

    def judge() -> None:
        prediction = learning.predictor.examine(exam.inputs)
        assert isinstance(prediction, ClassPrediction)
        bought = learning.indices[len(first) :]
        share = 100 * float((bought >= pool.clean).double().mean()) if len(bought) else 0.0
        found = (len(learning.known), *exam.accuracies(prediction.labels), share)
        for curve, value in zip(curves.values(), found, strict=True):
            curve.append(round(value, 4))

    judge()
    for _ in learning.run(lambda indices: pool.targets[indices], EACH, about["rounds"]):
        judge()
    bought = learning.indices[len(first) :]
    figures = {
        "final accuracy": curves["accuracy"][-1],
        "clean accuracy": curves["clean accuracy"][-1],
        "mean accuracy": statistics.fmean(curves["accuracy"]),
        "mean clean accuracy": statistics.fmean(curves["clean accuracy"]),
        "ambiguous share": curves["ambiguous share"][-1],
        "images": 100 * len(pool.numbers[bought].unique()) / len(bought),
    }
    return {"figures": figures, "curves": curves, "bought": learning.indices.tolist()}
