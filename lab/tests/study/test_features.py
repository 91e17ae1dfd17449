"""Features of a problem by a network: computed once, kept under all they depend on, seen in two ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from repulse.repulsion import PatchShuffle
from repulse_lab.study.features import BATCH, NetworkFeatures
from tiny_problem import light_and_static, trained_network


@pytest.fixture(scope="module")
def images():
    return light_and_static()


@pytest.fixture(scope="module")
def features(images):
    return NetworkFeatures(images, trained_network(images), progress=False)


def test_features_are_computed_once_then_read_and_modes_stay(images, tmp_path):
    counted, networks = [], [trained_network(images).train(), trained_network(images)]
    networks[0][1].eval()
    modes = [module.training for module in networks[0].modules()]
    for each in networks:
        each[0].register_forward_hook(lambda *_: counted.append(1))
    both = [NetworkFeatures(images, each, tmp_path, progress=False) for each in networks]
    counted.clear()  # the split looked at a few images
    views = [both[0].view("last"), both[0].view("auto")]
    sets = [images.train, images.test, *images.outside.values()]
    assert len(counted) == sum(-(-len(x) // BATCH) for x in sets)  # nobody has asked to repel yet
    assert [list(view.repulsion) for view in views] == [list(images.repulsion)] * 2
    assert all(len(view.repulsion[name]) for view in views for name in view.repulsion)
    first = views[0]
    sets += [x if isinstance(x, torch.Tensor) else images.train for x in images.repulsion.values()]
    batches = sum(-(-len(x) // BATCH) for x in sets)
    assert (len(counted), len(list(tmp_path.iterdir()))) == (batches, len(sets))
    assert [module.training for module in networks[0].modules()] == modes
    again = both[1].view("last")
    assert len(counted) == batches
    assert torch.equal(again.train, first.train)
    assert torch.equal(again.repulsion["patches"], first.repulsion["patches"])
    assert torch.equal(NetworkFeatures(images, networks[0], progress=False).view("last").test, first.test)


def test_an_image_that_comes_several_times_goes_through_the_network_once(images, features):
    seen, some = [], images.train[:50]
    hook = features.network[0].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    found = features.of(torch.cat([some[:30], some[10:], some[40:].flip(0)]))
    hook.remove()
    one = features.of(some)
    assert seen == [50]
    torch.testing.assert_close(found, torch.cat([one[:30], one[10:], one[40:].flip(0)]))


def test_all_that_features_depend_on_gives_another_file(images, features, tmp_path):
    kept, some = replace(features, cache=tmp_path), images.train[:20]
    others = replace(kept, images=replace(images, mean=(0.3,))), replace(kept, network=trained_network(images, 1))
    asked = [(kept, some), (kept, some.clone()), (kept, images.train[1:21]), (kept, some, PatchShuffle(4))]
    asked += [(kept, some, PatchShuffle(4)), (kept, some, PatchShuffle(16)), *((other, some) for other in others)]
    counts = [each.of(*what) is None or len(list(tmp_path.iterdir())) for each, *what in asked]
    assert counts == [1, 1, 2, 3, 3, 4, 5, 6]


def test_one_view_has_the_logits_of_the_network_the_other_scaled_taps_and_a_layer(images, features):
    view = features.view("last")
    sets = [(view.train, images.train), (view.test, images.test), (view.outside["flat"], images.outside["flat"])]
    for found, pixels in [*sets, (view.repulsion["more static"], images.repulsion["more static"])]:
        torch.testing.assert_close(view.layer(found), features.network(images.prepared(pixels)).detach())
    assert view.taps == 0
    last, view = view, features.view("auto")
    assert last.network is last.layer
    own = view.network(view.test[:, : last.test.shape[1]])  # the network itself, in the units of the scaled features
    torch.testing.assert_close(own, last.layer(last.test), atol=1e-4, rtol=1e-4)
    width = last.train.shape[1]
    assert view.taps == view.train.shape[1] - width == view.layer.weight.shape[1] - width > 0
    torch.testing.assert_close(view.train.mean(dim=0), torch.zeros(width + view.taps), atol=1e-4, rtol=0)
    torch.testing.assert_close(view.train[:, width:].std(dim=0, correction=0), torch.full((view.taps,), 0.2))
    right = [(v.layer(v.train).argmax(dim=1) == images.targets).float().mean() for v in (view, last)]
    assert right[0] > right[1] - 0.1 > 0.5
