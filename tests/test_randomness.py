"""Loaders that shuffle and augment: the same heads each time, and no random state of the caller changed."""

from __future__ import annotations

import random
from contextlib import contextmanager

import jaxtyping
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import repulse
from models import QUICK, Odd, normal
from repulse import retrofit
from repulse.backbone import split

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


class Augmented(Dataset):
    """Every look at a sample is different, by all three kinds of global randomness."""

    def __init__(self):
        self.x, self.y = normal(24, 4), torch.arange(24) % 3

    def __len__(self):
        return 24

    def __getitem__(self, i):
        moved = float(torch.rand(())) + random.random() + np.random.rand()  # noqa: NPY002
        return self.x[i] + moved, self.y[i]


def random_states(*generators):
    numbers = np.random.get_state()  # noqa: NPY002
    states = [torch.get_rng_state(), *(generator.get_state() for generator in generators)]
    return [state.tolist() for state in states], random.getstate(), numbers[1].tolist(), numbers[2:]


def loaders():
    data = Augmented()
    for name, settings in {
        "its own generator": {"generator": torch.Generator().manual_seed(5), "shuffle": True, "batch_size": 8},
        "the global generator": {"shuffle": True, "batch_size": 8},
        "a sampler": {"sampler": RandomSampler(data, generator=torch.Generator().manual_seed(5)), "batch_size": 8},
        "a batch sampler": {
            "batch_sampler": BatchSampler(RandomSampler(data, generator=torch.Generator().manual_seed(5)), 8, False)
        },
    }.items():
        yield pytest.param(data, settings, id=name)


@contextmanager
def seeded(seed, *generators):
    """All random states that there are, set by a seed; as they were afterwards."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        for generator in generators:
            generator.manual_seed(seed)
        yield
    random.setstate(python)
    np.random.set_state(numbers)  # noqa: NPY002


def retrofit_on(loader):
    recipe = QUICK.replace(repulsion_samples=20)
    return retrofit(Odd(), loader, repulsion=loader, recipe=recipe, augmentations=2, progress=False)


def generators_of(loader):
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return [g for g in (loader.generator, getattr(sampler, "generator", None)) if g is not None]


@pytest.mark.parametrize(("data", "settings"), list(loaders()))
def test_a_loader_that_shuffles_and_augments_gives_the_same_heads(data, settings):
    loader = DataLoader(data, **settings)
    heads = []
    for seed in (1, 2):
        with seeded(seed, *generators_of(loader)):
            heads.append(retrofit_on(loader).heads.vectors())
    assert torch.equal(*heads)


@pytest.fixture
def unchecked():
    """Without the checks of shapes, which draw random numbers of their own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("data", "settings"), list(loaders()))
def test_no_random_state_is_changed(data, settings):
    loader = DataLoader(data, **settings)
    generators = generators_of(loader)
    with seeded(1, *generators):
        before = random_states(*generators)
        retrofit_on(loader)
        assert random_states(*generators) == before


def test_passes_over_a_loader_that_augments_differ():
    loader = DataLoader(Augmented(), batch_size=24)
    backbone = split(Odd(), normal(6, 4))
    features = repulse.backbone.compute_features(backbone, loader, None, augmentations=2, progress=False)
    assert features.train.shape == (48, 8)
    assert torch.equal(features.targets[:24], features.targets[24:])
    assert not torch.isclose(features.train[:24], features.train[24:]).all(dim=1).any()
    other = repulse.backbone.compute_features(backbone, loader, None, augmentations=2, seed=1, progress=False)
    assert not torch.isclose(features.train, other.train).all(dim=1).any()
