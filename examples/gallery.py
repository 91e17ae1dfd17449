"""A picture of every repulsion source, made from patches of scikit-learn's two sample photographs.

python examples/gallery.py --out docs/images/repulsion-sources.png
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from repulse import repulsion

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


def photographs(count: int, side: int = 64) -> Tensor:
    """Patches of the two photographs, `(count, 3, side, side)` in [0, 1]."""
    generator = torch.Generator().manual_seed(3)
    images = [torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 for image in load_sample_images().images]
    patches = []
    for i in range(count):
        image = torch.nn.functional.avg_pool2d(images[i % 2], 2)
        top = int(torch.randint(image.shape[1] - side, (), generator=generator))
        left = int(torch.randint(image.shape[2] - side, (), generator=generator))
        patches.append(image[:, top : top + side, left : left + side])
    return torch.stack(patches)


def main() -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="repulsion-sources.png", help="picture to write")
    arguments = parser.parse_args()
    batch = photographs(8)
    figure = Figure(figsize=(10.2, 9.6), layout="constrained")
    grid = figure.subplots(len(SOURCES), len(batch))
    for row, (name, source) in zip(grid, SOURCES.items(), strict=True):
        samples = source.sample(batch, torch.Generator().manual_seed(0)).clamp(0, 1)
        for axis, image in zip(row, samples, strict=True):
            axis.imshow(image.permute(1, 2, 0))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    figure.savefig(arguments.out, dpi=90, facecolor="white")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
