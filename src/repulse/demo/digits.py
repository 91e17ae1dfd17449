"""A small, complete problem on data that comes with scikit-learn: digits, ambiguous digits, and what is neither.

The network is trained on clean digits and on blends of two, whose label is drawn from the two: these are ambiguous, and
their uncertainty is aleatoric. Photograph patches and pixel-scrambled digits are never seen in training: there,
uncertainty should be epistemic. Images are 8 x 8 and scaled to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Images `(N, 1, 8, 8)`, and labels where there are any.

    Attributes:
        train: training images, clean and ambiguous.
        train_labels: their labels.
        clean: clean test digits.
        clean_labels: their labels.
        ambiguous: blends of two test digits of different classes.
        ambiguous_labels: one of the two, drawn with the weights of the blend.
        photographs: patches of scikit-learn's two photographs, in grey.
        scrambled: clean test digits with their pixels permuted.
    """

    train: Tensor
    train_labels: Tensor
    clean: Tensor
    clean_labels: Tensor
    ambiguous: Tensor
    ambiguous_labels: Tensor
    photographs: Tensor
    scrambled: Tensor


def load(seed: int = 0) -> Digits:
    """Build the problem; images of digits are split in halves, so that no test digit is part of a training blend."""
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(seed)
    bunch: Any = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(images), generator=generator)
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    blends, blend_labels = _blend(images[train], labels[train], len(train), generator)
    ambiguous, ambiguous_labels = _blend(images[test], labels[test], len(test), generator)
    clean = images[test]
    mixed_up = torch.rand(len(clean), 64, generator=generator).argsort(dim=1)
    return Digits(
        train=torch.cat([images[train], blends]),
        train_labels=torch.cat([labels[train], blend_labels]),
        clean=clean,
        clean_labels=labels[test],
        ambiguous=ambiguous,
        ambiguous_labels=ambiguous_labels,
        photographs=_photograph_patches(len(clean), generator),
        scrambled=clean.flatten(1).gather(1, mixed_up).view_as(clean),
    )


def train_network(data: Digits, seed: int = 0, epochs: int = 40) -> nn.Sequential:
    """Train a small convolutional network, in a few seconds."""
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from the global state
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(data.train[batch]), data.train_labels[batch]).backward()
            optimizer.step()
        schedule.step()
    return network.eval()


def _blend(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Blend pairs of images of different classes, neither below 35 %, with a label drawn by weight."""
    first = torch.randint(len(images), (4 * count,), generator=generator)
    second = torch.randint(len(images), (4 * count,), generator=generator)
    differ = labels[first] != labels[second]
    first, second = first[differ][:count], second[differ][:count]
    weight = 0.35 + 0.3 * torch.rand(count, generator=generator)
    label = torch.where(torch.rand(count, generator=generator) < weight, labels[first], labels[second])
    weight = weight.view(-1, 1, 1, 1)
    return weight * images[first] + (1 - weight) * images[second], label


def _photograph_patches(count: int, generator: torch.Generator) -> Tensor:
    """Draw 8 x 8 patches of the grey photographs at a quarter of their size, each scaled to the range [0, 1]."""
    from sklearn.datasets import load_sample_images

    patches = []
    for photograph in load_sample_images().images:
        grey = torch.from_numpy(np.array(photograph)).float().mean(dim=-1)
        small = nn.functional.avg_pool2d(grey[None, None], 4)[0, 0]
        windows = small.unfold(0, 8, 1).unfold(1, 8, 1).reshape(-1, 8, 8)
        patches.append(windows[torch.randint(len(windows), (count,), generator=generator)])
    chosen = torch.cat(patches)[torch.randperm(2 * count, generator=generator)[:count]].unsqueeze(1)
    low, high = chosen.amin(dim=(2, 3), keepdim=True), chosen.amax(dim=(2, 3), keepdim=True)
    return (chosen - low) / (high - low).clamp_min(1e-6)
