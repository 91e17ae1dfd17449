"""What new labels cost, whether wrong ones are found, and why inputs are doubted: CIFAR-10, published ResNet-20.

Puts the tables `updates` and `audits` in docs/active-learning.md and the picture in docs/images/why-cifar10.png.
Half of the test set is validation data; figures are of the other half.

    REPULSE_DATA=data python benchmarks/labels.py    # a quarter of an hour on one core
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import repulse
from repulse.evaluation.table import Column, Table
from repulse.metrics import accuracy, aupr, auroc, ece
from repulse.prediction import Prediction
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


def measured(ensemble: repulse.Ensemble, test: Lazy, outside: dict[str, Lazy]) -> dict[str, float]:
    """Return accuracy, calibration and the mean AUROC over sets, in percent."""
    inside = ensemble.predict(test, progress=False)
    far = [ensemble.predict(loader, progress=False).epistemic for loader in outside.values()]
    return {
        "accuracy": 100 * accuracy(inside, test.y),
        "ece": 100 * ece(inside, test.y),
        "auroc": 100 * sum(auroc(inside.epistemic, scores) for scores in far) / len(far),
    }


def updates(model, images: Images, validation: Lazy, test: Lazy, outside: dict[str, Lazy], count: int):
    """Compare an update by new labels with a retrofit on all of them."""
    old = Lazy(images, images.train[: count - NEW], images.targets[: count - NEW])
    new = Lazy(images, images.train[count - NEW : count], images.targets[count - NEW : count])
    every = Lazy(images, images.train[:count], images.targets[:count])
    before = repulse.retrofit(model, old, validation=validation, class_names=NAMES, progress=False)
    began = time.perf_counter()
    updated = before.update(new, progress=False)
    seconds = {"update": time.perf_counter() - began}
    began = time.perf_counter()
    again = repulse.retrofit(model, every, validation=validation, class_names=NAMES, progress=False)
    seconds["retrofit on all"] = time.perf_counter() - began
    rows = []
    for name, ensemble in (("before", before), ("update", updated), ("retrofit on all", again)):
        ratio = seconds["retrofit on all"] / seconds[name] if name in seconds else float("nan")
        rows.append((name, {**measured(ensemble, test, outside), "times faster": ratio}))
    columns = {
        "accuracy": Column("accuracy", 2), "ece": Column("ECE", 2),
        "auroc": Column("mean AUROC", 2), "times faster": Column("times faster", 1),
    }  # fmt: skip
    return again, rows, columns


def audits(ensemble: repulse.Ensemble, images: Images, test: Lazy, half: Tensor, seed: int = 0):
    """Find labels that were changed at random, and test labels that most people would not give."""
    from cleanlab.rank import get_label_quality_scores

    kept = ensemble.required_features("audit")
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(kept.targets), generator=generator) < FLIPPED
    shift = torch.randint(1, 10, (len(kept.targets),), generator=generator)
    flipped = torch.where(wrong, (kept.targets + shift) % 10, kept.targets)
    changed = type(kept)(kept.train, flipped, kept.repulsion, kept.validation, kept.validation_targets)
    heads = changed.fit(ensemble.backbone, ensemble.recipe, progress=False)
    noisy = repulse.Ensemble(ensemble.backbone, heads, class_names=NAMES, kept=changed)
    rows = []
    people = images.human[half].argmax(dim=1) != test.y
    for title, found, truth, loader in (
        ("1 % of training labels changed", repulse.audit(noisy), wrong, None),
        ("test labels against most people", repulse.audit(ensemble, test), people, test),
    ):
        rows.append((f"audit, {title}", scores(-found.quality, truth)))
        owner = noisy if loader is None else ensemble
        features = changed.train if loader is None else None
        p = owner.predict(loader, progress=False) if features is None else _predicted(owner, features)
        for method in ("self_confidence", "normalized_margin"):
            quality = get_label_quality_scores(found.targets.numpy(), p.probs.double().numpy(), method=method)
            rows.append((f"cleanlab {method}, {title}", scores(-torch.as_tensor(quality), truth)))
    columns = {"auroc": Column("AUROC", 2), "aupr": Column("average precision", 1), "top": Column("of the first n", 1)}
    return rows, columns


def _predicted(ensemble: repulse.Ensemble, features: Tensor) -> Prediction:
    return Prediction.cat([ensemble.heads.predict(part.float()) for part in features.split(5000)])


def scores(suspicion: Tensor, wrong: Tensor) -> dict[str, float]:
    """Return how well suspicion ranks what is wrong; of as many first ones as are wrong, the share that is."""
    first = suspicion.argsort(descending=True)[: int(wrong.sum())]
    return {
        "auroc": 100 * auroc(suspicion[~wrong], suspicion[wrong]),
        "aupr": 100 * aupr(suspicion[~wrong], suspicion[wrong]),
        "top": 100 * float(wrong[first].float().mean()),
    }


def picture(ensemble: repulse.Ensemble, images: Images, outside: dict[str, Lazy], path: Path) -> list[str]:
    """Draw the reasons for doubt about test images and about images of other sets; return their lines."""
    from matplotlib.figure import Figure

    chosen = [("CIFAR-10 test", images.test[i]) for i in (0, 1, 2, 3, 4)]
    chosen += [(name, loader.x[i]) for name, loader in list(outside.items())[:3] for i in (0, 1)][:5]
    figure = Figure(figsize=(13, 1.9 * len(chosen)), layout="constrained")
    lines = []
    for row, (name, image) in zip(figure.subfigures(len(chosen), 1), chosen, strict=True):
        reason = ensemble.why(images.prepared(image.unsqueeze(0))[0])
        lines.append(f"{name}: {reason.text}")
        axes = row.subplots(1, 7, gridspec_kw={"width_ratios": [1, 1.4, 1.8, 1, 1, 1, 1]})
        row.suptitle(lines[-1][:150], fontsize=8, x=0.01, ha="left")
        axes[0].imshow(image.movedim(0, -1).numpy())
        axes[1].barh(list(reason.votes), list(reason.votes.values()))
        shares = {k: v for k, v in reason.shares.items() if k != "constant"}
        axes[2].barh(list(shares), list(shares.values()))
        for each in axes[1:3]:
            each.tick_params(labelsize=6)
            each.invert_yaxis()
        for axis, near in zip(axes[3:], reason.nearest, strict=False):
            axis.imshow(images.train[near.index].movedim(0, -1).numpy())
            axis.set_title(f"{near.target}, {near.distance:.1f}x", fontsize=7)
        for axis in (axes[0], *axes[3:]):
            axis.axis("off")
    figure.savefig(path, dpi=80, facecolor="white")
    return lines


def show(name: str, rows: list[tuple[str, dict[str, float]]], columns: dict[str, Column]) -> None:
    """Print a table and put it in its page."""
    table = Table("", list(columns.values()))
    for row, values in rows:
        table.add(row, [[values[key] for key in columns]])
    print(table.text(), flush=True)
    insert(ROOT / "docs" / "active-learning.md", name, table.markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
    ensemble, rows, columns = updates(model, images, validation, test, outside, arguments.count)
    show("updates", rows, columns)
    show("audits", *audits(ensemble, images, test, second))
    print("\n".join(picture(ensemble, images, outside, ROOT / "docs" / "images" / "why-cifar10.png")))


if __name__ == "__main__":
    main()
