"""Guarantees on real data, against exact binomial bounds: CIFAR-10, CLINC150 and the UCI power plant.

Guarantees hold for any network and any heads, so these are fitted in seconds. What they never saw is the population;
calibration samples are drawn from it with replacement, and each gate is judged on all of it, so that its rates are
exact. Draws are independent, and each breaks a bound with a known probability: how many do is binomial. Bounds are
passed with probability 1e-6 if the promise holds; seeds are fixed. `benchmarks/decisions.py` measures more of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.feature_extraction.text import HashingVectorizer
from torch import nn

from repulse import Promise, Recipe, retrofit
from repulse.decide.conformal import allowed_above
from repulse_lab import data
from repulse_lab.data.images import normalise
from repulse_lab.decisions import gates, watches
from repulse_lab.decisions.pools import TITLES, Rows, drawn, predicted_rows
from repulse_lab.defaults.images import WEIGHTS, labelled
from repulse_lab.defaults.problem import Samples
from repulse_lab.defaults.tables import standardised
from repulse_lab.defaults.training import Schedule, trained_network
from repulse_lab.networks.mlp import MLP
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::repulse.FitWarning")]

SURE, DRAWS, POOL = 1e-6, 200, 2000
PROMISES = {
    "cifar10": Promise(risk=0.05),
    "clinc150": Promise(risk=0.1),
    "power-plant": Promise(risk=0.05, tolerance=0.5, sets="normalised"),
}


def cifar10(root: Path, folder: Path) -> tuple[nn.Module, Samples, Samples]:
    """Take the published ResNet-20; test images for the heads, and other test images as the population."""
    samples = Samples(*labelled("cifar10", "test", root), partial(normalise, mean=MEAN, std=STD))
    train, pool, _ = drawn(samples, 0, 500, POOL)
    return load_published(root / WEIGHTS[20], 20).eval(), train, pool


def clinc150(root: Path, folder: Path) -> tuple[nn.Module, Samples, Samples]:
    """Train a small network on the words of queries."""
    words = HashingVectorizer(n_features=512, ngram_range=(1, 2), alternate_sign=False)

    def samples(part: str) -> Samples:
        contents = data.load("clinc150", part, root)
        counts: Any = words.transform(contents.inputs)
        return Samples(torch.from_numpy(counts.toarray()).float(), torch.as_tensor(contents.targets))

    train, pool = samples("train").at_most(6000), samples("val").at_most(POOL)
    build = partial(MLP, 512, 150, 128, 1)
    return trained_network(build, train, Schedule(300, lr=1e-2), 0, folder / "clinc150"), train, pool


def power_plant(root: Path, folder: Path) -> tuple[nn.Module, Samples, Samples]:
    """Train a small network on two thousand rows."""
    contents = data.load("uci-power-plant", "train-0", root)
    cut = drawn(Samples(torch.as_tensor(contents.inputs), torch.as_tensor(contents.targets)), 0, 2000, POOL)
    x = standardised(*(torch.as_tensor(part.inputs) for part in cut))
    y = standardised(*(torch.as_tensor(part.targets) for part in cut))
    train, pool, _ = (Samples(a, b) for a, b in zip(x, y, strict=True))
    return trained_network(partial(MLP, 4, 1, 32, 1), train, Schedule(300, lr=1e-2), 0, folder / "plant"), train, pool


@pytest.fixture(scope="module")
def populations(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """What gates keep of the predictions of each population."""
    folder, found = tmp_path_factory.mktemp("networks"), {}
    for name, make in (("cifar10", cifar10), ("clinc150", clinc150), ("power-plant", power_plant)):
        network, train, pool = make(data_root, folder)
        task = "regression" if name == "power-plant" else "classification"
        recipe = Recipe(task=task, heads=5, epochs=3, layers="last", repulsion_samples=500)
        found[name] = predicted_rows(retrofit(network, train.at_most(500), recipe=recipe, progress=False), pool)
    return found


def at_most(broken: torch.Tensor | np.ndarray, rate: float) -> bool:
    """Tell whether as many broken draws are plausible if each breaks with a probability of at most this."""
    return bool(stats.binom.sf(int(broken.sum()) - 1, len(broken), rate) >= SURE)


def bounds(size: int, share: float) -> Iterator[tuple[float, float]]:
    """Iterate over rates that a threshold exceeds with a known probability: quantiles of its Beta distribution."""
    above = allowed_above(size, share)
    for probability in (0.5, 0.1, 0.01):
        yield (float(stats.beta.isf(probability, above, size + 1 - above)) if above else 0.0), probability


@pytest.mark.parametrize("size", gates.SIZES)
@pytest.mark.parametrize("name", TITLES)
def test_gates_hold_what_they_promise(name, size, populations):
    promise = PROMISES[name]
    found = gates.over_draws(populations[name], promise, size, DRAWS)
    for bound, probability in bounds(size, promise.false_alarms):
        assert at_most(found.false_alarms > bound, probability)
    for missed in found.missed.values():
        for bound, probability in bounds(size, promise.alpha):
            assert at_most(missed > bound, probability)
    assert promise.risk is not None
    assert at_most(found.error > promise.risk, promise.delta)
    if size == 5000:  # and it is of use
        assert bool(found.held.all())
        assert float(found.coverage.mean()) > 0.3
        assert float(found.false_alarms.mean()) > 0.9 * promise.false_alarms


@pytest.mark.parametrize("name", TITLES)
def test_watches_raise_no_more_false_alarms_than_promised(name, populations):
    streams = watches.drawn(populations[name], populations[name], 0, 100, 1000, 200, 0)
    alarms = watches.alarms(watches.p_values(streams), "switching", 0.05)
    assert at_most(np.isfinite(alarms), 0.05)
