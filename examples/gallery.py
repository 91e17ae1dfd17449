"""Pictures of every repulsion source: on patches of two photographs, and on rows of a table, features and signals.

python examples/gallery.py --out docs/images/repulsion-sources.png --others docs/images/repulsion-sources-others.png
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_sample_images, make_moons
from torch import Tensor

from repulse import repulsion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCES = {
    "TrainingData()": repulsion.TrainingData(),
    "PatchShuffle(tiles=4)": repulsion.PatchShuffle(4),
    "PatchShuffle(tiles=16)": repulsion.PatchShuffle(16),
    "DeadLeaves(grain=0)": repulsion.DeadLeaves(grain=0),
    "DeadLeaves()": repulsion.DeadLeaves(),
    "PhaseScramble()": repulsion.PhaseScramble(),
    "Swirl()": repulsion.Swirl(),
    "Shear()": repulsion.Shear(),
    "Mixup()": repulsion.Mixup(),
    "Noise()": repulsion.Noise(),
    "UniformBox()": repulsion.UniformBox(),
}
ROWS = {"HalfShuffle()": repulsion.HalfShuffle(), "WideBox()": repulsion.WideBox(), "Mixup()": repulsion.Mixup()}
FEATURES = {"Shell()": repulsion.Shell(), "Difference()": repulsion.Difference()}
SIGNALS = {
    "a signal": repulsion.TrainingData(),
    "SegmentShuffle()": repulsion.SegmentShuffle(),
    "SignalPhaseScramble()": repulsion.SignalPhaseScramble(),
}


def photographs(count: int, side: int = 64) -> Tensor:
    """Cut patches from the two photographs, `(count, 3, side, side)` in [0, 1]."""
    generator = torch.Generator().manual_seed(3)
    images = [torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 for image in load_sample_images().images]
    patches = []
    for i in range(count):
        image = torch.nn.functional.avg_pool2d(images[i % 2], 2)
        top = int(torch.randint(image.shape[1] - side, (), generator=generator))
        left = int(torch.randint(image.shape[2] - side, (), generator=generator))
        patches.append(image[:, top : top + side, left : left + side])
    return torch.stack(patches)


def draw_images(path: str) -> None:
    """Draw one row of pictures per source."""
    from matplotlib.figure import Figure

    batch = photographs(8)
    figure = Figure(figsize=(10.2, 9.6), layout="constrained")
    grid = figure.subplots(len(SOURCES), len(batch))
    for row, (name, source) in zip(grid, SOURCES.items(), strict=True):
        samples = source.sample(batch, torch.Generator().manual_seed(0)).clamp(0, 1)
        for axis, image in zip(row, samples, strict=True):
            axis.imshow(image.permute(1, 2, 0))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    figure.savefig(path, dpi=90, facecolor="white")


def draw_others(path: str) -> None:
    """Draw rows of a table with two columns, points of a feature space, and signals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 7.2), layout="constrained")
    grid = figure.subplots(3, 3)
    rows = torch.from_numpy(make_moons(400, noise=0.08, random_state=0)[0]).float()
    for axis, (name, source) in zip(grid[0], ROWS.items(), strict=True):
        _scatter(axis, f"{name}, rows of a table", rows, source.sample(rows, torch.Generator().manual_seed(0)), 5.2)
    turned = rows @ torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    for axis, (name, source) in zip(grid[1], FEATURES.items(), strict=False):
        samples = source.sample_features(turned, 400, torch.Generator().manual_seed(0))
        _scatter(axis, f"{name}, in feature space", turned, samples, 14)
    grid[1, 2].axis("off")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    grid[1, 2].legend(handles, labels, loc="center", fontsize=11, frameon=False, markerscale=3)
    time = torch.linspace(0, 1, 400)
    beat = torch.sin(2 * torch.pi * 30 * time) * torch.exp(-(((time - 0.3) / 0.08) ** 2))
    beat += 0.7 * torch.sin(2 * torch.pi * 9 * time) * torch.exp(-(((time - 0.7) / 0.1) ** 2))
    for axis, (name, source) in zip(grid[2], SIGNALS.items(), strict=True):
        axis.plot(source.sample(beat.expand(1, 400), torch.Generator().manual_seed(1))[0], color="#20507a", lw=1)
        axis.set(xticks=[], yticks=[], ylim=(-1.1, 1.1))
        axis.set_title(name, fontsize=10)
    figure.savefig(path, dpi=90, facecolor="white")


def _scatter(axis: Axes, name: str, data: Tensor, samples: Tensor, reach: float) -> None:
    axis.scatter(*samples.T, s=4, color="#d1731f", label="repulsion samples")
    axis.scatter(*data.T, s=4, color="#20507a", label="training data")
    axis.set(xticks=[], yticks=[], xlim=(0.5 - reach, 0.5 + reach), ylim=(0.25 - 0.8 * reach, 0.25 + 0.8 * reach))
    axis.set_title(name, fontsize=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="repulsion-sources.png", help="picture of images to write")
    parser.add_argument("--others", help="picture of rows, features and signals to write")
    arguments = parser.parse_args()
    draw_images(arguments.out)
    print(f"written: {arguments.out}")
    if arguments.others:
        draw_others(arguments.others)
        print(f"written: {arguments.others}")


if __name__ == "__main__":
    main()
