"""Heads around the network are saved and loaded, and nonsense about their centre is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import repulse
from children import batches, network
from repulse.particles.centred import CentredHeads
from saved_ensembles import QUICK, about, check_same, fitted, heads_file, refused, write

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(5))
FAR = 100 * X


@pytest.mark.parametrize("hidden", [(), (6, 5)])
def test_heads_around_the_network_are_saved_with_it(tmp_path, hidden):
    """With validation labels, so that neither share nor temperature is the one that nobody chose."""
    ensemble = fitted(network(), recipe=QUICK.replace(hidden=hidden), validation=batches())
    heads = ensemble.heads
    assert isinstance(heads, CentredHeads)
    assert heads.centre.temperature != 1
    loaded = repulse.load(ensemble.save(tmp_path / "saved"), network())
    assert isinstance(loaded.heads, CentredHeads)
    assert loaded.heads.centre == heads.centre
    assert loaded.heads.structure == heads.structure
    for x in (X, FAR):
        check_same(ensemble, loaded, x)
    assert loaded.summary() == ensemble.summary()
    again = repulse.load(loaded.save(tmp_path / "again"), network())
    assert heads_file(tmp_path / "again").read_bytes() == heads_file(tmp_path / "saved").read_bytes()
    check_same(loaded, again, FAR)


def test_a_regression_around_the_network_is_saved_with_its_noise_and_tail(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    data = [(x, x[:, 0]) for x, _ in batches()]
    ensemble = fitted(model, data=data, validation=data, recipe=QUICK.replace(task="regression"))
    assert isinstance(ensemble.heads, CentredHeads)
    loaded = repulse.load(ensemble.save(tmp_path / "saved"), model)
    assert loaded.heads.task == ensemble.heads.task
    check_same(ensemble, loaded, FAR)
    assert torch.equal(loaded.predict(X).quantile(0.9), ensemble.predict(X).quantile(0.9))


def test_plain_heads_have_no_centre(tmp_path):
    ensemble = fitted(network(), recipe=QUICK.replace(centre="heads"))
    folder = ensemble.save(tmp_path / "saved")
    assert about(folder)["centred"] is None
    loaded = repulse.load(folder, network())
    assert type(loaded.heads) is type(ensemble.heads)
    check_same(ensemble, loaded, X)


CENTRE = {"alpha": 1.0, "temperature": 1.0, "gain": 1.0, "reach": 1.0, "cost": None}


@pytest.mark.parametrize(
    "change",
    [
        {"known": 7},
        {"known": -1},
        {"known": "8"},
        {"axes": 3},
        {"ends": 2},
        {"ends": 0},
        {"bands": 0},
        {"bands": 99},
        {"more": 1},
        {"centre": {"alpha": "1"}},
        {"centre": {**CENTRE, "temperature": 0.0}},
        {"centre": {**CENTRE, "temperature": -2.0}},
        {"centre": {**CENTRE, "gain": None}},
        {"centre": {**CENTRE, "reach": 0.0}},
        {"centre": {"share": 1.0}},
        {"centre": None},
        {"centre": "network"},
    ],
    ids=str,
)
def test_a_centre_that_makes_no_sense_is_refused(folder, change):
    content = about(folder)
    write(folder, {**content, "centred": {**content["centred"], **change}}, sealed=True)
    words = refused(folder)
    assert "entries that make no sense" in words or "numbers of float32" in words  # more or fewer than the file has


@pytest.mark.parametrize("entry", [None, {}, [], "network", ["ab"], 3, [1, 2]], ids=str)
def test_what_is_no_centre_is_refused(folder, entry):
    write(folder, {**about(folder), "centred": entry}, sealed=True)
    words = refused(folder)
    assert "entries that make no sense" in words or "numbers of float32" in words  # more or fewer than the file has


def test_a_folder_that_does_not_say_is_refused(folder):
    content = about(folder)
    del content["centred"]
    write(folder, content, sealed=True)
    refused(folder)


def test_the_centre_of_the_fixture_is_the_one_that_is_changed_above(folder):
    """Written as it was, it is taken: what is refused above is refused for the change."""
    content = about(folder)
    write(folder, {**content, "centred": {**content["centred"], "centre": CENTRE}}, sealed=True)
    heads = repulse.load(folder, network()).heads
    assert isinstance(heads, CentredHeads)
    assert dataclasses.asdict(heads.centre) == CENTRE
