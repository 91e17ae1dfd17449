"""OpenOOD's protocol on the data there is: the library's postprocessor next to others that OpenOOD has, in its table.

Confidences and predictions come from `inference(net, loader)`, as OpenOOD's evaluator asks for them; 1,000 of the test
images are its validation set and 9,000 its test set; rows are the out-of-distribution sets, near ones and their mean
before far ones and theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import auc, precision_recall_curve, roc_curve
from torch import Tensor, nn

from repulse.backbone import split
from repulse.baselines import LastLayer, Resources, build
from repulse.integrations.openood import METRICS, RepulsePostprocessor, postprocessor
from repulse.prediction import ClassPrediction
from repulse_lab.data import load
from repulse_lab.data.images import normalise
from repulse_lab.defaults.images import resized, svhn_crops
from repulse_lab.networks.resnet_cifar import MEAN, STD
from repulse_lab.study.problems import CIFAR10

VALIDATION = 1000
"""Test images that are validation data in OpenOOD, and are not tested on."""

BATCH = 200
"""OpenOOD's batch size."""

NEAR, FAR = ("tin",), ("mnist", "svhn", "texture")
"""The sets of its CIFAR-10 benchmark that are here, by its names; of its own, cifar100 and places365 are missing."""


@dataclass(frozen=True, eq=False)
class Loader:
    """Batches as OpenOOD's loaders give them; it can be read again."""

    images: Tensor
    labels: Tensor

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for images, labels in zip(self.images.split(BATCH), self.labels.split(BATCH), strict=True):
            yield {"data": normalise(images, MEAN, STD), "label": labels}

    def __len__(self) -> int:
        return len(self.labels.split(BATCH))


class LogitPostprocessor(RepulsePostprocessor):
    """A confidence that is a function of the network's logits."""

    def __init__(self, confidence: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.confidence = confidence

    def setup(self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]) -> None:
        """Do nothing: there is nothing to fit."""

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted class and the confidence of each input."""
        logits = net(data)
        return logits.argmax(dim=1), self.confidence(logits)


class FeaturePostprocessor(RepulsePostprocessor):
    """A method of `repulse.baselines` on the penultimate features, with its own defaults.

    Args:
        name: of the method.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def setup(self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]) -> None:
        """Fit the method on the training data."""
        train = id_loader_dict["train"]
        resources = Resources(LastLayer(*split(net, next(iter(train))["data"]).weights))
        self.method = build(self.name, resources).fit(*_features(net, train))

    def inference(
        self, net: nn.Module, data_loader: Any, progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return predictions, confidences and labels."""
        features, labels = _features(net, data_loader)
        prediction, score = self.method.predict_and_score(features)
        assert isinstance(prediction, ClassPrediction)
        return prediction.labels.numpy(), -score.numpy(), labels.numpy()


@lru_cache
@torch.no_grad()
def _features(net: nn.Module, loader: Any) -> tuple[Tensor, Tensor]:
    """Compute penultimate features and labels once for all methods."""
    batches = list(loader)
    backbone = split(net, batches[0]["data"])
    features = torch.cat([backbone.run(batch["data"]) for batch in batches])
    return features, torch.cat([batch["label"] for batch in batches])


def postprocessors() -> dict[str, RepulsePostprocessor]:
    """Return the rows: those of OpenOOD that the library has too, by OpenOOD's names, and ours."""
    names = {"mls": "MaxLogit", "ebo": "Energy", "react": "ReAct", "mds": "Mahalanobis"}
    names |= {"rmds": "relative Mahalanobis", "knn": "KNN", "vim": "ViM"}
    return {
        "msp": LogitPostprocessor(lambda logits: logits.softmax(dim=1).amax(dim=1)),
        **{theirs: FeaturePostprocessor(ours) for theirs, ours in names.items()},
        "repulse": postprocessor(progress=False),
    }


def loaders(root: Path) -> dict[str, dict[str, Loader]]:
    """Return the benchmark's loaders: "id" (train, val, test), "near" and "far"."""
    train = Loader(*load("cifar10", "train", root).labelled)
    images, labels = load("cifar10", "test", root).labelled
    outside = {
        "tin": load("tiny-imagenet", "evaluation", root).images,
        "mnist": resized(load("mnist", "test", root).images, 32).expand(-1, 3, -1, -1),
        "svhn": svhn_crops(root),
        "texture": load("dtd", "ten-classes", root).images,
    }
    strange = {name: Loader(found, -torch.ones(len(found), dtype=torch.int64)) for name, found in outside.items()}
    return {
        "id": {
            "train": train,
            "val": Loader(images[:VALIDATION], labels[:VALIDATION]),
            "test": Loader(images[VALIDATION:], labels[VALIDATION:]),
        },
        "near": {name: strange[name] for name in NEAR},
        "far": {name: strange[name] for name in FAR},
    }


def evaluate(net: nn.Module, processor: RepulsePostprocessor, data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return OpenOOD's table of one postprocessor: the metrics, in percent, by the name of the row."""
    processor.setup(net, data["id"], {"near": data["near"], "far": data["far"]})
    inside = processor.inference(net, data["id"]["test"])
    table: dict[str, list[float]] = {}
    for part in ("near", "far"):
        found = {name: measure(inside, processor.inference(net, loader)) for name, loader in data[part].items()}
        table |= found
        table[f"{part}ood"] = np.mean(list(found.values()), axis=0).tolist()
    return table


def measure(inside: Sequence[np.ndarray], outside: Sequence[np.ndarray]) -> list[float]:
    """Compute FPR@95, AUROC, AUPR_IN, AUPR_OUT and ACC in percent, with out of distribution as the positive class.

    Areas under precision-recall curves are by trapezes, as in OpenOOD; both arguments are what `inference` returns.
    """
    predicted, confidence, labels = inside
    strange = np.concatenate([np.zeros(len(confidence)), np.ones(len(outside[1]))])
    scores = -np.concatenate([confidence, outside[1]])
    fpr, tpr, _ = roc_curve(strange, scores)
    areas = []
    for positive, score in ((1 - strange, -scores), (strange, scores)):
        precision, recall, _ = precision_recall_curve(positive, score)
        areas.append(auc(recall, precision))
    found = (fpr[np.argmax(tpr >= 0.95)], auc(fpr, tpr), *areas, np.mean(predicted == labels))
    return [100 * float(value) for value in found]


def markdown(tables: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the tables of all postprocessors as one, a row for each set and each of them."""
    lines = ["| set | postprocessor | " + " | ".join(METRICS) + " |", "| --- " * (2 + len(METRICS)) + "|"]
    for name in next(iter(tables.values())):
        for processor, table in tables.items():
            bold = "**" if name.endswith("ood") else ""
            cells = " | ".join(f"{value:.2f}" for value in table[name])
            lines.append(f"| {bold}{name}{bold} | {processor} | {cells} |")
    return "\n".join(lines) + "\n"


def run(root: Path) -> str:
    """Run all postprocessors on the published CIFAR-10 ResNet-20, and return their table."""
    published = CIFAR10.published["resnet20"]
    net, data = published.load(published.path(root)), loaders(root)
    return markdown({name: evaluate(net, processor, data) for name, processor in postprocessors().items()})
