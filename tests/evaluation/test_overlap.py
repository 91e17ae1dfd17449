"""Samples that are in two sets are found by content."""

from __future__ import annotations

import pytest
import torch

from repulse import DataError
from repulse.evaluation import overlap


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 8, 8), (512,), (2,), (5,)])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_overlap_finds_copies_through_rounding(shape, scale):
    samples, others = scale * noise(300, *shape), scale * noise(200, *shape, seed=1)
    others[50:100] = samples[100:150] * (1 + 1e-5 * noise(50, *shape, seed=2))
    assert overlap(samples, others) == 0.25
    assert overlap(list(samples.split(70)), [(part, torch.zeros(len(part))) for part in others.split(33)]) == 0.25
    assert overlap({"a": samples[:120], "b": samples.split(40)}, others) == 0.25
    assert overlap(others[:50], samples) == 0.0
    assert overlap(samples, samples.flip(0)) == 1.0


def test_overlap_of_features_behind_a_large_constant():
    """A constant column, a column that is mostly zero and a common offset hide neither copies nor differences."""
    samples = torch.cat([torch.full((100, 1), 1e5), torch.zeros(100, 1), 3 + 0.5 * noise(100, 30)], dim=1)
    others = samples.clone()
    others[:, 2:] = 3 + 0.5 * noise(100, 30, seed=1)
    assert overlap(samples, others) == 0.0
    assert overlap(samples, samples * (1 + 1e-5 * noise(100, 32, seed=1))) == 1.0
    assert overlap([torch.zeros(1, 32), samples], samples * (1 + 1e-5 * noise(100, 32, seed=1))) == 1.0


def test_overlap_of_integers_is_exact():
    g = torch.Generator().manual_seed(0)
    samples = torch.randint(256, (200, 3, 32, 32), generator=g).to(torch.uint8)
    others = samples[:100].clone()
    others[:40, 0, 0, 0] ^= 1  # one grey level of one pixel
    assert overlap(samples, others) == 0.6
    assert overlap(samples, others.long()) == 0.6
    assert overlap(samples, others.float() / 255) == 0.0  # other units are other numbers


def test_overlap_of_single_numbers_is_exact():
    samples = torch.linspace(0, 1, 5000, dtype=torch.float64).unsqueeze(1)
    others = torch.cat([samples[:25], samples[:75] + 1e-5])
    assert overlap(samples, others) == 0.25


def test_other_shapes_do_not_overlap_and_nothing_is_refused():
    x = noise(20, 12)
    assert overlap(x, x[:, :6]) == 0.0
    assert overlap(x.view(20, 3, 4), x) == 1.0
    assert overlap([x[:0], x], [x, x[:0]]) == 1.0
    assert overlap([{"ids": x, "mask": x[:, :2], "labels": x[:, 0]}], [{"ids": x, "mask": x[:, :2]}]) == 1.0
    for empty in (x[:0], [], [x[:0]], {}):
        with pytest.raises(DataError, match="Expected `samples` to be at least one sample, but got none"):
            overlap(empty, x)
        with pytest.raises(DataError, match="Expected `others` to be at least one sample, but got none"):
            overlap(x, empty)
    for bad in (None, "all", 3):
        with pytest.raises(DataError, match="Expected `samples` to be a tensor, a loader or a mapping"):
            overlap(bad, x)
    with pytest.raises(DataError, match="Expected each batch of `others` to be a tensor"):
        overlap(x, [3])
