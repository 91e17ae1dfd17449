"""Sources of repulsion samples: the contract all of them keep, and what each of them promises."""

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import repulse
from repulse import RecipeError, RepulsionError
from repulse.repulsion import (
    DeadLeaves,
    Mixture,
    Mixup,
    Noise,
    Pasted,
    PatchShuffle,
    PhaseScramble,
    Shear,
    Swirl,
    TrainingData,
    UniformBox,
)
from repulse.repulsion.phase_scramble import scramble_phases
from repulse.repulsion.source import Source

SHAPES = [(1, 8, 8), (3, 32, 32), (4, 17, 23)]
SINGLE = [
    *[
        TrainingData(),
        PatchShuffle(4),
        DeadLeaves(),
        DeadLeaves(grain=0),
        PhaseScramble(),
        Swirl(),
        Shear(),
        Mixup(),
        Pasted(),
    ],
    *[Noise(), UniformBox(), UniformBox(-1.0, 2.0)],
]
SOURCES = [*SINGLE, UniformBox(low=-9.0), Mixture([DeadLeaves(), PhaseScramble()])]
every_source = pytest.mark.parametrize("source", SOURCES, ids=repr)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape, seed=7, dtype=torch.float32):
    """Smooth and of uneven range, like photographs after normalisation: blurred noise, shifted and skewed."""
    noise = torch.rand(shape, generator=generator(seed), dtype=dtype)
    blurred = torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    return 2.5 * blurred**2 - 0.7


@every_source
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_are_inputs_of_the_same_kind_and_seeded(source, shape, dtype):
    if isinstance(source, PatchShuffle) and shape[1] % 2:
        source = PatchShuffle(17 * 23)  # odd sizes have odd tiles
    batch = images(6, *shape, dtype=dtype)
    before, state = batch.clone(), torch.get_rng_state()
    first, again, other = (source.sample(batch, generator(seed)) for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == (batch.shape, dtype)
    assert bool(torch.isfinite(first).all())
    assert torch.equal(first, again)
    assert torch.equal(first, other) == isinstance(source, TrainingData)
    assert torch.equal(batch, before)
    assert torch.equal(torch.get_rng_state(), state)


@every_source
def test_a_batch_of_one(source):
    batch = images(1, 3, 8, 8)
    if isinstance(source, Mixup):
        with pytest.raises(RepulsionError, match="`inputs` to be at least two inputs per batch for Mixup, but got 1"):
            source.sample(batch, generator())
    else:
        sample = source.sample(batch, generator())
        assert sample.shape == batch.shape
        assert bool(torch.isfinite(sample).all())


@pytest.mark.parametrize("source", SINGLE, ids=repr)
def test_everything_happens_on_the_device_of_the_batch(source):
    """A tensor left on the CPU would not mix with those of another device."""
    assert source.sample(images(4, 3, 8, 8).to("meta"), generator()).device.type == "meta"


def test_no_global_random_state_and_no_fixed_device_in_the_code():
    for path in Path(repulse.repulsion.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        assert not names & {"cuda", "numpy", "random", "manual_seed", "seed", "set_default_dtype"}, path


@pytest.mark.parametrize("source", [s for s in SOURCES if not isinstance(s, TrainingData)], ids=repr)
def test_integer_inputs_are_refused(source):
    with pytest.raises(RepulsionError, match=r"Expected `inputs` to be .*float.*but got torch.int64"):
        source.sample(torch.ones(4, 3, 8, 8, dtype=torch.int64), generator())


@pytest.mark.parametrize(("tiles", "rows", "columns"), [(2, 1, 2), (4, 2, 2), (8, 2, 4), (16, 4, 4), (32, 4, 8)])
def test_patches_move_as_whole_tiles(tiles, rows, columns):
    number = torch.arange(tiles).view(rows, columns)
    marked = number.repeat_interleave(32 // rows, 0).repeat_interleave(32 // columns, 1).float()
    pixel = torch.arange(32 * 32).view(32, 32).float()  # names every pixel
    sample = PatchShuffle(tiles).sample(torch.stack([marked, pixel]).expand(5, 2, 32, 32), generator())
    for shuffled, pixels in sample:
        cut = shuffled.view(rows, 32 // rows, columns, 32 // columns).transpose(1, 2).flatten(0, 1)
        order = cut[:, 0, 0]
        assert torch.equal(cut, order.view(-1, 1, 1).expand_as(cut))
        assert order.sort().values.tolist() == list(range(tiles))
        assert torch.equal(marked.flatten()[pixels.flatten().long()], shuffled.flatten())  # channels move together
        assert torch.equal(pixels.flatten().sort().values, pixel.flatten())


def test_patches_are_shuffled_uniformly_but_never_left_as_they_are():
    batch = torch.arange(3.0).view(1, 1, 1, 3).expand(1000, 1, 1, 3)
    orders = [tuple(row) for row in PatchShuffle(3).sample(batch, generator()).flatten(1).tolist()]
    counts = [orders.count(order) for order in itertools.permutations((0.0, 1.0, 2.0))]
    assert counts[0] == 0
    assert sum((count - 200) ** 2 / 200 for count in counts[1:]) < 18.5  # chi-square, 4 degrees of freedom, 0.1 %
    two = PatchShuffle(2).sample(batch[..., :2], generator())
    assert torch.equal(two, batch[..., :2].flip(-1))


def test_patches_that_do_not_fit_are_refused():
    with pytest.raises(RepulsionError, match="4 x 4 equal tiles fill, but got 17 x 23 pixels"):
        PatchShuffle(16).sample(images(2, 4, 17, 23), generator())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_scrambling_keeps_amplitudes_and_means(shape, dtype, digits):
    batch = images(6, *shape, dtype=dtype)
    scrambled = scramble_phases(batch, generator())
    before, after = (torch.fft.fft2(x.double()).abs() for x in (batch, scrambled))
    assert_close(after, before, rtol=0, atol=digits * float(before.max()))
    assert_close(scrambled.mean(dim=(2, 3)), batch.mean(dim=(2, 3)), rtol=0, atol=digits)
    assert float((scrambled - batch).abs().mean()) > 0.5 * float(batch.std())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ink", [False, True])
def test_scrambled_images_keep_range_and_brightness(shape, ink):
    """Also strokes on an empty ground, where scrambling leaves the range at half of the pixels."""
    batch = (images(20, *shape) > 0).float() if ink else images(20, *shape)
    sample = PhaseScramble().sample(batch, generator())
    low, high = batch.amin(dim=(1, 2, 3)), batch.amax(dim=(1, 2, 3))
    assert bool((sample.amin(dim=(1, 2, 3)) >= low).all() and (sample.amax(dim=(1, 2, 3)) <= high).all())
    shift = (sample.mean(dim=(2, 3)) - batch.mean(dim=(2, 3))).abs() / (high - low).unsqueeze(1)
    assert float(shift.max()) < 0.01


@pytest.mark.parametrize(("a", "b"), [(4.0, -2.0), (0.1, 0.5), (255.0, 0.0)])
def test_any_normalisation_of_the_images_will_do(a, b):
    batch = images(6, 3, 32, 32)
    flat, phases = DeadLeaves(grain=0), PhaseScramble()
    assert torch.equal(flat.sample(a * batch + b, generator()), a * flat.sample(batch, generator()) + b)
    moved = phases.sample(a * batch + b, generator())
    assert_close(moved, a * phases.sample(batch, generator()) + b, rtol=0, atol=1e-5 * a)


def test_leaves_have_colours_of_the_batch():
    batch = images(6, 3, 32, 32)
    sample = DeadLeaves(grain=0).sample(batch, generator())
    there, used = ({tuple(p) for p in x.permute(0, 2, 3, 1).reshape(-1, 3).tolist()} for x in (batch, sample))
    assert used <= there
    assert all(len(image.flatten(1).unique(dim=1).T) > 5 for image in sample)
    grainy = DeadLeaves().sample(batch, generator())
    low, high = batch.amin(dim=(0, 2, 3)), batch.amax(dim=(0, 2, 3))
    assert bool((grainy.amin(dim=(0, 2, 3)) >= low).all() and (grainy.amax(dim=(0, 2, 3)) <= high).all())
    assert len(grainy[0, 0].unique()) > 500


@pytest.mark.parametrize(("smallest", "largest"), [(0.02, 0.3), (0.1, 0.3), (0.29, 0.3)])
def test_radii_follow_the_law_of_natural_images(smallest, largest):
    """One rectangle, uniformly placed, covers the centre with the probability of its mean share of the area.

    With half-sides r and a r, a uniform on [0.4, 1] and r of density proportional to 1/r^3, the mean of its area
    4 a r^2 is 2.8 log(largest/smallest) / ((smallest^-2 - largest^-2) / 2).
    """
    n, side = 100_000, 9
    batch = torch.arange(n * side**2, dtype=torch.float64).view(n, 1, side, side)  # all colours differ
    sample = DeadLeaves(leaves=1, smallest=smallest, largest=largest, grain=0).sample(batch, generator()).flatten(1)
    covered = sample[:, side**2 // 2] != sample.mode(dim=1).values
    area = 2.8 * math.log(largest / smallest) * 2 / (smallest**-2 - largest**-2) * side**2
    share = area / (side - 1) ** 2
    assert float(covered.double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))


def test_more_leaves_than_fit_into_sixteen_bits_are_refused():
    with pytest.raises(RecipeError, match="Expected `leaves` to be below 32768, but got 40000"):
        DeadLeaves(leaves=40_000)


def test_uniform_box_fills_its_corners():
    batch = images(2000, 3, 2, 2)
    low, high = torch.tensor([-1.0, 0.0, 5.0]).view(3, 1, 1), torch.tensor([1.0, 4.0, 6.0]).view(3, 1, 1)
    sample = UniformBox(low, high).sample(batch, generator())
    assert bool((sample >= low).all() and (sample < high).all())
    unit = ((sample - low) / (high - low)).flatten().sort().values
    assert float((unit - torch.linspace(0, 1, len(unit))).abs().max()) < 1.95 / math.sqrt(
        len(unit)
    )  # Kolmogorov, 0.1 %
    smallest, largest = batch.amin(dim=0), batch.amax(dim=0)
    reach = 0.5 * (largest - smallest)
    sample = UniformBox(margin=0.5).sample(batch, generator())
    assert_close(sample.amin(dim=0), smallest - reach, rtol=0, atol=0.02)
    assert_close(sample.amax(dim=0), largest + reach, rtol=0, atol=0.02)
    assert bool((UniformBox(high=9.0).sample(batch, generator()).amax(dim=0) > largest + reach).all())


@pytest.mark.parametrize(
    ("box", "name"),
    [(UniformBox(torch.zeros(5)), "low"), (UniformBox(low=100.0), "low"), (UniformBox(high=-100.0), "high")],
)
def test_a_corner_that_does_not_fit_the_batch_is_refused(box, name):
    with pytest.raises(RepulsionError, match=f"Expected `{name}` to be"):
        box.sample(images(4, 3, 2, 2), generator())


def test_noise_has_the_mean_and_spread_of_each_channel():
    batch = images(500, 3, 8, 8) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1) + torch.tensor([0.0, 5, -5]).view(
        3, 1, 1
    )
    sample = Noise(scale=2.0).sample(batch, generator()).transpose(0, 1).flatten(1)
    channels = batch.transpose(0, 1).flatten(1)
    error = 4 / math.sqrt(channels.shape[1])  # four standard errors
    assert_close((sample.mean(1) - channels.mean(1)) / (2 * channels.std(1)), torch.zeros(3), rtol=0, atol=error)
    assert_close(sample.std(1) / channels.std(1), torch.full((3,), 2.0), rtol=0, atol=2 * error)


@pytest.mark.parametrize("size", [2, 3, 16])
def test_mixup_blends_two_different_inputs(size):
    """With unit vectors as inputs, a sample is the list of its weights."""
    for seed in range(50):
        weights = Mixup().sample(torch.eye(size), generator(seed))
        assert ((weights > 0).sum(dim=1) == 2).all()
        assert_close(weights.sum(dim=1), torch.ones(size))
        assert bool(((weights == 0) | ((weights >= 0.3 - 1e-6) & (weights <= 0.7 + 1e-6))).all())
        assert bool((weights.diagonal() > 0).all())


class Constant(Source):
    def __init__(self, value):
        self.value = value

    def sample(self, batch, generator):
        return torch.full_like(batch, self.value)


@pytest.mark.parametrize("weights", [None, [1, 3], [0.02, 0.01]])
def test_mixture_takes_each_source_as_often_as_its_weight_says(weights):
    sample = Mixture([Constant(0.0), Constant(1.0)], weights).sample(torch.zeros(4000, 2), generator())
    assert torch.equal(sample[:, 0], sample[:, 1])
    share = 0.5 if weights is None else weights[1] / sum(weights)
    assert float(sample.mean()) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 4000))


def test_mixture_hands_out_what_its_sources_make_of_the_same_inputs():
    batch = images(64, 1, 4, 4)
    assert torch.equal(Mixture([TrainingData()]).sample(batch, generator()), batch)
    for seed in range(20):  # few enough inputs that a source is often given a single one
        sample = Mixture([Mixup(), Noise()]).sample(batch[:3], generator(seed))
        assert bool(torch.isfinite(sample).all())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PatchShuffle(1), "`tiles` to be at least 2, but got 1"),
        (lambda: DeadLeaves(leaves=0), "`leaves` to be a positive integer, but got 0"),
        (lambda: DeadLeaves(grain=-1.0), "`grain` to be a finite number that is zero or larger, but got -1.0"),
        (lambda: DeadLeaves(smallest=0.6), "`smallest` to be below `largest`, but got smallest=0.6, largest=0.5"),
        (lambda: Noise(0.0), "`scale` to be a positive, finite number, but got 0.0"),
        (lambda: UniformBox(1.0, 0.0), "`low` to be below `high`"),
        (lambda: UniformBox(torch.zeros(3), torch.ones(4)), "`low`"),
        (lambda: UniformBox(margin=-0.1), "`margin` to be a finite number that is zero or larger, but got -0.1"),
        (lambda: Mixture([]), "`sources` to be at least one source, but got none"),
        (lambda: Mixture([Noise()], [1.0, 2.0]), "`weights` to be 1 number.* but got 2"),
        (lambda: Mixture([Noise()], [0.0]), "`weights` to be a positive, finite number, but got 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(RecipeError, match=f"Expected {words}"):
        make()


@pytest.mark.parametrize(("warp", "gentle"), [(Swirl(), Swirl(displacement=1e-6)), (Shear(), Shear(spread=1e-6))])
def test_warps_move_pixels_smoothly_and_make_none_up(warp, gentle):
    batch = torch.arange(32.0).view(1, 1, 1, 32).expand(3, 2, 32, 32)
    sample = warp.sample(batch, generator())
    assert sample.min() >= 0
    assert sample.max() <= 31  # interpolated between pixels, reflected at the border
    assert (sample[0] - sample[1]).abs().mean() > 1  # each its own
    torch.testing.assert_close(sample[:, 0], sample[:, 1])  # channels move together
    assert sample.diff(dim=2).abs().mean() < 3
    torch.testing.assert_close(gentle.sample(batch, generator()), batch, atol=1e-3, rtol=0)
