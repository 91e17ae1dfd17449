"""What new labels cost, and whether wrong ones are found: CIFAR-10, published ResNet-20.

Puts the tables `updates` and `audits` in docs/active-learning.md. Half of the test set is validation data; figures are
of the other half.

    REPULSE_DATA=data python benchmarks/labels.py    # a quarter of an hour on one core
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import repulse
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


def features_of(ensemble: repulse.Ensemble, sets: dict[str, Lazy]) -> Sets:
    """Compute features once; ensembles on one network share them."""
    return {
        name: compute_features(ensemble.backbone, loader, None, progress=False).train for name, loader in sets.items()
    }


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


def updates(model, images: Images, validation: Lazy, test: Lazy, outside: dict[str, Lazy], count: int):
    """Compare an update by new labels with a retrofit on all of them, and what forgets them with one that never knew.

    Returns:
        The ensemble on all labels, the features of the test half, rows of the table, its columns.
    """
    old = Lazy(images, images.train[: count - NEW], images.targets[: count - NEW])
    new = Lazy(images, images.train[count - NEW : count], images.targets[count - NEW : count])
    every = Lazy(images, images.train[:count], images.targets[:count])
    before = repulse.retrofit(model, old, validation=validation, class_names=NAMES, progress=False)
    updated, update = timed(lambda: before.update(new, progress=False))
    again, retrofit = timed(
        lambda: repulse.retrofit(model, every, validation=validation, class_names=NAMES, progress=False)
    )
    forgotten, forget = timed(lambda: again.forget(range(count - NEW, count), progress=False))
    sets, rows = features_of(before, {"test": test, **outside}), []
    for name, ensemble, seconds in (
        ("before", before, float("nan")),
        (f"update by {NEW:,} labels", updated, update),
        ("retrofit on all", again, retrofit),
        ("retrofit on all, then forget them", forgotten, forget),
    ):
        cost = {"seconds": seconds, "times faster": retrofit / seconds}
        rows.append((name, {**measured(ensemble, sets, test.y), **cost}))
    apart = [predicted(one, sets["test"]).probs for one in (before, forgotten)]
    print(f"forgotten against never known: probabilities differ by at most {(apart[0] - apart[1]).abs().max():.2g}")
    columns = {
        "accuracy": Column("accuracy", 2), "ece": Column("ECE", 2), "auroc": Column("mean AUROC", 2),
        "seconds": Column("seconds", 1), "times faster": Column("times faster", 1),
    }  # fmt: skip
    return again, sets["test"], rows, columns


def timed(what: Callable[[], repulse.Ensemble]) -> tuple[repulse.Ensemble, float]:
    """Return what is made, and the processor time that this took, which does not depend on who else is at work."""
    began = time.process_time()
    return what(), time.process_time() - began


def audits(ensemble: repulse.Ensemble, images: Images, test: Lazy, inside: Tensor, half: Tensor, seed: int = 0):
    """Find labels that were changed at random, and test labels that most people would not give."""
    from cleanlab.rank import get_label_quality_scores

    kept = ensemble.required_features("audit")
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(kept.targets), generator=generator) < FLIPPED
    shift = torch.randint(1, 10, (len(kept.targets),), generator=generator)
    flipped = torch.where(wrong, (kept.targets + shift) % 10, kept.targets)
    changed = type(kept)(kept.train, flipped, kept.repulsion, kept.validation, kept.validation_targets)
    heads = changed.fit(ensemble.backbone, ensemble.recipe or repulse.Recipe(), progress=False)
    noisy = repulse.Ensemble(ensemble.backbone, heads, class_names=NAMES, kept=changed)
    rows = []
    assert images.human is not None
    people = images.human[half].argmax(dim=1) != test.y
    for title, owner, found, truth, features in (
        ("1 % of training labels changed", noisy, repulse.audit(noisy, progress=False), wrong, changed.train),
        ("test labels against most people", ensemble, repulse.audit(ensemble, test, progress=False), people, inside),
    ):
        rows.append((f"{title}: audit", scores(-found.quality, truth)))
        probs = predicted(owner, features).probs.double().numpy()
        for method in ("self_confidence", "normalized_margin"):
            quality = get_label_quality_scores(found.targets.numpy(), probs, method=method)
            rows.append((f"{title}: cleanlab, {method}", scores(-torch.as_tensor(quality), truth)))
    columns = {"auroc": Column("AUROC", 2), "aupr": Column("average precision", 1), "top": Column("of the first n", 1)}
    return rows, columns


def scores(suspicion: Tensor, wrong: Tensor) -> dict[str, float]:
    """Return how well suspicion ranks what is wrong; of as many first ones as are wrong, the share that is."""
    first = suspicion.argsort(descending=True)[: int(wrong.sum())]
    return {
        "auroc": 100 * auroc(suspicion[~wrong], suspicion[wrong]),
        "aupr": 100 * aupr(suspicion[~wrong], suspicion[wrong]),
        "top": 100 * float(wrong[first].float().mean()),
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
    parser.add_argument("--data", type=Path, default=os.environ.get("REPULSE_DATA", "data"))
    parser.add_argument("--count", type=int, default=50_000, help="training images")
    arguments = parser.parse_args()
    problem = PROBLEMS["cifar10"]
    network = problem.published["resnet20"]
    model = network.load(network.path(arguments.data)).eval()
    images = problem.images(arguments.data)
    first, second = halves(len(images.test))
    validation = Lazy(images, images.test[first], images.test_targets[first])
    test = Lazy(images, images.test[second], images.test_targets[second])
    outside = {name: Lazy(images, x[:2000], torch.zeros(len(x[:2000]))) for name, x in images.outside.items()}
    ensemble, inside, rows, columns = updates(model, images, validation, test, outside, arguments.count)
    show("updates", rows, columns)
    show("audits", *audits(ensemble, images, test, inside, second))


if __name__ == "__main__":
    main()
