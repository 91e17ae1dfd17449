"""Corruptions against closed forms, Pillow, kornia and SciPy, and against a published network."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from repulse.errors import DataError, RecipeError
from repulse_lab.data import load
from repulse_lab.data.corruptions import KINDS, SEVERITIES, corrupt
from repulse_lab.data.images import normalise
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

RANDOM = {
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog",
    "elastic_transform", "speckle_noise", "spatter",
}  # fmt: skip
# Where the benchmark's own parameters do not take the image further and further from the clean one.
NOT_GRADED = {
    "glass_blur": "severity 3 blurs away part of what the shuffle of 1 and 2 does, and 4 blurs less than 3",
    "frost": "from severity 3 on, the image is dimmed as ice is added: the two cancel on average",
    "elastic_transform": "the affine part, which moves pixels furthest, shrinks with severity",
    "spatter": "water up to severity 3, mud from 4 on",
    "saturate": "paler at severities 1 and 2, gaudier from 3 on",
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def photographs():
    """Patches of smooth and rough places: 24 colour images of 64 pixels, as floats."""
    datasets = pytest.importorskip("sklearn.datasets")
    china, flower = (torch.from_numpy(np.array(image)) for image in datasets.load_sample_images().images)
    tall = torch.cat((china[:384, :512], flower[:384, :512])).permute(2, 0, 1).float() / 255
    return tall.unfold(1, 128, 128).unfold(2, 128, 128).flatten(1, 2).transpose(0, 1)[..., ::2, ::2].contiguous()


def at(photographs, height, width, channels=3):
    small = torch.nn.functional.interpolate(photographs, size=(height, width), mode="bilinear", antialias=True)
    return small.clamp(0, 1)[:, :channels]


@pytest.mark.parametrize("kind", KINDS)
def test_shape_type_and_range_stay_for_every_size(kind, photographs):
    for height, width in ((28, 28), (32, 32), (64, 64), (24, 40), (50, 33)):
        for channels in (1, 3):
            floats = at(photographs, height, width, channels)[:2]
            for images in (floats, (floats * 255).round().byte(), floats.double()):
                before = images.clone()
                out = corrupt(images, kind, 5, seeded())
                assert out.shape == images.shape
                assert out.dtype == images.dtype
                assert out.min() >= 0
                assert out.max() <= (255 if out.dtype == torch.uint8 else 1)
                assert torch.equal(images, before)
                changed = not torch.equal(out, images)
                assert changed or (kind, channels) == ("saturate", 1)
    assert corrupt(at(photographs, 8, 9)[:1], kind, 5).shape == (1, 3, 8, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_decides_and_nothing_else(kind, photographs):
    images, state = at(photographs, 32, 32), torch.get_rng_state()
    first, second = corrupt(images, kind, 3, seeded(1)), corrupt(images, kind, 3, seeded(1))
    assert torch.equal(first, second)
    assert torch.equal(first, corrupt(images, kind, 3, seeded(2))) == (kind not in RANDOM)
    assert torch.equal(corrupt(images, kind, 3), corrupt(images, kind, 3, seeded(0)))
    assert torch.equal(torch.get_rng_state(), state)
    if kind in RANDOM:  # an own draw for each image, also across the parts that are worked on at once
        many = corrupt(images[:1].expand(100, -1, -1, -1), kind, 3, seeded())
        different = len(many.flatten(1).unique(dim=0))
        assert different == 100 or (kind == "motion_blur" and different > 20)  # near angles take the same pixels


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_GRADED])
def test_the_distance_to_the_clean_image_grows_with_severity(kind, size, photographs):
    images = at(photographs, size, size)
    distances = [(corrupt(images, kind, s, seeded()) - images).square().mean().item() for s in SEVERITIES]
    assert distances[0] > 0
    if kind == "motion_blur":  # 3 and 4 differ only in a length that the Gaussian does not reach
        assert distances.pop(3) == pytest.approx(distances[2], rel=1e-3)
    assert all(a < b for a, b in zip(distances, distances[1:], strict=False)), distances


def test_grades_of_those_whose_distance_does_not_grow(photographs):
    images = at(photographs, 32, 32)

    def distances(kind, clean=images):
        return [(corrupt(clean, kind, s, seeded()) - clean).square().mean().item() for s in SEVERITIES]

    paler, gaudier = distances("saturate")[:2], distances("saturate")[2:]
    assert paler == sorted(paler)
    assert gaudier == sorted(gaudier)
    water, mud = distances("spatter")[:3], distances("spatter")[3:]
    assert water == sorted(water)
    assert mud == sorted(mud)
    glass = distances("glass_blur")
    assert max(glass[:3]) < min(glass[3:])
    ice = [corrupt(torch.zeros(1, 1, 32, 32), "frost", s) for s in (1, 2, 3, 5)]
    for share, layer in zip((0.2, 0.3, 0.4, 0.45), ice, strict=True):  # on black, there is nothing but ice
        torch.testing.assert_close(layer, ice[0] * share / 0.2)
    steps = torch.arange(32.0).expand(4, 1, 32, 32) / 31
    bends = [corrupt(steps, "elastic_transform", s)[:, :, 8:-8, 8:-8].diff(2, dim=3).std() for s in (2, 3, 4, 5)]
    assert bends == sorted(bends)  # a ramp, whose second difference an affine map leaves at zero


def test_noise_has_the_moments_it_should():
    grey = torch.full((40, 3, 32, 32), 0.4)
    for severity, std in zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True):
        out = corrupt(grey, "gaussian_noise", severity)
        assert out.mean() == pytest.approx(0.4, abs=0.002)
        assert out.std() == pytest.approx(std, rel=0.02)
    for severity, photons in zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True):
        out = corrupt(grey, "shot_noise", severity)
        assert out.mean() == pytest.approx(0.4, abs=0.002)
        assert out.var() == pytest.approx(0.4 / photons, rel=0.03)
        torch.testing.assert_close(out * photons, (out * photons).round(), atol=1e-3, rtol=0)
    for severity, std in zip(SEVERITIES, (0.06, 0.1, 0.12, 0.16, 0.2), strict=True):
        assert corrupt(grey, "speckle_noise", severity).std() == pytest.approx(0.4 * std, rel=0.02)
    for severity, share in zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True):
        out = corrupt(grey, "impulse_noise", severity)
        for extreme in (0, 1):
            assert (out == extreme).float().mean() == pytest.approx(share / 2, rel=0.15)
        assert set(out.unique().tolist()) == {0.0, grey[0, 0, 0, 0].item(), 1.0}


BLURS = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur")


@pytest.mark.parametrize("size", [32, 47])
@pytest.mark.parametrize("kind", [*BLURS, "elastic_transform", "pixelate"])
def test_what_only_moves_light_leaves_a_constant_image_alone(kind, size):
    plain = torch.tensor((0.2, 0.5, 0.9)).view(1, 3, 1, 1).expand(3, -1, size, size + 5)
    for severity in SEVERITIES:
        torch.testing.assert_close(corrupt(plain, kind, severity), plain, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["defocus_blur", "motion_blur", "gaussian_blur"])
def test_a_point_of_light_keeps_its_energy_and_spreads(kind):
    point = torch.zeros(1, 1, 65, 65)
    point[..., 32, 32] = 1
    for severity in SEVERITIES:
        out = corrupt(point, kind, severity)
        assert out.sum() == pytest.approx(1, abs=1e-4)
        assert out.max() < 0.75


def test_defocus_at_32_pixels_is_a_cross_and_then_a_square():
    point = torch.zeros(1, 1, 32, 32)
    point[..., 16, 16] = 1
    cross, square = (corrupt(point, "defocus_blur", s)[0, 0, 15:18, 15:18] for s in (4, 5))
    torch.testing.assert_close(cross, torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5, atol=1e-4, rtol=0)
    torch.testing.assert_close(square, torch.full((3, 3), 1 / 9))


def test_motion_goes_one_way_along_the_drawn_angle():
    point = torch.zeros(300, 1, 64, 64)
    point[..., 32, 32] = 1
    out = corrupt(point, "motion_blur", 5, seeded(3))
    line = torch.arange(64.0) - 32
    right, down = out.sum(dim=2).mul(line).sum(dim=(1, 2)), out.sum(dim=3).mul(line).sum(dim=(1, 2))
    assert (right < 0).all()  # each pixel gathers from its right
    assert (down.abs() <= right.abs() * 1.05).all()
    assert (down > 0).any()
    assert (down < 0).any()
    reach = torch.hypot(right, down).mean()
    assert reach == pytest.approx(5 * (2 / torch.pi) ** 0.5, rel=0.12)  # the mean of half a Gaussian of sigma 5


def test_gaussian_blur_is_that_of_scipy_and_kornia(photographs):
    filters = pytest.importorskip("scipy.ndimage")
    images = at(photographs, 40, 32)[:3]
    wanted = filters.gaussian_filter(images.double().numpy(), sigma=(0, 0, 0.8, 0.8), mode="nearest", truncate=4)
    out = corrupt(images, "gaussian_blur", 4)
    torch.testing.assert_close(out, torch.from_numpy(wanted).float(), atol=1e-5, rtol=0)
    kornia = pytest.importorskip("kornia")
    theirs = kornia.filters.gaussian_blur2d(images, (7, 7), (0.8, 0.8), border_type="replicate")
    torch.testing.assert_close(out, theirs, atol=2e-4, rtol=0)


def test_zoom_blur_is_the_mean_of_scipys_zooms(photographs):
    ndimage = pytest.importorskip("scipy.ndimage")
    image = at(photographs, 32, 32)[0]
    total = image.numpy().copy()
    zooms = np.arange(1, 1.06, 0.01)  # seven, by rounding
    for zoom in zooms:
        side = int(np.ceil(32 / zoom))
        first = (32 - side) // 2
        middle = image.numpy()[:, first : first + side, first : first + side]
        large = ndimage.zoom(middle, (1, zoom, zoom), order=1)
        cut = (large.shape[1] - 32) // 2
        total += large[:, cut : cut + 32, cut : cut + 32]
    wanted = torch.from_numpy(total / (len(zooms) + 1))
    torch.testing.assert_close(corrupt(image[None], "zoom_blur", 1)[0], wanted, atol=1e-4, rtol=0)


def test_glass_takes_every_pixel_from_above_or_left():
    numbered = (torch.arange(32 * 32.0) / 1023).view(1, 1, 32, 32)
    out = (corrupt(numbered, "glass_blur", 1) * 1023).round().long().view(32, 32)
    down = torch.arange(32)[:, None] - out // 32
    right = torch.arange(32) - out % 32
    assert set(down.unique().tolist()) == set(right.unique().tolist()) == {0, 1}
    assert down[1:].float().mean() == pytest.approx(0.5, abs=0.06)


def test_contrast_brightness_and_saturation_by_their_definitions(photographs):
    images = at(photographs, 32, 32)[:6].clone()
    images[0, :, :4] = 0.0
    images[0, :, 4:8] = 0.3  # black and grey, whose hue is undefined
    mean = images.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(corrupt(images, "contrast", 5), (mean + 0.15 * (images - mean)).clamp(0, 1))
    colour = pytest.importorskip("kornia").color
    hue, saturation, value = colour.rgb_to_hsv(images, eps=1e-12).unbind(dim=1)
    lighter = colour.hsv_to_rgb(torch.stack((hue, saturation, (value + 0.2).clamp(max=1)), dim=1))
    torch.testing.assert_close(corrupt(images, "brightness", 4), lighter, atol=1e-4, rtol=0)
    for severity, factor, more in ((1, 0.3, 0.0), (5, 2.5, 0.2)):
        gaudy = colour.hsv_to_rgb(torch.stack((hue, (saturation * factor + more).clamp(0, 1), value), dim=1))
        torch.testing.assert_close(corrupt(images, "saturate", severity), gaudy, atol=1e-4, rtol=0)
    grey = torch.tensor((0.0, 0.4, 0.9)).view(3, 1, 1, 1).expand(-1, -1, 16, 16)
    torch.testing.assert_close(corrupt(grey, "brightness", 5), (grey + 0.3).clamp(max=1))
    assert torch.equal(corrupt(grey, "saturate", 5), grey)


def as_pillow(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def test_pixelate_is_pillows_box_down_and_up(photographs):
    for height, width in ((32, 32), (64, 48)):
        images = (at(photographs, height, width)[:4] * 255).round().byte()
        for severity, share in zip(SEVERITIES, (0.95, 0.9, 0.85, 0.75, 0.65), strict=True):
            part = share * 32 / min(height, width)
            few = int(width * part), int(height * part)
            for image, out in zip(images, corrupt(images, "pixelate", severity), strict=True):
                wanted = (
                    as_pillow(image).resize(few, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)
                )
                assert np.abs(np.asarray(wanted, dtype=int) - out.permute(1, 2, 0).numpy()).max() <= 1


def test_jpeg_is_pillows(photographs):
    images = (at(photographs, 32, 40)[:4] * 255).round().byte()
    for image, out in zip(images, corrupt(images, "jpeg_compression", 5), strict=True):
        buffer = io.BytesIO()
        as_pillow(image).save(buffer, "JPEG", quality=40)
        assert np.array_equal(np.asarray(Image.open(buffer)), out.permute(1, 2, 0).numpy())


def test_fog_and_snow_whiten_and_fog_keeps_the_range(photographs):
    images = at(photographs, 32, 32) * 0.8
    fogged = corrupt(images, "fog", 5)
    assert (fogged.amax(dim=(1, 2, 3)) <= images.amax(dim=(1, 2, 3)) + 1e-6).all()
    black = torch.zeros(50, 1, 32, 32)
    black[:, :, 0, 0] = 1.0
    layer = corrupt(black, "fog", 4).flatten(1)[:, 1:]  # thickness 1, white 1: half of a fractal between 0 and 1
    torch.testing.assert_close(layer.amax(dim=1).median(), torch.tensor(0.5))
    assert layer.amin(dim=1).median() == 0
    smoothness = [corrupt(black, "fog", s)[:, :, 1:].diff(dim=3).std().item() / t for s, t in ((1, 0.2), (5, 1.5))]
    assert smoothness[1] * 2.5 > smoothness[0] * 1.2  # rougher, even though values are compressed more
    flakes = corrupt(torch.zeros(20, 1, 32, 32), "snow", 1)
    torch.testing.assert_close(flakes, flakes.flip(2, 3))  # two showers, one turned by half a circle
    assert 0.01 < (flakes > 0.1).float().mean() < 0.3


def test_mud_is_brown_where_it_is_and_nowhere_else():
    white = torch.ones(30, 3, 32, 32)
    out = corrupt(white, "spatter", 5)
    hit = (out < 1).any(dim=1)
    assert 0.02 < hit.float().mean() < 0.3
    cover = (1 - out[:, 0]) / (1 - 63 / 255)
    assert cover[hit].min() >= 0.8 - 1e-5
    torch.testing.assert_close(out[:, 2], 1 - cover * (1 - 20 / 255))


def test_bytes_and_floats_agree(photographs):
    whole = (at(photographs, 32, 32)[:3] * 255).round().byte()
    for kind in KINDS:
        floats = corrupt(whole.float() / 255, kind, 2, seeded(4))
        assert torch.equal((floats * 255).round().byte(), corrupt(whole, kind, 2, seeded(4)))


def test_errors_say_what_is_wrong():
    images = torch.rand(2, 3, 32, 32, generator=seeded())
    with pytest.raises(RecipeError, match=r"Expected `kind` to be one of .* but got 'frots'. Did you mean 'frost'\?"):
        corrupt(images, "frots", 1)
    for severity in (0, 6, True):
        with pytest.raises(RecipeError, match=f"Expected `severity` to be an integer from 1 to 5, but got {severity}"):
            corrupt(images, "fog", severity)
    with pytest.raises(DataError, match=r"bytes \(torch.uint8\), or floats between 0 and 1, but got torch.int64"):
        corrupt(images.long(), "fog", 1)
    for shape in ((3, 32, 32), (2, 4, 32, 32), (2, 3, 7, 32), (0, 3, 32, 32)):
        with pytest.raises(DataError, match=r"1 or 3 channels of at least 8 x 8 pixels, but got the shape \("):
            corrupt(torch.zeros(shape), "fog", 1)
    with pytest.raises(DataError, match="to be between 0 and 1, but got values from 0 to 255"):
        corrupt(torch.full((1, 1, 8, 8), 255.0).triu(), "fog", 1)
    images[1, 2, 3, 4] = float("nan")
    with pytest.raises(DataError, match="to be between 0 and 1, but got values from nan to nan"):
        corrupt(images, "fog", 1)


@pytest.fixture
def folder(tmp_path):
    """Make a folder of the benchmark in its own layout, with four images per severity."""
    random = np.random.default_rng(0)
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C/fog.npy", random.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / "CIFAR-10-C/labels.npy", np.tile(np.array([3, 8, 8, 0], dtype=np.uint8), 5))
    return tmp_path


def test_published_files_are_read_where_they_are(folder):
    images, labels = load("cifar10-c", "fog-2", folder).labelled
    wanted = np.load(folder / "CIFAR-10-C/fog.npy")[4:8]
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), wanted)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [3, 8, 8, 0]


def test_published_files_that_are_not_right_are_refused(folder):
    with pytest.raises(RecipeError, match="Did you mean 'fog-1'"):
        load("cifar10-c", "fogg-1", folder)
    labels = folder / "CIFAR-10-C/labels.npy"
    np.save(labels, np.zeros(7, dtype=np.uint8))
    with pytest.raises(DataError, match=r"one label for each of 20 images, but got the shape \(7,\)"):
        load("cifar10-c", "fog-1", folder)
    labels.unlink()
    with pytest.raises(DataError, match=r"CIFAR-10-C/labels.npy"):
        load("cifar10-c", "fog-1", folder)
    np.save(labels, np.zeros(20, dtype=np.uint8))
    np.save(folder / "CIFAR-10-C/fog.npy", np.zeros((21, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"N a multiple of 5, but got uint8 of \(21, 32, 32, 3\)"):
        load("cifar10-c", "fog-1", folder)
    (folder / "CIFAR-10-C/fog.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match="whole and in their format"):
        load("cifar10-c", "fog-1", folder)


@pytest.mark.data
def test_a_published_network_suffers_as_the_literature_says(data_root):
    network = load_published(data_root / "weights" / "resnet20-12fca82f.th")
    images, labels = (part[:200] for part in load("cifar10", "test", data_root).labelled)

    @torch.no_grad()
    def accuracy(pictures):
        return (network(normalise(pictures, MEAN, STD)).argmax(dim=1) == labels).float().mean().item()

    clean = accuracy(images)
    weak, strong = (torch.tensor([accuracy(corrupt(images, kind, s)) for kind in KINDS]) for s in (1, 5))
    assert clean - 0.15 < weak.mean() < clean
    assert 0.48 < strong.mean() < 0.60  # CIFAR-10-C has 50 to 60 % for networks of this kind
    assert (strong < weak).all()
    assert (strong < clean - 0.02).all()
