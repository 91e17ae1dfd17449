"""What is in DirtyMNIST: ambiguous digits with their class probabilities, and how unsure a network is about them.

Digits are sorted by the entropy of their labels. The histogram shows the entropy that a LeNet, trained on the pairs,
predicts for test images it has not seen. Needs the data folder (REPULSE_DATA; `make data`); builds AmbiguousMNIST there
in a few minutes if the published files are not in it.

    python examples/dirty_mnist_gallery.py --out docs/images/dirty-mnist.png
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from repulse import DataError
from repulse.prediction import entropy
from repulse_lab.data.images import normalise
from repulse_lab.networks.lenet import LeNet
from repulse_lab.study.ambiguous import MEAN, STD
from repulse_lab.study.dirty_mnist import Ambiguous, DirtyMnist, ambiguous_mnist, dirty_mnist

ROWS, COLUMNS = 6, 10
CLEAN, AMBIGUOUS, GREY = "#3572c6", "#e08214", "#555555"


def train(data: DirtyMnist, epochs: int = 2) -> LeNet:
    """A LeNet that has seen every pair a few times."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LeNet()
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    batches = [rows for _ in range(epochs) for rows in torch.randperm(len(data), generator=generator).split(128)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=len(batches))
    for rows in tqdm(batches, desc="LeNet", leave=False):
        optimizer.zero_grad()
        F.cross_entropy(network(normalise(data.images[rows], MEAN, STD)), data.targets[rows]).backward()
        optimizer.step()
        schedule.step()
    return network.eval()


@torch.no_grad()
def log_probs(network: LeNet, images: Tensor) -> Tensor:
    return torch.cat([network(normalise(part, MEAN, STD)).log_softmax(dim=-1) for part in images.split(1000)])


def gallery(grid: list[Axes], digits: Ambiguous) -> None:
    """Digits at even steps of entropy, each under its two most probable classes."""
    doubt = entropy(digits.probs.log())
    steps = torch.linspace(float(doubt.quantile(0.02)), float(doubt.quantile(0.99)), len(grid))
    rows = [int((doubt - step).abs().argmin()) for step in steps]
    for axis, at in zip(grid, rows, strict=True):
        share, label = digits.probs[at].topk(2)
        axis.imshow(digits.images[at, 0], cmap="gray_r", vmin=0, vmax=255)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_color("#cccccc")
        title = "  ".join(f"{int(c)}: {round(100 * float(p))}" for c, p in zip(label, share, strict=True))
        axis.set_title(title, fontsize=9, pad=2, color=GREY)
    for first in range(0, len(grid), COLUMNS):
        grid[first].set_ylabel(f"{float(doubt[rows[first]]):.2f}", rotation=0, ha="right", va="center", color=GREY)


def histogram(axis: Axes, clean: Tensor, doubtful: Tensor) -> None:
    """Predicted entropies of clean and of ambiguous digits; the clean ones' peak is high, hence the logarithm."""
    for values, name, colour in ((clean, "clean digits", CLEAN), (doubtful, "ambiguous digits", AMBIGUOUS)):
        weights = torch.full_like(values, 100 / len(values))
        axis.hist(values, bins=40, range=(0, 2), weights=weights, color=colour, alpha=0.6, label=name)
    axis.set(yscale="log", xlabel="predicted entropy (nats)", ylabel="share of test images (%)", xlim=(0, 2))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("REPULSE_DATA", "data"), help="folder of the data sets")
    parser.add_argument("--out", default="dirty-mnist.png", help="picture to write")
    arguments = parser.parse_args()
    try:
        data, test = (dirty_mnist(arguments.data, split) for split in ("train", "test"))
        digits = ambiguous_mnist(arguments.data, "test")
    except DataError as reason:
        sys.exit(str(reason))
    network = train(data)
    clean, doubtful = log_probs(network, test.images[~test.ambiguous]), log_probs(network, digits.images)
    right = clean.argmax(dim=1) == test.targets[~test.ambiguous]
    hits = doubtful.argmax(dim=1, keepdim=True) == digits.labels
    best = digits.probs.amax(dim=1).mean()
    print(f"LeNet: {100 * right.float().mean():.2f} % of the clean test labels, {100 * hits.float().mean():.2f} % of")
    print(f"the ambiguous ones, where no classifier is expected to get more than {100 * best:.2f} %")

    figure = Figure(figsize=(13, 6), layout="constrained")
    left, side = figure.subfigures(1, 2, width_ratios=(2.2, 1), squeeze=False)[0]
    gallery(list(left.subplots(ROWS, COLUMNS).flat), digits)
    left.suptitle("Ambiguous digits by entropy (nats, left); above each, its two likeliest classes in %", fontsize=11)
    histogram(side.subplots(), entropy(clean), entropy(doubtful))
    side.suptitle("What a LeNet trained on DirtyMNIST predicts", fontsize=11)
    figure.savefig(arguments.out, dpi=80, facecolor="white")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
