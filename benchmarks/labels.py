"""What new labels cost, and whether wrong ones are found: CIFAR-10, published ResNet-20.

Puts the tables `updates` and `audits` in docs/active-learning.md. Half of the test set is validation data; figures are
of the other half. Ensembles are kept in a folder with the processor time that they took, so that it goes on where it
was stopped; remove the folder to measure anew.

    REPULSE_DATA=data python benchmarks/labels.py [updates audits]    # five minutes on one core
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

import repulse
from repulse._files import write_whole
from repulse.backbone.features import compute_features
from repulse.evaluation.table import Column, Table
from repulse.metrics import accuracy, aupr, auroc, ece
from repulse.prediction import ClassPrediction, Prediction
from repulse_lab.study.problems import PROBLEMS, Images, halves
from tables import ROOT, insert

NEW = 1000
"""Labels that come later."""

FLIPPED = 0.01
"""Share of training labels that are replaced by another class."""

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Lazy:
    """Batches that are normalised when they are read."""

    def __init__(self, images: Images, x: Tensor, y: Tensor, size: int = 500) -> None:
        self.images, self.x, self.y, self.size = images, x, y, size

    def __len__(self) -> int:
        return math.ceil(len(self.x) / self.size)

    def __iter__(self):
        for i in range(0, len(self.x), self.size):
            yield self.images.prepared(self.x[i : i + self.size]), self.y[i : i + self.size]


Sets = dict[str, Tensor]
"""Features of the test half, and of each set that is not CIFAR-10."""


def features_of(ensemble: repulse.Ensemble, sets: dict[str, Lazy], folder: Path) -> Sets:
    """Compute features once, and keep them; ensembles on one network share them."""
    found = {}
    for name, loader in sets.items():
        path = folder / "features" / f"{name}.safetensors"
        if not path.exists():
            features = compute_features(ensemble.backbone, loader, None, progress=False).train
            write_whole(path, save({"features": features}))
        found[name] = load_file(path)["features"]
    return found


def predicted(ensemble: repulse.Ensemble, features: Tensor) -> ClassPrediction:
    """Return what heads make of features."""
    found = Prediction.cat([ensemble.heads.predict(part.float()) for part in features.split(5000)])
    assert isinstance(found, ClassPrediction)
    return found


def measured(ensemble: repulse.Ensemble, sets: Sets, targets: Tensor) -> dict[str, float]:
    """Return accuracy, calibration and the mean AUROC over sets, in percent."""
    found = {name: predicted(ensemble, features) for name, features in sets.items()}
    inside = found.pop("test")
    return {
        "accuracy": 100 * accuracy(inside, targets),
        "ece": 100 * ece(inside, targets),
        "auroc": 100 * sum(auroc(inside.epistemic, far.epistemic) for far in found.values()) / len(found),
    }


@dataclass(frozen=True)
class Kept:
    """Ensembles on one network, and what it took to make them, in a folder."""

    folder: Path
    model: nn.Module

    def made(self, name: str, make: Callable[[], repulse.Ensemble]) -> tuple[repulse.Ensemble, float]:
        """Return an ensemble and the processor time of making it, which does not depend on who else is at work."""
        told = self.folder / name / "seconds.json"
        if not told.exists():
            began = time.process_time()
            ensemble = make()
            seconds = time.process_time() - began
            ensemble.save(told.parent, features=True)
            told.write_text(json.dumps(seconds))
        ensemble = repulse.load(told.parent, self.model)
        ensemble.required_features("update")  # read now, not while something is timed
        return ensemble, json.loads(told.read_text())


@dataclass(frozen=True)
class Data:
    """CIFAR-10, cut in parts."""

    images: Images
    count: int
    validation: Lazy
    test: Lazy
    outside: dict[str, Lazy]

    def train(self, begin: int, end: int) -> Lazy:
        """Return some of the training images."""
        return Lazy(self.images, self.images.train[begin:end], self.images.targets[begin:end])


def old_of(kept: Kept, data: Data) -> tuple[repulse.Ensemble, float]:
    """Retrofit the network on all but the newest labels."""
    train, options = data.train(0, data.count - NEW), {"class_names": NAMES, "progress": False}
    return kept.made("before", lambda: repulse.retrofit(kept.model, train, validation=data.validation, **options))


def updates(kept: Kept, data: Data) -> None:
    """Compare an update by new labels with a retrofit on all, and what forgets them with what never knew them."""
    count, options = data.count, {"class_names": NAMES, "progress": False}
    before, _ = old_of(kept, data)
    updated, update = kept.made("updated", lambda: before.update(data.train(count - NEW, count), progress=False))
    again, retrofit = kept.made(
        "again", lambda: repulse.retrofit(kept.model, data.train(0, count), validation=data.validation, **options)
    )
    forgotten, forget = kept.made("forgotten", lambda: again.forget(range(count - NEW, count), progress=False))
    sets, rows = features_of(before, {"test": data.test, **data.outside}, kept.folder), []
    for name, ensemble, seconds in (
        ("before", before, float("nan")),
        (f"update by {NEW:,} labels", updated, update),
        ("retrofit on all", again, retrofit),
        ("retrofit on all, then forget them", forgotten, forget),
    ):
        cost = {"seconds": seconds, "times faster": retrofit / seconds}
        rows.append((name, {**measured(ensemble, sets, data.test.y), **cost}))
    never = kept.made("never", lambda: _never(again, count - NEW))[0]
    for title, other in (("a retrofit without them", before), ("a fit without them", never)):
        apart = [predicted(one, sets["test"]).probs for one in (other, forgotten)]
        print(f"forgotten against {title}: probabilities differ by at most {(apart[0] - apart[1]).abs().max():.2g}")
    columns = {
        "accuracy": Column("accuracy", 2), "ece": Column("ECE", 2), "auroc": Column("mean AUROC", 2),
        "seconds": Column("seconds", 1), "times faster": Column("times faster", 1),
    }  # fmt: skip
    show("updates", rows, columns)


def _never(ensemble: repulse.Ensemble, count: int) -> repulse.Ensemble:
    """Fit heads on the first rows of what was kept, by themselves."""
    kept = ensemble.required_features("fit")
    few = dataclasses.replace(kept, train=kept.train[:count], targets=kept.targets[:count])
    heads = few.fit(ensemble.backbone, ensemble.recipe or repulse.Recipe(), progress=False)
    return repulse.Ensemble(ensemble.backbone, heads, class_names=NAMES, kept=few)


def audits(kept: Kept, data: Data, half: Tensor, seed: int = 0) -> None:
    """Find labels that were changed at random, and test labels that most people would not give."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    ensemble, _ = old_of(kept, data)
    features, rows = ensemble.required_features("audit"), []
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(features.targets), generator=generator) < FLIPPED
    shift = torch.randint(1, 10, (len(features.targets),), generator=generator)
    changed = dataclasses.replace(
        features, targets=torch.where(wrong, (features.targets + shift) % 10, features.targets)
    )
    heads = changed.fit(ensemble.backbone, ensemble.recipe or repulse.Recipe(), progress=False)
    noisy = repulse.Ensemble(ensemble.backbone, heads, class_names=NAMES, kept=changed)
    assert data.images.human is not None
    people = data.images.human[half].argmax(dim=1) != data.test.y
    inside = features_of(ensemble, {"test": data.test}, kept.folder)["test"]
    for title, owner, found, truth, columns in (
        ("1 % of training labels changed", noisy, repulse.audit(noisy, progress=False), wrong, changed.train),
        (
            "test labels against most people",
            ensemble,
            repulse.audit(ensemble, data.test, progress=False),
            people,
            inside,
        ),
    ):
        rows.append((f"{title}: audit", scores(-found.quality, found.mislabelled, truth)))
        probs, labels = predicted(owner, columns).probs.double().numpy(), found.targets.numpy()
        flagged = torch.from_numpy(find_label_issues(labels, probs, n_jobs=1))
        for method in ("self_confidence", "normalized_margin"):
            suspicion = -torch.as_tensor(get_label_quality_scores(labels, probs, method=method))
            rows.append((f"{title}: cleanlab, {method}", scores(suspicion, flagged, truth)))
    names = {"auroc": "AUROC", "aupr": "average precision", "top": "of the first n", "flagged": "flagged"}
    columns = {key: Column(name, 2 if key == "auroc" else 1) for key, name in names.items()}
    columns |= {"precision": Column("wrong among the flagged", 1), "recall": Column("flagged among the wrong", 1)}
    show("audits", rows, columns)


def scores(suspicion: Tensor, flagged: Tensor, wrong: Tensor) -> dict[str, float]:
    """Return how well suspicion ranks what is wrong, the share of as many first ones, and how good flags are."""
    first = suspicion.argsort(descending=True)[: int(wrong.sum())]
    return {
        "auroc": 100 * auroc(suspicion[~wrong], suspicion[wrong]),
        "aupr": 100 * aupr(suspicion[~wrong], suspicion[wrong]),
        "top": 100 * float(wrong[first].float().mean()),
        "flagged": 100 * float(flagged.float().mean()),
        "precision": 100 * float(wrong[flagged].float().mean()),
        "recall": 100 * float(flagged[wrong].float().mean()),
    }


def show(name: str, rows: list[tuple[str, dict[str, float]]], columns: dict[str, Column]) -> None:
    """Print a table and put it in its page."""
    table = Table("", list(columns.values()))
    for row, values in rows:
        table.add(row, [[values[key] for key in columns]])
    print(table.text(), flush=True)
    insert(ROOT / "docs" / "active-learning.md", name, table.markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", default=["updates", "audits"])
    parser.add_argument("--data", type=Path, default=os.environ.get("REPULSE_DATA", "data"))
    parser.add_argument("--count", type=int, default=50_000, help="training images")
    parser.add_argument("--folder", type=Path, default=Path("bench/labels"))
    told = parser.parse_args()
    problem = PROBLEMS["cifar10"]
    network = problem.published["resnet20"]
    images = problem.images(told.data)
    first, second = halves(len(images.test))
    data = Data(
        images,
        told.count,
        Lazy(images, images.test[first], images.test_targets[first]),
        Lazy(images, images.test[second], images.test_targets[second]),
        {name: Lazy(images, x[:2000], torch.zeros(len(x[:2000]))) for name, x in images.outside.items()},
    )
    kept = Kept(told.folder, network.load(network.path(told.data)).eval())
    if "updates" in told.tables:
        updates(kept, data)
    if "audits" in told.tables:
        audits(kept, data, second)


if __name__ == "__main__":
    main()
