from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from repulse.backbone import split
from repulse.errors import BackboneError, RecipeError
from repulse_lab.networks import NETWORKS, build
from repulse_lab.networks.blocks import AveragedShortcut
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.resnet import ResNet
from repulse_lab.networks.spectral_norm import SoftSpectralNorm, apply_spectral_norm
from repulse_lab.networks.vgg import VGG
from repulse_lab.networks.wide_resnet import WideResNet


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameters(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters())


# Widths and sizes


@pytest.mark.parametrize(
    ("name", "channels", "size", "features", "count"),
    [
        # Counted by hand for LeNet; the others are the counts that the papers' authors or common copies of them give.
        ("lenet", 1, 28, 84, 44_426),
        ("vgg11", 1, 28, 512, None),
        ("vgg16", 1, 28, 512, None),
        ("vgg16", 3, 32, 512, None),
        ("resnet18", 1, 28, 512, None),
        ("resnet18", 3, 32, 512, 11_173_962),
        ("wrn28-10", 3, 32, 640, 36_479_194),
        ("resnet50", 3, 32, 2048, 23_520_842),
        ("resnet101", 3, 32, 2048, 42_512_970),
        ("resnet20", 3, 32, 64, 269_722),
        ("resnet32", 3, 32, 64, 464_154),
        ("mlp", 2, 1, 128, 34_698),
    ],
)
def test_features_and_sizes_of_the_paper(name, channels, size, features, count) -> None:
    network = build(name, channels=channels, size=size)
    backbone = split(network, noise(2, channels, size, size))
    assert (backbone.penultimate, backbone.outputs) == (features, 10)
    assert count is None or parameters(network) == count


def test_vgg_has_its_layers() -> None:
    mnist, cifar = VGG(16, channels=1, size=28), VGG(16)
    for network, poolings, layers in ((mnist, 4, 13), (cifar, 5, 13), (VGG(11, channels=1, size=28), 4, 8)):
        kinds = [type(part) for part in network.features]
        assert kinds.count(nn.MaxPool2d) == poolings
        assert kinds.count(nn.Conv2d) == kinds.count(nn.BatchNorm2d) == layers
    channels = [part.out_channels for part in mnist.features if isinstance(part, nn.Conv2d)]
    assert channels == [64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    assert mnist(noise(1, 1, 28, 28)).shape == cifar(noise(1, 3, 32, 32)).shape == (1, 10)


def test_width_scales_all_stages() -> None:
    assert build("resnet18", width=8).fc.in_features == 64
    assert build("resnet50", width=8).fc.in_features == 256
    assert build("vgg11", width=8).classifier.in_features == 64
    assert build("wrn28-10", width=1).linear.in_features == 64
    assert build("mlp", channels=1, size=1, width=7)(noise(3, 1)).shape == (3, 10)


def test_lenet_pads_if_asked() -> None:
    assert LeNet().classifier[1].in_features == 256
    assert LeNet(padding=2).classifier[1].in_features == 400
    with pytest.raises(RecipeError, match=r"Expected `size` to be at least 16 pixels for LeNet, but got 8\."):
        LeNet(size=8)
    assert LeNet(size=16)(noise(1, 1, 16, 16)).shape == (1, 10)


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "wrn28-10"])
def test_mod_leaks_and_has_no_parameters_in_shortcuts(name: str, size: int) -> None:
    network = build(name, channels=1, size=size, width=2, mod=True)
    kinds = [type(module) for module in network.modules()]
    assert nn.LeakyReLU in kinds
    assert nn.ReLU not in kinds
    assert not [key for key in network.state_dict() if "shortcut" in key]
    assert kinds.count(AveragedShortcut) == {"resnet18": 3, "resnet50": 4, "wrn28-10": 3}[name]
    assert split(network, noise(2, 1, size, size)).outputs == 10


def test_averaged_shortcut_by_hand() -> None:
    x = noise(2, 3, 5, 4)
    out = AveragedShortcut(2, 2)(x)
    assert out.shape == (2, 5, 3, 2)
    torch.testing.assert_close(out[:, :3, 0, 1], x[:, :, :2, 2:4].mean(dim=(2, 3)))
    torch.testing.assert_close(out[:, :3, 2, 0], x[:, :, 4:, :2].mean(dim=(2, 3)))  # one row is left
    assert not out[:, 3:].any()
    assert torch.equal(AveragedShortcut(0, 1)(x), x)


def test_residual_block_is_its_formula() -> None:
    block = ResNet(18, width=4).eval().layer2[0]
    x = noise(2, 4, 7, 7)
    out = F.relu(block.bn1(F.conv2d(x, block.conv1.weight, stride=2, padding=1)))
    around = block.shortcut[1](F.conv2d(x, block.shortcut[0].weight, stride=2))
    torch.testing.assert_close(block(x), F.relu(block.bn2(F.conv2d(out, block.conv2.weight, padding=1)) + around))


def test_wide_block_drops_out_in_training_only() -> None:
    network = WideResNet(10, 1)
    assert network.layer1[0].bn1.momentum == 0.01
    assert network.layer1[0].dropout.p == 0.3
    weight = WideResNet(10, 10).layer1[0].conv2.weight  # fan_out: sqrt(2 / (9 * 160))
    assert weight.std().item() == pytest.approx((2 / (9 * 160)) ** 0.5, rel=0.02)
    block, x = network.layer1[0], noise(2, 16, 8, 8)
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(block(x), block(x))
        block.eval()
        assert torch.equal(block(x), block(x))


# The registry


def test_seed_decides_the_weights_and_the_global_state_stays() -> None:
    state = torch.random.get_rng_state()
    one, same, other = (build("lenet", channels=1, size=28, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    key = "features.0.weight"
    assert torch.equal(one.state_dict()[key], same.state_dict()[key])
    assert not torch.equal(one.state_dict()[key], other.state_dict()[key])


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "lenet",
            {"width": 8},
            r"Expected `width` to be left out for 'lenet', to which it does not apply, but got 8\.",
        ),
        ("vgg11", {"mod": True}, r"Expected `mod` to be left out for 'vgg11', .* but got True\."),
        ("resnet20", {"width": 8}, r"Expected `width` to be left out for 'resnet20'"),
        ("resnet20", {"channels": 1}, r"Expected `channels` to be 3 for 'resnet20', but got 1\."),
        ("mlp", {"spectral_norm": 3.0}, r"Expected `spectral_norm` to be left out for 'mlp'"),
        ("mlp", {"mod": True}, r"Expected `mod` to be left out for 'mlp'"),
        ("resnet", {}, r"Expected `name` to be one of 'lenet', .* but got 'resnet'\. Did you mean 'resnet\d+'\?"),
        ("vgg16", {"size": 64}, r"Expected `size` to be 28 or 32 pixels for a VGG, but got 64\."),
        ("resnet18", {"width": 0}, r"Expected `width` to be a positive integer, but got 0\."),
        ("resnet18", {"classes": 0}, r"Expected `classes` to be a positive integer, but got 0\."),
        ("lenet", {"spectral_norm": 0.0}, r"Expected `coefficient` to be a positive, finite number, but got 0\.0\."),
    ],
)
def test_what_does_not_apply_is_refused(name: str, options: dict, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        build(name, **options)


@pytest.mark.parametrize("make", [lambda: VGG(12), lambda: ResNet(34), lambda: WideResNet(27)])
def test_unknown_depths_are_refused(make) -> None:
    with pytest.raises(RecipeError, match="Expected `depth` to be "):
        make()


# Spectral normalisation


def unrolled(layer: nn.Conv2d, weight: Tensor, height: int, width: int) -> Tensor:
    """The matrix of a convolution: what it makes of every image with a single pixel of one."""
    pixels = torch.eye(layer.in_channels * height * width).view(-1, layer.in_channels, height, width)
    out = F.conv2d(pixels, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    return out.flatten(1).T


CONVOLUTIONS = [
    (nn.Conv2d(2, 3, 3, padding=1), 6, 6),
    (nn.Conv2d(2, 3, 3, stride=2, padding=1), 6, 6),
    (nn.Conv2d(2, 3, 3, stride=2, padding=1), 7, 7),
    (nn.Conv2d(3, 2, 3, stride=2, padding=0), 7, 6),
    (nn.Conv2d(2, 4, 5), 8, 5),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2), 5, 5),
    (nn.Conv2d(4, 4, 3, padding=1, groups=2), 5, 5),
    (nn.Conv2d(5, 3, 1), 4, 4),
    (nn.Conv2d(3, 5, 1, stride=2), 5, 4),
]


@pytest.mark.parametrize(("layer", "height", "width"), CONVOLUTIONS)
def test_sigma_is_the_largest_singular_value_of_the_convolution(layer: nn.Conv2d, height: int, width: int) -> None:
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.copy_(noise(*layer.weight.shape))
    largest = torch.linalg.matrix_norm(unrolled(layer, layer.weight, height, width), ord=2)
    rule = SoftSpectralNorm(layer, (height, width), 2.0, torch.Generator().manual_seed(0))
    early = rule.sigma(layer.weight)
    assert 0.7 * largest < early < 1.0001 * largest  # the warm-up comes close, from below
    rule.iterate(layer.weight, 500)
    torch.testing.assert_close(rule.sigma(layer.weight), largest, rtol=1e-3, atol=0)
    shrunk = rule.eval()(layer.weight)
    torch.testing.assert_close(shrunk, layer.weight * 2.0 / largest, rtol=1e-3, atol=1e-5)
    norm = torch.linalg.matrix_norm(unrolled(layer, shrunk, height, width), ord=2)
    torch.testing.assert_close(norm, torch.tensor(2.0), rtol=1e-3, atol=0)


def test_weights_only_shrink() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    rule = SoftSpectralNorm(layer, (6, 6), 1e6, torch.Generator())
    assert torch.equal(rule(layer.weight), layer.weight)


def test_gradient_is_that_of_the_quotient() -> None:
    layer = nn.Conv2d(2, 2, 3, padding=1).double()
    rule = SoftSpectralNorm(layer, (4, 4), 0.1, torch.Generator()).eval()
    assert torch.autograd.gradcheck(rule, (layer.weight,))


def test_normalised_network_stretches_no_more_than_the_coefficient() -> None:
    network = build("resnet18", channels=1, size=28, width=4, spectral_norm=0.5, mod=True)
    sizes = {"conv1": 28, "layer1.0.conv1": 28, "layer2.0.conv1": 28, "layer4.0.conv1": 7, "layer4.1.conv2": 4}
    for name, size in sizes.items():
        layer = network.get_submodule(name)
        assert layer.parametrizations.weight[0].v.shape[-1] == size
        for _ in range(50):
            weight = layer.weight.detach()
        if size < 28:
            norm = torch.linalg.matrix_norm(unrolled(layer, weight, size, size), ord=2).item()
            assert norm == pytest.approx(0.5, rel=0.02)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert all(parametrize.is_parametrized(layer, "weight") for layer in convolutions)
    assert not parametrize.is_parametrized(network.fc)


def test_eval_is_deterministic_and_training_iterates() -> None:
    network = build("lenet", channels=1, size=28, spectral_norm=0.3)
    before = copy.deepcopy(network.state_dict())
    x = noise(2, 1, 28, 28)
    network.eval()
    assert torch.equal(network(x), network(x))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    network.train()
    two = network(x).sum() + network(x).sum()
    two.backward()  # the second pass must not spoil the gradient of the first
    turned = [key for key, value in network.state_dict().items() if not torch.equal(value, before[key])]
    assert {key.rpartition(".")[2] for key in turned} == {"u", "v"}


def test_state_goes_round_and_split_sees_through() -> None:
    network, other = (build("resnet18", width=2, spectral_norm=0.5, seed=seed).eval() for seed in (0, 1))
    x = noise(2, 3, 32, 32)
    assert not torch.equal(network(x), other(x))
    other.load_state_dict(network.state_dict())
    assert torch.equal(network(x), other(x))
    backbone = split(network, x, layers="auto")
    assert backbone.penultimate == 16
    assert len(backbone.taps) > 2
    torch.testing.assert_close(F.linear(backbone(x)[:, :16], *backbone.weights), network(x))


def test_what_cannot_be_normalised_is_refused() -> None:
    with pytest.raises(BackboneError, match=r"Expected `network` to be one with convolutions, but got Linear"):
        apply_spectral_norm(nn.Linear(2, 2), 3.0, noise(1, 2))
    with pytest.raises(BackboneError, match=r"Expected padding of `0` to be a number of zeros, but got 'same'"):
        apply_spectral_norm(nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")), 3.0, noise(1, 1, 4, 4))
    network = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3))
    network[1] = network[0]
    with pytest.raises(BackboneError, match=r"Expected inputs of `0` to be of one size, but got 6 x 6 and 8 x 8\."):
        apply_spectral_norm(network, 3.0, noise(1, 1, 8, 8))
    once = apply_spectral_norm(nn.Sequential(nn.Conv2d(1, 1, 3)), 3.0, noise(1, 1, 8, 8))
    with pytest.raises(BackboneError, match="normalised already"):
        apply_spectral_norm(once, 3.0, noise(1, 1, 8, 8))


def test_every_network_runs_at_both_sizes() -> None:
    for name, (_, options) in NETWORKS.items():
        for channels, size in ((1, 28), (3, 32)):
            if name in ("resnet20", "resnet32", "resnet44", "resnet56") and channels == 1:
                continue
            width = {"width": 2} if "width" in options else {}
            network = build(name, 7, channels, size, **width).eval()
            assert network(noise(2, channels, size, size)).shape == (2, 7), name
