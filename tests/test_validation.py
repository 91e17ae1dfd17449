"""Validation data and given repulsion data of a retrofit: checked first, kept, mixed with synthetic samples."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from repulse import DataError, Recipe
from repulse.backbone.features import MAX_DRAWS
from repulse.particles.centred import CentredHeads

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")

QUICK = Recipe(heads=3, epochs=1, repulsion_samples=40)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = normal(40, 4), torch.arange(40) % 3
DATA = list(zip(X.split(10), Y.split(10), strict=True))
VALIDATION = [(normal(30, 4, seed=1), torch.arange(30) % 3)]


@pytest.fixture(autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def network(outputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def retrofit(model=None, data=DATA, recipe=QUICK, **more):
    return repulse.retrofit(model or network(), data, recipe=recipe, progress=False, **more)


def rows_seen(model):
    """A list that fills with the number of rows of every pass."""
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


def test_features_of_validation_data_are_kept_in_their_own_folder(tmp_path):
    seen = rows_seen(model := network())
    first = retrofit(model, validation=VALIDATION, cache=tmp_path)
    assert (tmp_path / "validation" / "train.journal").exists()
    assert not (tmp_path / "validation" / "repulsion.journal").exists()
    assert seen.count(30) == 2  # the first batch, to see what there is, and then each
    again = retrofit(model, validation=VALIDATION, cache=tmp_path)
    assert seen.count(30) == 3
    assert torch.equal(first(X), again(X))
    assert torch.equal(first(X), retrofit(validation=VALIDATION)(X))


def test_validation_data_decides_the_centre():
    """Labels at random: a network that is sure of anything is wrong, and the ensemble is told so."""
    model = network()
    with torch.no_grad():
        model[2].weight *= 20
    ensemble = retrofit(model, validation=VALIDATION)
    assert isinstance(ensemble.heads, CentredHeads)
    centre = ensemble.heads.centre
    assert centre.alpha < 1 or centre.temperature > 2
    found = ensemble.summary()
    assert (found.data, found.samples, found.assumed) == ("validation", 30, [])
    assert found.ensemble["nll"] < found.network["nll"]


BAD = {
    "an iterator": (iter(VALIDATION), ["`validation`", "read twice", "an iterator"]),
    "a data set": (TensorDataset(X, Y), ["`validation`", "DataLoader", "TensorDataset"]),
    "a single batch": ((X, Y), ["batch 0 of `validation`", "(inputs, targets)", "(40, 4)"]),
    "a tensor": (X, ["batch 0 of `validation`", "(inputs, targets)"]),
    "a number": (3, ["`validation`", "batches of (inputs, targets)", "int"]),
    "no batches": ([], ["`validation`", "at least one batch", "none"]),
    "an empty loader": (DataLoader(TensorDataset(X[:0], Y[:0])), ["`validation`", "at least one batch"]),
    "unlabelled": ([X], ["batch 0 of `validation`", "(inputs, targets)"]),
    "class too large": ([(X, Y + 1)], ["the targets of `validation`", "between 0 and 2", "from 1 to 3"]),
    "one-hot": ([(X, nn.functional.one_hot(Y))], ["the targets of `validation`", "argmax"]),
    "floats": ([(X, Y.float())], ["the targets of `validation`", "integer class indices", "float32"]),
}


@pytest.mark.parametrize("case", BAD)
def test_validation_data_of_the_wrong_kind_is_refused_before_features_are_computed(case, tmp_path):
    validation, words = BAD[case]
    with pytest.raises(DataError) as caught:
        retrofit(validation=validation, cache=tmp_path / "cache")
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).startswith("Expected ")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ((X[:, :3], Y), ["batch 1 of `validation`", "can take"]),
        ((X / 0, Y), ["batch 1 of `validation`", "finite"]),
        ((X, Y[:9]), ["batch 1 of `validation`", "40"]),
        (X, ["batch 1 of `validation`", "(inputs, targets)"]),
    ],
    ids=["narrow", "infinite", "too few targets", "unlabelled"],
)
def test_a_later_batch_that_does_not_fit_is_named(later, words):
    with pytest.raises(DataError) as caught:
        retrofit(validation=[(X, Y), later])
    for word in words:
        assert word in str(caught.value)


def test_targets_of_a_single_logit_are_zero_or_one():
    with pytest.raises(DataError, match=r"the targets of `validation` to be 0 or 1"):
        retrofit(network(1), [(X, Y % 2)], validation=[(X, Y)])


# Repulsion data that is given is mixed with what would have been made.


def repelled_on(**settings):
    return int(retrofit(**settings).repulsion.split()[1].replace(",", ""))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_given_repulsion_data_is_mixed_with_synthetic_samples(share, tmp_path):
    """Of 40 samples, a share is made; of the given ones the first are taken, in batches, and cut off."""
    recipe = QUICK.replace(synthetic_share=share)
    ensemble = retrofit(repulsion=[10 + X, 20 + X], recipe=recipe, cache=tmp_path)
    assert ensemble.repulsion.startswith("on 40 samples of given data")
    assert ("given data and " in ensemble.repulsion) == (share > 0)
    assert (tmp_path / "repulsion.journal").exists()
    assert (tmp_path / "synthetic.journal").exists() == (share > 0)
    again = retrofit(repulsion=[10 + X, 20 + X], recipe=recipe, cache=tmp_path)
    assert torch.equal(ensemble(X), again(X))


def test_few_given_samples_are_all_taken_and_not_outnumbered():
    assert repelled_on(repulsion=[10 + X[:5]], recipe=QUICK.replace(synthetic_share=0.5)) == 5 + 5


def test_sources_and_features_are_not_mixed():
    source = repulse.repulsion.UniformBox(-3, 3)
    assert retrofit(repulsion=source).repulsion == f"on 40 samples of {source!r}"
    assert retrofit(repulsion=normal(7, 12)).repulsion == "on 7 samples of ready features"


def test_a_source_draws_no_more_than_eight_samples_from_one():
    source = repulse.repulsion.UniformBox(-3, 3)
    recipe = QUICK.replace(repulsion_samples=10_000)
    assert MAX_DRAWS == 8
    assert repelled_on(repulsion=source, recipe=recipe) == 8 * 40
    assert repelled_on(repulsion=source, recipe=QUICK.replace(repulsion_samples=100)) == 100
