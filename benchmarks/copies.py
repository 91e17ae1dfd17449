"""Does a network learn labels by heart if the ten copies of an ambiguous digit are not quite the same?

DirtyMNIST shows every ambiguous digit ten times, each time with another label drawn for it. Ten equal copies cannot be
told apart, and a network can only learn how often each label comes. The package that publishes the set adds a little
noise to every copy; then a network can learn each label by heart. The paper does not say which of the two it used. This
trains LeNets as the paper does (50 epochs, or EPOCHS of them) both ways, fits heads without repulsion, and puts the
table in docs/results/index.md.

    REPULSE_DATA=data python benchmarks/copies.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from repulse.baselines import MAP, LastLayerEnsemble
from repulse.evaluation.table import Column, Table
from repulse.recipe import LL_E, PAPER_TRAINING
from repulse_lab.data import load
from repulse_lab.networks import build
from repulse_lab.networks.schedule import SCHEDULES
from repulse_lab.networks.train import train
from repulse_lab.study.cells import joined
from repulse_lab.study.dirty_mnist import ambiguous_mnist
from repulse_lab.study.features import NetworkFeatures
from repulse_lab.study.measures import Trial, measured
from repulse_lab.study.problems import DIRTY_MNIST, Images, images_of
from tables import ROOT, insert

GRAIN = 0.05 * DIRTY_MNIST.std[0] * 255
"""Standard deviation of the published noise, which is 0.05 after the normalisation, in grey levels."""

WAYS = {"equal copies": 0.0, "copies with noise": GRAIN}
COLUMNS = {
    "training accuracy": Column("training accuracy", 2),
    "accuracy": Column("accuracy", 2),
    "ece": Column("ECE", 2),
    "clean mean": Column("MNIST/OOD", 1),
    "ambiguous mean": Column("ambiguous/OOD", 1),
}


@dataclass(frozen=True)
class Task:
    """A network to train."""

    data: Path
    keep: Path
    way: str
    seed: int
    epochs: int


def grainy(images: torch.Tensor, grain: float, seed: int) -> torch.Tensor:
    """Images with noise of their own on each."""
    generator = torch.Generator().manual_seed(seed)
    parts = [part + grain * torch.randn(part.shape, generator=generator) for part in images.split(10_000)]
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts]) if grain else images


def images_for(way: str, data: Path) -> Images:
    """DirtyMNIST with noise on its digits, and none on the out-of-distribution sets."""
    images, grain = images_of(DIRTY_MNIST, data), WAYS[way]
    return replace(images, train=grainy(images.train, grain, 0), test=grainy(images.test, grain, 1))


def trained(task: Task) -> tuple[torch.nn.Module, float]:
    """The network and its training accuracy; what was trained before is read."""
    torch.set_num_threads(1)
    images = images_for(task.way, task.data)
    network = build("lenet", 10, 1, 28, seed=task.seed)
    folder = task.keep / f"{task.way.replace(' ', '-')}-{task.epochs}-{task.seed}"
    schedule = replace(SCHEDULES["dirty-mnist"], epochs=task.epochs)
    how = {"mean": DIRTY_MNIST.mean, "std": DIRTY_MNIST.std, "seed": task.seed, "checkpoint": folder}
    return network, 100 * train(network, images.train, images.targets, schedule, **how)[-1].accuracy


def compare(way: str, networks: list[torch.nn.Module], data: Path) -> dict[str, list[dict[str, float]]]:
    """Figures of every network alone, of heads on it, and of all together."""
    images = images_for(way, data)
    found: dict[str, list[dict[str, float]]] = {"MAP": [], "LL-E": []}
    views = [NetworkFeatures(images, network).view("last") for network in networks]
    for seed, view in enumerate(views):
        heads = LastLayerEnsemble(10, LL_E.replace(**PAPER_TRAINING, seed=seed), None, 0)
        for name, method in (("MAP", MAP(view.layer)), ("LL-E", heads)):
            method.fit(view.train, images.targets)
            found[name].append(measured(Trial(method, images, view)))
    ensemble, together = joined(views)
    found[f"DE-{len(networks)}"] = [measured(Trial(ensemble, images, together))]
    return found


def attainable(data: Path) -> float:
    """Accuracy of who knows every clean digit, and of every ambiguous one the label that is drawn most often."""
    clean, dirt = len(load("mnist", "test", data)), ambiguous_mnist(data, "test", progress=False)
    likeliest = dirt.probs.amax(dim=1).double().mean()
    pairs = dirt.labels.numel()
    return 100 * float(clean + pairs * likeliest) / (clean + pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REPULSE_DATA", "data")))
    parser.add_argument("--networks", type=int, default=2, help="of each kind")
    parser.add_argument("--epochs", type=int, default=SCHEDULES["dirty-mnist"].epochs)
    parser.add_argument("--keep", type=Path, default=Path("results", "copies"), help="folder of the networks")
    wanted = parser.parse_args()
    tasks = [
        Task(wanted.data, wanted.keep, way, seed, wanted.epochs) for way in WAYS for seed in range(wanted.networks)
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(trained, tasks, chunksize=1)
    table = Table("LeNet", list(COLUMNS.values()))
    for way in WAYS:
        ready = [trained(task) for task in tasks if task.way == way]
        figures = compare(way, [network for network, _ in ready], wanted.data)
        figures["MAP"] = [
            {**one, "training accuracy": seen} for one, (_, seen) in zip(figures["MAP"], ready, strict=True)
        ]
        for name, several in figures.items():
            table.add(f"{way}: {name}", [[one.get(key, float("nan")) for key in COLUMNS] for one in several])
    table.add("the most that can be had", [[float("nan"), attainable(wanted.data), *[float("nan")] * 3]])
    insert(ROOT / "docs" / "results" / "index.md", "copies", table.markdown())
    print(table.text())


if __name__ == "__main__":
    main()
