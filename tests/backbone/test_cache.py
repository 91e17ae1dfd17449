"""Features that are kept: used when they are right, and never when they are of something else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cached_features import ALL, QUICK, drop_lines, features_of, files, same
from children import BATCHES, ROWS, SOURCE, WIDTH, batches, computed, counting, network
from repulse import CacheError, CacheWarning, RepulseError, retrofit
from repulse.backbone import split
from repulse.backbone.features import compute_features
from repulse.repulsion import Noise, Source, UniformBox

# What is kept is used.


def test_a_second_run_computes_nothing_but_the_first_batch(folder, right):
    first, passes = computed(cache=folder)
    assert passes == ALL
    before = files(folder)
    second, passes = computed(cache=folder)
    assert passes == 1
    assert same(first, right)
    assert same(second, right)
    assert files(folder) == before


@pytest.mark.parametrize(
    "repulsion",
    [SOURCE, [torch.ones(30, 4), torch.zeros(30, 4)], torch.ones(20, WIDTH), None],
    ids=["source", "loader", "features", "nowhere"],
)
def test_features_with_and_without_a_cache_are_equal(folder, repulsion):
    model = network()
    settings = {"samples": 45, "seed": 3}
    without = features_of(model, batches(), repulsion, **settings)
    for _ in range(2):
        assert same(features_of(model, batches(), repulsion, cache=folder, **settings), without)


def test_features_of_a_data_set_that_ends_in_a_smaller_batch(folder):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    data = list(zip(x.split(16), (torch.arange(50) % 3).split(16), strict=True))
    without = features_of(network(), data, SOURCE)
    assert without.train.shape == (50, WIDTH)
    for _ in range(2):
        assert same(features_of(network(), data, SOURCE, cache=folder), without)


def test_another_source_of_repulsion_leaves_the_training_features_alone(copy):
    before = files(copy)
    model, data = network(), batches()
    backbone, passes = split(model, data[0][0]), counting(model)
    with pytest.warns(CacheWarning, match=r"cache/repulsion are recomputed: the data, or how it is drawn"):
        features = compute_features(backbone, data, Noise(), samples=ROWS * BATCHES, cache=copy, progress=False)
    assert len(passes) == 1 + BATCHES
    assert same(features, features_of(model, data, Noise()))
    after = files(copy)
    assert {name for name in after if after[name] != before[name]} == {
        "repulsion.features",
        "repulsion.journal",
        "repulsion.json",
    }


def test_another_repulsion_loader_leaves_the_training_features_alone(folder):
    model, data = network(), batches()
    backbone, passes = split(model, data[0][0]), counting(model)
    compute_features(backbone, data, [torch.ones(10, 4)] * 3, cache=folder, progress=False)
    before = files(folder)
    passes.clear()
    other = [torch.zeros(10, 4)] * 3
    with pytest.warns(CacheWarning, match=r"cache/repulsion are recomputed"):
        features = compute_features(backbone, data, other, cache=folder, progress=False)
    assert passes.count(ROWS) == 1  # of the training data, the first batch
    assert same(features, features_of(model, data, other))
    assert all(files(folder)[name] == before[name] for name in before if name.startswith("train"))


def test_other_settings_of_one_source_are_another_source(copy):
    with pytest.warns(CacheWarning, match="cache/repulsion are recomputed"):
        features = features_of(network(), batches(), UniformBox(-3, 4), cache=copy)
    assert same(features, features_of(network(), batches(), UniformBox(-3, 4)))


class Applied(Source):
    """A source of the user's own."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def sample(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        return self.what(batch) if callable(self.what) else batch + float(self.what[1000])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda batch: batch + 1, lambda batch: batch * 9),
        (np.zeros(2000), np.arange(2000) * (np.arange(2000) == 1000)),
        (torch.zeros(2000), torch.arange(2000) * (torch.arange(2000) == 1000)),
    ],
    ids=["functions", "arrays", "tensors"],
)
def test_what_a_source_holds_is_a_setting_of_it(folder, first, second):
    features_of(network(), batches(), Applied(first), cache=folder)
    features_of(network(), batches(), Applied(first), cache=folder)
    with pytest.warns(CacheWarning, match="cache/repulsion are recomputed"):
        features = features_of(network(), batches(), Applied(second), cache=folder)
    assert same(features, features_of(network(), batches(), Applied(second)))


def test_retrofit_with_and_without_a_cache_gives_the_same_heads(folder):
    model, data = network(), batches()
    passes = counting(model)
    ensembles, counts = [], []
    for cache in (None, folder, str(folder)):
        passes.clear()
        ensembles.append(retrofit(model, data, repulsion=SOURCE, recipe=QUICK, cache=cache, progress=False))
        counts.append(len(passes))
    assert counts[1] - counts[2] == 2 * BATCHES
    for ensemble in ensembles[1:]:
        assert ensemble.repulsion == ensembles[0].repulsion
        assert ensemble.history == ensembles[0].history
        assert all(
            torch.equal(p, q) for p, q in zip(ensemble.heads.parameters(), ensembles[0].heads.parameters(), strict=True)
        )


def test_what_is_done_to_the_features_is_not_done_to_the_cache(copy, right):
    features, _ = computed(cache=copy)
    features.train.zero_()
    features.targets.zero_()
    assert same(computed(cache=copy)[0], right)


# Features of something else.


def changed_weights() -> tuple[nn.Module, Any, dict[str, Any]]:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    return model, batches(), {}


def changed_data() -> tuple[nn.Module, Any, dict[str, Any]]:
    data = batches()
    data[0][0][0, 0] += 1
    return network(), data, {}


def changed_targets() -> tuple[nn.Module, Any, dict[str, Any]]:
    data = batches()
    data[0][1][0] += 1
    return network(), data, {}


def changed_type_of_targets() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), [(x, y.float()) for x, y in batches()], {}


def fewer_batches() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches()[:-1], {}


def another_seed() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches(), {"seed": 1}


def more_augmentations() -> tuple[nn.Module, Any, dict[str, Any]]:
    return network(), batches(), {"augmentations": 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_weights, "the weights of the network have changed"),
        (changed_data, "the data, or how it is drawn, has changed"),
        (changed_targets, "the data, or how it is drawn, has changed"),
        (changed_type_of_targets, "has changed and the features have another type or shape"),
        (fewer_batches, "the data, or how it is drawn, has changed"),
        (another_seed, "the data, or how it is drawn, has changed"),
        (more_augmentations, "the data, or how it is drawn, has changed"),
    ],
)
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "incomplete"])
def test_features_of_something_else_are_computed_anew_and_it_says_why(copy, change, why, complete):
    if not complete:
        drop_lines(copy / "train.journal", 3)
        drop_lines(copy / "repulsion.journal", 3)
    model, data, settings = change()
    with pytest.warns(CacheWarning) as said:
        features = features_of(model, data, SOURCE, cache=copy, **settings)
    assert [str(warning.message) for warning in said] == [
        f"The features kept in {copy / 'train'} are recomputed: {_whole(why)}.",
        f"The features kept in {copy / 'repulsion'} are recomputed: {_whole(why.split(' and the features')[0])}.",
    ]
    assert same(features, features_of(model, data, SOURCE, **settings))
    assert same(features_of(model, data, SOURCE, cache=copy, **settings), features)  # silently


def _whole(why: str) -> str:
    return why if why.startswith("the ") else f"the data, or how it is drawn, {why}"


def test_features_of_other_layers_are_computed_anew_and_it_says_why(copy):
    model, data = network(), batches()
    tapped = split(model, data[0][0], layers=["0"])
    with pytest.warns(CacheWarning, match="train are recomputed: other layers of the network are read and the feat"):
        features = compute_features(tapped, data, None, cache=copy, progress=False)
    assert features.train.shape[1] == WIDTH + 12
    assert same(features, compute_features(tapped, data, None, progress=False))


def test_other_layers_of_the_same_width_are_other_layers(folder):
    model, data = network(), batches()
    before, after = (split(model, data[0][0], layers=[name]) for name in ("0", "1"))
    compute_features(before, data, None, cache=folder, progress=False)
    with pytest.warns(CacheWarning, match=r"recomputed: other layers of the network are read\.$"):
        features = compute_features(after, data, None, cache=folder, progress=False)
    assert same(features, compute_features(after, data, None, progress=False))


def test_the_same_weights_in_another_network_are_not_believed(copy):
    """Names and shapes are the same too; it is refused as another network, or recomputed."""
    model = network()
    model[1] = nn.Tanh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        try:
            features = features_of(model, batches(), SOURCE, cache=copy)
        except CacheError:
            return
    assert same(features, features_of(model, batches(), SOURCE))


def test_features_of_another_network_are_refused_and_left_alone(copy):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir() if path.name != "lock"}
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(CacheError) as refused:
        features_of(other, batches(), SOURCE, cache=copy)
    assert str(refused.value) == (
        "Expected `cache` to be features of this Sequential, but got a folder with features of another one, "
        "Sequential; choose another folder."
    )
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir() if path.name != "lock"}
    assert after == before
    assert computed(cache=copy)[1] == 1


def test_an_incomplete_build_goes_on_only_to_the_first_batch_that_changed(copy):
    drop_lines(copy / "train.journal", 2)
    drop_lines(copy / "repulsion.journal", 2)
    data = batches()
    data[3][0][0, 0] += 1
    model = network()
    backbone, passes = split(model, data[0][0]), counting(model)
    with pytest.warns(CacheWarning) as said:
        features = compute_features(backbone, data, SOURCE, samples=ROWS * BATCHES, cache=copy, progress=False)
    assert [str(warning.message).split(": ")[1] for warning in said] == ["its batch 3 is of other data."] * 2
    assert len(passes) == 1 + 2 * (BATCHES - 3)
    assert same(features, features_of(model, data, SOURCE))
    assert same(features_of(model, data, SOURCE, cache=copy), features)


def test_data_of_unknown_length_that_became_shorter_leaves_no_rows_behind(folder):
    class Stream:
        def __init__(self, data: list[Any]) -> None:
            self.data = data

        def __iter__(self) -> Iterator[Any]:
            return iter(self.data)

    features_of(network(), Stream(batches()), cache=folder)
    drop_lines(folder / "train.journal", 1)
    short = Stream(batches()[:5])
    assert same(features_of(network(), short, cache=folder), features_of(network(), short))
    assert same(features_of(network(), short, cache=folder), features_of(network(), short))


# Batches of every form.


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head((self.body(x) * scale).relu())


X, SCALE, Y = (
    torch.randn(40, 4, generator=torch.Generator().manual_seed(2)),
    torch.rand(40, 1) + 1,
    torch.arange(40) % 3,
)


@pytest.mark.parametrize(
    "form",
    [
        lambda i: {"x": X[i], "scale": SCALE[i], "labels": Y[i]},
        lambda i: ((X[i], SCALE[i]), Y[i]),
        lambda i: [[X[i], SCALE[i]], Y[i]],
        lambda i: ({"x": X[i], "scale": SCALE[i]}, Y[i]),
    ],
    ids=["mapping", "tuple", "list", "mapping in a tuple"],
)
def test_batches_of_every_form_are_kept(folder, form):
    torch.manual_seed(0)
    model = Named()
    data = [form(slice(start, start + 10)) for start in range(0, 40, 10)]
    backbone = split(model, {"x": X, "scale": SCALE})
    passes = counting(model)
    with torch.no_grad():
        wanted = (model.body(X) * SCALE).relu()
    for count in (5, 1):
        passes.clear()
        features = compute_features(backbone, data, None, cache=folder, progress=False)
        assert len(passes) == count
        torch.testing.assert_close(features.train, wanted)
        assert torch.equal(features.targets, Y)
    second = data[0][0] if not isinstance(data[0], dict) else data[0]
    (second["scale"] if isinstance(second, dict) else second[1])[0] += 1  # the second tensor of the inputs counts too
    with pytest.warns(CacheWarning, match="has changed"):
        compute_features(backbone, data, None, cache=folder, progress=False)
    SCALE[0] -= 1


@pytest.mark.parametrize("shape", [(40,), (40, 1)], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.bool], ids=str)
def test_targets_of_every_type_are_kept(folder, kind, shape):
    targets = (Y * 0.7).to(kind).view(shape)
    data = list(zip(X.split(10), targets.split(10), strict=True))
    for _ in range(2):
        features = features_of(network(), data, cache=folder)
        assert features.targets.dtype == kind
        assert torch.equal(features.targets, targets)


def test_targets_that_change_their_type_on_the_way_are_not_rounded(folder):
    """Ints and then floats: refused, or kept as they are."""
    data = [(X[:20], Y[:20]), (X[20:], Y[20:] + 0.5)]
    try:
        features = features_of(network(), data, cache=folder)
    except RepulseError:
        return
    assert torch.equal(features.targets, torch.cat([Y[:20].float(), Y[20:] + 0.5]))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_features_of_every_type_are_kept(folder, kind):
    model = network().to(kind)
    data = [(x.to(kind), y) for x, y in batches()]
    without = features_of(model, data, SOURCE)
    assert without.train.dtype == kind
    for limit in (10**9, 100):
        assert same(features_of(model, data, SOURCE, cache=folder, memory_limit=limit), without)
        assert same(features_of(model, data, SOURCE, memory_limit=limit), without)
