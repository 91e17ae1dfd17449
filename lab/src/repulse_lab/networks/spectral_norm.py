"""Soft spectral normalisation of convolutions: a weight W becomes W / max(1, sigma / c), so that it only ever shrinks.

sigma is the largest factor by which the layer stretches an input: the largest singular value of the convolution as it
acts on inputs of the size it really gets, with its stride and its zeros at the edges. A kernel of one pixel acts on
each pixel alone, so there it is that of a matrix. It is found by power iteration, one step each time the weight is used
in training, which follows the slow change of the weights; in eval mode nothing changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input
from torch.nn.utils import parametrize

from repulse._modes import evaluating
from repulse.errors import BackboneError, check_number, expected

WARM_UP = 15
"""Steps of power iteration before the first use, since too few give too small a sigma."""


class SoftSpectralNorm(nn.Module):
    """The parametrization of one convolution's weight.

    Args:
        convolution: whose weight it is.
        size: height and width of its inputs.
        coefficient: c, the largest sigma that is left alone.
        generator: of the vector that the iteration starts from.

    Attributes:
        u: left singular vector, in the shape of an output of the layer.
        v: right singular vector, in the shape of an input.
    """

    u: Tensor
    v: Tensor

    def __init__(
        self, convolution: nn.Conv2d, size: tuple[int, int], coefficient: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        weight = convolution.weight.detach()
        self.coefficient = coefficient
        self.settings: dict[str, Any] = {"groups": convolution.groups}
        if convolution.kernel_size == (1, 1):
            size = (1, 1)
        else:
            self.settings |= {name: getattr(convolution, name) for name in ("stride", "padding", "dilation")}
        start = torch.randn(1, convolution.in_channels, *size, generator=generator).to(weight)
        self.register_buffer("v", F.normalize(start.flatten(), dim=0).view_as(start))
        self.register_buffer("u", torch.zeros_like(F.conv2d(self.v, weight, **self.settings)))
        self.iterate(weight, WARM_UP)

    @torch.no_grad()
    def iterate(self, weight: Tensor, steps: int = 1) -> None:
        """Turn u and v towards the singular vectors of a weight."""
        for _ in range(steps):
            self.u.copy_(_unit(F.conv2d(self.v, weight, **self.settings)))
            self.v.copy_(_unit(conv2d_input(self.v.shape, weight, self.u, **self.settings)))

    def sigma(self, weight: Tensor) -> Tensor:
        """Return how far the layer stretches v, measured along u."""
        # Copies: a second pass may come, and turn u and v, before the gradient of the first is taken.
        return (self.u.clone() * F.conv2d(self.v.clone(), weight, **self.settings)).sum()

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            self.iterate(weight.detach())
        return weight / (self.sigma(weight) / self.coefficient).clamp_min(1.0)


def apply_spectral_norm(network: nn.Module, coefficient: float, example: Tensor, *, seed: int = 0) -> nn.Module:
    """Normalise the weights of all convolutions of a network, in place, and return it.

    Linear layers and batch normalisation are left alone.

    Args:
        network: any network with two-dimensional convolutions.
        coefficient: the largest factor by which a layer may stretch its inputs; 3 in the paper.
        example: a batch, from which the sizes of all inputs are found.
        seed: of the vectors that the iterations start from.

    Raises:
        BackboneError: the network has no convolutions, or one that cannot be normalised.
    """
    check_number("coefficient", coefficient, positive=True)
    sizes = _input_sizes(network, example)
    if not sizes:
        raise BackboneError(expected("network", "one with convolutions", f"{type(network).__name__}, which runs none"))
    for name, size in sizes.items():
        _check(name, network.get_submodule(name), size)
    generator = torch.Generator().manual_seed(seed)
    for name, size in sizes.items():
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        rule = SoftSpectralNorm(layer, next(iter(size)), coefficient, generator)
        parametrize.register_parametrization(layer, "weight", rule.train(layer.training))
    return network


@torch.no_grad()
def _input_sizes(network: nn.Module, example: Tensor) -> dict[str, set[tuple[int, int]]]:
    """Return height and width of what enters each convolution that runs."""
    sizes: dict[str, set[tuple[int, int]]] = {}

    def watch(name: str):
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes.setdefault(name, set()).add((inputs[0].shape[-2], inputs[0].shape[-1]))

        return hook

    convolutions = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in convolutions]
    try:
        with evaluating(network):
            network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def _check(name: str, layer: nn.Module, sizes: set[tuple[int, int]]) -> None:
    assert isinstance(layer, nn.Conv2d)
    if parametrize.is_parametrized(layer, "weight"):
        raise BackboneError(expected(f"`{name}`", "a convolution as it was made", "one that is normalised already"))
    if len(sizes) > 1 and layer.kernel_size != (1, 1):
        got = " and ".join(f"{height} x {width}" for height, width in sorted(sizes))
        raise BackboneError(expected(f"inputs of `{name}`", "of one size", got))
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        got = f"{layer.padding!r} of mode {layer.padding_mode!r}"
        raise BackboneError(expected(f"padding of `{name}`", "a number of zeros", got))


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x).clamp_min(1e-12)
