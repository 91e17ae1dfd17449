"""The problems on which settings are compared: features of real data, computed once and kept.

Each is a dictionary of tensors with `train`, `labels`, `test`, `test_labels`, sets to repel on, sets that are out of
distribution, the weight and bias of the network's last layer, and how many columns of the features are taps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from repulse import repulsion
from repulse._files import write_whole
from repulse.backbone import Backbone, split
from repulse_lab import data as sets_of
from repulse_lab.data.images import normalise
from repulse_lab.data.mnist import blend
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import clinc150_minilm

AUTO = repulsion.SyntheticImages()
Data = dict[str, Tensor]


def load(name: str, root: Path, cache: Path) -> Data:
    """One of the problems, made and kept first if it is not there."""
    path = cache / f"{name}.safetensors"
    if not path.exists():
        made = PROBLEMS[name](root)
        write_whole(path, save({key: value.contiguous() for key, value in made.items()}))
    return load_file(path)


@torch.no_grad()
def through(backbone: Backbone, images: Tensor, mean, std, source: repulsion.Source | None = None) -> Tensor:
    """Features of images, or of what a source makes of them."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for part in tqdm(images.split(500), desc=str(source or "features"), leave=False):
        batch = normalise(part, mean, std)
        parts.append(backbone(batch if source is None else source.sample(batch, generator)))
    return torch.cat(parts)


def finish(backbone: Backbone, features: Data) -> Data:
    weight, bias = backbone.weights
    return {**features, "weight": weight, "bias": bias, "taps": torch.tensor(backbone.width - backbone.penultimate)}


def some(images: Tensor, count: int = 10_000) -> Tensor:
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]]


def cifar(root: Path) -> Data:
    """CIFAR-10 with the published ResNet-20."""
    network = load_published(root / "weights" / "resnet20-12fca82f.th")
    images, labels = sets_of.load("cifar10", "train", root).labelled
    test, test_labels = sets_of.load("cifar10", "test", root).labelled
    backbone = split(network, normalise(images[:4], MEAN, STD), layers="auto")
    noise = torch.randint(256, (5000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sets = {
        "train": images,
        "test": test,
        "natural": sets_of.load("tiny-imagenet", "repulsion", root).images,
        "Tiny ImageNet": sets_of.load("tiny-imagenet", "evaluation", root).images,
        "textures": sets_of.load("dtd", "ten-classes", root).images,
        "noise": noise,
    }
    features = {name: through(backbone, x, MEAN, STD) for name, x in sets.items()}
    features["synthetic"] = through(backbone, some(images), MEAN, STD, AUTO)
    return finish(backbone, {**features, "labels": labels, "test_labels": test_labels})


def dirty_digits(root: Path) -> Data:
    """MNIST, as many digits blended from two, and a LeNet trained on both."""
    generator = torch.Generator().manual_seed(0)
    (clean, labels), (clean_test, clean_labels) = (
        sets_of.load("mnist", part, root).labelled for part in ("train", "test")
    )
    blends, blend_labels = blend(clean, labels, len(clean), generator)
    ambiguous, ambiguous_labels = blend(clean_test, clean_labels, len(clean_test), generator)
    images, targets = torch.cat([clean, blends]), torch.cat([labels, blend_labels])
    network = train_lenet(images, targets)
    backbone = split(network, normalise(images[:4], (0.0,), (1.0,)), layers="auto")
    sets = {
        "train": images,
        "clean": clean_test,
        "ambiguous": ambiguous,
        "fashion": sets_of.load("fashion-mnist", "test", root).images,
        "letters": sets_of.load("notmnist", "all", root).images,
    }
    features = {name: through(backbone, x, (0.0,), (1.0,)) for name, x in sets.items()}
    features["synthetic"] = through(backbone, some(images), (0.0,), (1.0,), AUTO)
    return finish(
        backbone,
        {**features, "labels": targets, "clean_labels": clean_labels, "ambiguous_labels": ambiguous_labels},
    )


def train_lenet(images: Tensor, targets: Tensor, epochs: int = 5) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LeNet(padding=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    steps = epochs * (len(images) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        batches = order[: len(order) // 128 * 128].split(128)
        for batch in tqdm(batches, desc=f"training LeNet, epoch {epoch + 1}", leave=False):
            loss = F.cross_entropy(network(images[batch].float() / 255), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def clinc(root: Path) -> Data:
    """CLINC150 on sentence embeddings."""
    features, layer, taps = clinc150_minilm.problem(root)
    return {**features, "weight": layer.weight, "bias": layer.bias, "taps": torch.tensor(taps)}


PROBLEMS = {"cifar": cifar, "digits": dirty_digits, "clinc": clinc}
