"""The networks of the experiments, in both presets.

Those of the cpu preset are the paper's at an eighth of their width, trained for a few epochs; LeNet is the paper's own.
On CIFAR-10 they stand beside ResNet-20 and ResNet-32 with published weights.
"""

from __future__ import annotations

from typing import Any

from repulse.recipe import FS_RLL_E
from repulse_lab.study.training import Network, Networks

REPULSION: dict[str, dict[str, Any]] = {"dirty-mnist": {"on": "probabilities", "strength": 0.001}}
"""Strength and space of fs-RLL-E by problem, as `repulse-lab reproduce strength` chooses them; else those of
`FS_RLL_E`."""


def heads_note(problem: str) -> str:
    """Return how the heads of fs-RLL-E are fitted on a problem, and on what that was chosen."""
    recipe = FS_RLL_E.replace(**REPULSION.get(problem, {}))
    chosen = (
        "Strength and space were chosen on training images (`repulse-lab reproduce strength`), learning rate and "
        "length with the ECE of CIFAR-10's test images in view."
        if problem in REPULSION
        else "Strength, learning rate and length were chosen with CIFAR-10's test images in view."
    )
    return (
        f"strength {recipe.strength:g} on {recipe.on}, learning rate {recipe.lr:g} with {recipe.decay} decay, prior "
        f"standard deviation {recipe.prior_std:g}, three passes and at least 2,000 steps; not the paper's 30 epochs. "
        + chosen
    )


CALIBRATION_NOTE = (
    "What calibrates (SNGP's factor, a temperature, the weight of tuned outlier exposure, the centre of repulse) is "
    "chosen on one half of the test labels and judged on the other half, both ways; the other rows see no test label."
)
LENET = Network("LeNet", "lenet", "cpu-lenet", like="LeNet")
VGG11 = Network("VGG-11", "vgg11", "cpu-dirty-mnist", width=8, like="VGG-11")
VGG16 = Network("VGG-16", "vgg16", "cpu-dirty-mnist", width=8, like="VGG-16")
RESNET18 = Network("ResNet-18", "resnet18", "cpu-dirty-mnist", width=8, spectral_norm=3.0, like="ResNet-18")
DIGITS = Networks((LENET, VGG11, VGG16, RESNET18), {"LeNet": 5, "VGG-11": 3, "VGG-16": 3, "ResNet-18": 3})
DIGIT_NOTES = (
    "LeNet is the paper's, trained for 8 epochs; VGG-11, VGG-16 and ResNet-18 have an eighth of its channels and are "
    "trained for 2 epochs, one-cycle.",
    "Deep ensembles leave out one network of their kind, each in turn: four of five LeNets, two of three others. They "
    "share networks, so that they differ by less than ensembles that are apart.",
    "AmbiguousMNIST is built here after the published recipe, unless its files are in the data folder; it is easier "
    "than the published one.",
    "Letters are notMNIST and stand in for EMNIST. KMNIST, Omniglot and letters are halved at random: one half is to "
    "repel on, the other to judge on.",
    f"Heads: {heads_note('dirty-mnist')}",
    CALIBRATION_NOTE,
)

RESNET20 = Network("ResNet-20", "resnet20", like="WRN-28-10")
RESNET32 = Network("ResNet-32", "resnet32", like="WRN-28-10")
PUBLISHED = Networks((RESNET20, RESNET32), 3)
NARROW18 = Network("ResNet-18", "resnet18", "cpu-cifar", width=8, like="ResNet-18")
NARROW11 = Network("VGG-11", "vgg11", "cpu-cifar", width=16)
PHOTO_NOTES = (
    "ResNet-20 and ResNet-32 have published weights and 64 features, and stand in for WRN-28-10; what is random is the "
    "fit of the methods alone.",
    "Tiny ImageNet: 100 classes to repel on, the other 100 to judge on. Textures: half to repel on, half to judge on. "
    "Noise: uniform pixels, other draws.",
    "SVHN crops, cut from photographs, stand in for SVHN: half to repel on, half to judge on. They and upscaled MNIST "
    "and FashionMNIST are in no mean.",
    f"Heads: {heads_note('cifar10')}",
    CALIBRATION_NOTE,
)


def full(name: str, label: str, schedule: str, spectral_norm: float | None = 3.0, mod: bool = False) -> Network:
    """Return a network of the paper preset, at its full width."""
    return Network(label, name, schedule, spectral_norm=spectral_norm, mod=mod, like=label)


PAPER_DIGITS = Networks(
    (
        full("lenet", "LeNet", "dirty-mnist", None),
        full("vgg11", "VGG-11", "dirty-mnist", None),
        full("vgg16", "VGG-16", "dirty-mnist", None),
        full("resnet18", "ResNet-18", "dirty-mnist"),
    ),
    5,
)
PAPER_WIDE = Networks((full("wrn28-10", "WRN-28-10", "cifar", mod=True),), 10, members=5)
PAPER_PHOTOS = Networks(
    (
        full("resnet18", "ResNet-18", "cifar"),
        full("wrn28-10", "WRN-28-10", "cifar", mod=True),
        full("resnet50", "ResNet-50", "cifar"),
        full("resnet101", "ResNet-101", "cifar"),
    ),
    5,
)
