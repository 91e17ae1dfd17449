"""Networks of the paper and of the published weights that the experiments use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from repulse.errors import RecipeError, check_choice, check_positive_integer, expected
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.mlp import MLP
from repulse_lab.networks.resnet import ResNet
from repulse_lab.networks.resnet_cifar import ResNetCifar
from repulse_lab.networks.spectral_norm import apply_spectral_norm
from repulse_lab.networks.vgg import VGG
from repulse_lab.networks.wide_resnet import WideResNet

__all__ = ["NETWORKS", "build"]


def _resnet(depth: int) -> Callable[..., nn.Module]:
    return lambda classes, channels, size, **options: ResNet(depth, classes, channels, **options)


def _small(depth: int) -> Callable[..., nn.Module]:
    def make(classes: int, channels: int, size: int) -> nn.Module:
        if channels != 3:  # the published weights are for colour
            raise RecipeError(expected("channels", f"3 for 'resnet{depth}'", channels))
        return ResNetCifar(depth, classes)

    return make


def _wide(classes: int, channels: int, size: int, width: int = 10, mod: bool = False) -> nn.Module:
    return WideResNet(28, width, classes, channels, mod=mod)


def _lenet(classes: int, channels: int, size: int) -> nn.Module:
    return LeNet(classes, channels=channels, size=size)


def _mlp(classes: int, channels: int, size: int, **options: Any) -> nn.Module:
    return MLP(channels * size**2, classes, **options)


_RESIDUAL = ("width", "mod", "spectral_norm")
NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "lenet": (_lenet, ("spectral_norm",)),
    **{f"vgg{depth}": (partial(VGG, depth), ("width", "spectral_norm")) for depth in (11, 16)},
    **{f"resnet{depth}": (_resnet(depth), _RESIDUAL) for depth in (18, 50, 101)},
    "wrn28-10": (_wide, _RESIDUAL),
    **{f"resnet{depth}": (_small(depth), ("spectral_norm",)) for depth in (20, 32, 44, 56)},
    "mlp": (_mlp, ("width",)),
}
"""For each name, what makes the network, and which options apply to it."""


def build(
    name: str,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    *,
    width: int | None = None,
    spectral_norm: float | None = None,
    mod: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Build a network by its name, with fresh weights that depend on the seed alone.

    Args:
        name: one of `NETWORKS`.
        classes: number of outputs.
        channels: of the images; with `size=1`, the number of inputs of an "mlp".
        size: height and width of the images.
        width: channels of the first stage of a VGG or ResNet (64), widening factor of "wrn28-10" (10), hidden units of
            an "mlp" (128).
        spectral_norm: coefficient of soft spectral normalisation, or None for none.
        mod: leaky rectifiers and shortcuts without parameters, in a ResNet or "wrn28-10".
        seed: of the weights.

    Examples:
        >>> build("resnet18", channels=1, size=28, width=16, mod=True).fc
        Linear(in_features=128, out_features=10, bias=True)
    """
    check_choice("name", name, NETWORKS)
    for argument, value in (("classes", classes), ("channels", channels), ("size", size)):
        check_positive_integer(argument, value)
    if width is not None:
        check_positive_integer("width", width)
    make, applies = NETWORKS[name]
    given = {
        argument: value
        for argument, value in (("width", width), ("mod", mod), ("spectral_norm", spectral_norm))
        if value not in (None, False)
    }
    for argument, value in given.items():
        if argument not in applies:
            raise RecipeError(expected(argument, f"left out for {name!r}, to which it does not apply", value))
    given.pop("spectral_norm", None)
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from the global state
        torch.manual_seed(seed)
        network = make(classes, channels, size, **given)
    if spectral_norm is not None:
        apply_spectral_norm(network, spectral_norm, torch.zeros(1, channels, size, size), seed=seed)
    return network
