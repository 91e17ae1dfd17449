"""Updates start from fitted heads and use kept features; forgetting is a fit without what is gone."""

import hashlib
import warnings

import pytest
import torch
from safetensors.torch import load_file, save

import repulse
from models import normal, trained_perceptron
from repulse.errors import CheckpointError, DataError, RepulsionError
from repulse.kept import KeptFeatures
from repulse.particles.start import warm_epochs, warm_rows
from repulse.particles.view import View

QUICK = repulse.Recipe(epochs=3, heads=4)

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")  # few steps separate little


def labelled(count, seed, classes=3):
    x = normal(count, 4, seed=seed)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    if classes == 4:
        x[::3] += 6
        y[::3] = 3
    return [(x[i : i + 20], y[i : i + 20]) for i in range(0, count, 20)]


@pytest.fixture(scope="module")
def ensemble():
    data = labelled(80, 0)
    network = trained_perceptron(*map(torch.cat, zip(*data, strict=True)), outputs=3)
    return repulse.retrofit(network, data, validation=labelled(60, 1), recipe=QUICK, progress=False)


@pytest.mark.parametrize("whiten", [True, False])
def test_unfolding_undoes_folding(whiten):
    """Whatever heads compute on the view, unfolded weights compute on it too."""
    features = normal(40, 5).double()
    view = View.of(features, 2, repulse.Recipe(whiten=whiten, distances=whiten), 0.3)
    weight, bias = normal(2, 3, view.columns, seed=1).double(), normal(2, 3, seed=2).double()
    again = view.unfold(*view.fold(weight, bias))
    seen = view(normal(7, 5, seed=3).double()).double()
    expected = torch.einsum("noc,bc->nbo", weight, seen) + bias.unsqueeze(1)
    torch.testing.assert_close(torch.einsum("noc,bc->nbo", again[0], seen) + again[1].unsqueeze(1), expected)
    assert again[0].norm() <= weight.norm() * (1 + 1e-9)


def test_new_data_joins_what_was_kept_and_the_old_ensemble_stays(ensemble):
    before = ensemble.predict(normal(5, 4, seed=9)).probs.clone()
    made = ensemble.update(labelled(40, 2), progress=False)
    assert len(made.kept.train) == 120
    torch.testing.assert_close(made.kept.train[:80], ensemble.kept.train)
    assert torch.equal(ensemble.predict(normal(5, 4, seed=9)).probs, before)
    assert made.recipe == ensemble.recipe
    assert made.summary().data == "validation"


def test_only_new_inputs_go_through_the_network(ensemble):
    seen = []
    handle = ensemble.model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    try:
        ensemble.update(labelled(40, 2), progress=False)
    finally:
        handle.remove()
    assert sum(seen) == 40


def test_a_warm_fit_without_steps_to_take_begins_where_the_old_heads_were(ensemble):
    recipe = ensemble.recipe.replace(lr=1e-12, tap_scale=ensemble.recipe.tap_scale)
    heads = ensemble.kept.fit(ensemble.backbone, recipe, warm=ensemble.heads, progress=False)
    x = ensemble.backbone(normal(6, 4, seed=4)).detach()
    here, before = heads.raw_outputs(_columns(heads, x)), ensemble.heads.raw_outputs(_columns(heads, x))
    torch.testing.assert_close(here, before, rtol=1e-3, atol=1e-3)


def _columns(heads, x):
    return torch.cat([x, heads.distances(x)], dim=1)


def test_a_warm_fit_is_a_tenth_as_long():
    assert warm_epochs(repulse.Recipe(epochs=30), 1000) == 3
    assert warm_epochs(repulse.Recipe(epochs=2), 1000) == 1
    assert warm_epochs(repulse.Recipe(), 50_000) == 1  # of 6


def test_an_update_of_much_data_sees_all_new_rows_and_some_old_ones():
    assert warm_rows(repulse.Recipe(), 50_000, 672) == 30_000  # a tenth of six passes
    assert warm_rows(repulse.Recipe(), 50_000, 2000) == 40_000  # enough for the axes
    assert warm_rows(repulse.Recipe(), 500, 30) == 500
    assert warm_rows(repulse.Recipe(task="regression"), 50_000, 30) == 50_000
    kept = KeptFeatures(normal(50, 3), torch.arange(50))
    some = kept.sampled(20, newest=5, seed=0)
    assert len(some.train) == len(set(some.targets.tolist())) == 20
    assert some.targets[-5:].tolist() == [45, 46, 47, 48, 49]
    assert torch.equal(some.train, kept.train[some.targets])
    assert kept.sampled(50, newest=5, seed=0) is kept


def test_an_update_keeps_the_axes_unless_data_lies_far_outside(ensemble):
    near, far = labelled(40, 2), [(1e6 * x, y) for x, y in labelled(40, 2)]
    same, other = (ensemble.update(data, progress=False).heads for data in (near, far))
    assert torch.equal(same.distance_axes, ensemble.heads.distance_axes)
    assert not torch.equal(other.distance_scale, ensemble.heads.distance_scale)


def test_new_classes_get_outputs_and_names(ensemble):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heads that were fitted briefly are worse than the network
        made = ensemble.update(labelled(60, 3, classes=4), class_names=["a", "b", "c", "d"], progress=False)
    p = made.predict(normal(5, 4) + 6)
    assert p.probs.shape == (5, 4)
    assert made.class_names == ("a", "b", "c", "d")
    with pytest.raises(DataError, match="without gaps"):
        ensemble.update([(normal(4, 4), torch.tensor([0, 1, 2, 5]))], progress=False)


def test_new_classes_are_learnt():
    data, more = labelled(80, 0), labelled(60, 3, classes=4)
    network = trained_perceptron(*map(torch.cat, zip(*data, strict=True)), outputs=3)
    made = repulse.retrofit(network, data, recipe=QUICK.replace(epochs=60, lr=0.03), progress=False).update(
        more, progress=False
    )
    x, y = map(torch.cat, zip(*labelled(60, 4, classes=4), strict=True))
    labels = made.predict(x).labels
    assert (labels[y == 3] == 3).float().mean() > 0.9
    assert (labels[y < 3] == y[y < 3]).float().mean() > 0.7  # of three


def test_inputs_marked_as_foreign_are_repelled_on(ensemble):
    marked = normal(6, 4) + torch.tensor([0.0, 0.0, 9.0, 0.0])
    made = ensemble.update(foreign=marked, progress=False)
    old, new = len(ensemble.kept.repulsion), len(made.kept.repulsion)
    assert (new - old) / new == pytest.approx(0.2, abs=0.02)
    features = ensemble.backbone(marked).detach()
    torch.testing.assert_close(made.kept.repulsion[old : old + 6], features, rtol=1e-4, atol=1e-5)


def test_forgetting_is_the_fit_without_them_bit_for_bit(ensemble):
    grown = ensemble.update(labelled(40, 2), progress=False)
    back = grown.forget(range(80, 120), progress=False)
    x = normal(9, 4, seed=7)
    assert torch.equal(back.predict(x).probs, ensemble.predict(x).probs)
    assert torch.equal(back.predict(x).epistemic, ensemble.predict(x).epistemic)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_measures_its_noise_again(outputs):
    """Also that of a network that knows nothing, and of one that predicts a variance."""
    x, y = normal(120, 4), normal(120, 4)[:, 0] + 0.1 * normal(120, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))
    held_out, recipe = [(x[100:], y[100:])], QUICK.replace(task="regression")
    made = repulse.retrofit(model, [(x[:60], y[:60])], validation=held_out, recipe=recipe, progress=False)
    assert made.recipe.noise is None
    back = made.update([(x[60:100], y[60:100])], progress=False).forget(range(60, 100), progress=False)
    assert back.heads.task == made.heads.task
    assert torch.equal(back.predict(x).mean, made.predict(x).mean)


@pytest.mark.parametrize("indices", [[], [80], [-1], torch.tensor([0.5]), torch.tensor([[1]]), list(range(80))])
def test_indices_that_make_no_sense_are_refused(ensemble, indices):
    with pytest.raises(DataError, match="Expected `indices`"):
        ensemble.forget(indices, progress=False)


def test_kept_features_are_saved_if_asked_and_checked_when_read(ensemble, tmp_path):
    folder = ensemble.save(tmp_path / "heads", features=True)
    loaded = repulse.load(folder, ensemble.model)
    assert torch.equal(loaded.kept.train, ensemble.kept.train)
    loaded.save(folder)  # into the folder that they came from: they stay
    made = loaded.update(labelled(20, 5), progress=False)
    assert len(made.kept.train) == 100
    file = next(folder.glob("features-*"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="changed since"):
        repulse.load(folder, ensemble.model).update(labelled(20, 5), progress=False)
    ensemble.save(folder)
    assert not list(folder.glob("features-*"))
    with pytest.raises(DataError, match="features=True"):
        repulse.load(folder, ensemble.model).forget([0])


def test_nothing_to_learn_is_refused(ensemble):
    with pytest.raises(DataError, match="neither"):
        ensemble.update()


CLASSES = torch.arange(8) % 3
ONE_HOT = torch.nn.functional.one_hot(CLASSES)
REFUSED_TARGETS = {
    "one-hot": (None, ONE_HOT, r"of shape \(samples,\), as those of the fit, but got shape \(8, 3\)"),
    "fractions": (None, CLASSES + 0.5, "class indices, but got torch.float32 with 0.5 among them"),
    "beyond floats": (None, 1e20 * CLASSES, r"class indices, but got torch.float32 with 1e\+20 among them"),
    "truth values": (None, CLASSES > 0, "class indices, but got torch.bool"),
    "complex": (None, CLASSES.to(torch.complex64), "classes or real numbers, but got torch.complex64"),
    "below zero": (None, CLASSES - 1, "class indices, but got -1"),
    "a class for labels": ("multilabel", CLASSES, r"of shape \(samples, 3\), as those of the fit"),
    "two of three labels": ("multilabel", ONE_HOT[:, :2].float(), r"of shape \(samples, 3\).*got shape \(8, 2\)"),
    "half a label": ("multilabel", ONE_HOT / 2, "0, 1 or, where unknown, NaN, but got 0.5"),
    "one number of three": ("regression", normal(8), r"of shape \(samples, 3\).*got shape \(8,\)"),
    "two numbers of three": ("regression", normal(8, 2), r"of shape \(samples, 3\).*got shape \(8, 2\)"),
}


@pytest.fixture(scope="module")
def of_each_task(ensemble):
    x, labels = normal(30, 4), (normal(30, 3) > 0).float()
    made = {None: ensemble}
    for task, targets in (("multilabel", labels), ("regression", normal(30, 3))):
        recipe = repulse.Recipe(epochs=1, heads=2, task=task)
        made[task] = repulse.retrofit(ensemble.model, [(x, targets)], recipe=recipe, progress=False)
    return made


@pytest.mark.parametrize("case", REFUSED_TARGETS)
def test_targets_of_another_form_are_refused(of_each_task, case):
    task, targets, words = REFUSED_TARGETS[case]
    before = len(of_each_task[task].kept.train)
    with pytest.raises(DataError, match=f"^Expected .*targets.* to be {words}"):
        of_each_task[task].update([(normal(8, 4), targets)], progress=False)
    assert len(of_each_task[task].kept.train) == before


def test_class_indices_may_come_as_floats_or_in_a_column(ensemble):
    x, y = normal(8, 4), torch.arange(8) % 3
    expected = ensemble.update([(x, y)], progress=False)
    for targets in (y.float(), y.unsqueeze(1), y.to(torch.uint8)):
        made = ensemble.update([(x, targets)], progress=False)
        assert torch.equal(made.kept.targets, expected.kept.targets)
        assert torch.equal(made.predict(x).probs, expected.predict(x).probs)


def rewritten(folder, change):
    """Write the kept features of a folder anew, with a digest that is right."""
    path = next(folder.glob("features-*"))
    tensors = load_file(path)
    change(tensors)
    content = save(tensors)
    path.unlink()
    path.with_name(f"{path.name.rpartition('-')[0]}-{hashlib.sha256(content).hexdigest()}.safetensors").write_bytes(
        content
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(more=torch.zeros(1)), "features that `save` wrote"),
        (lambda found: found.update(train=found["train"][:, 1:].contiguous()), r"shape \(80, \d+\) with 80 targets"),
        (lambda found: found.update(targets=found["targets"][1:].clone()), "with 79 targets"),
    ],
)
def test_kept_features_of_another_form_are_refused(ensemble, tmp_path, change, words):
    folder = ensemble.save(tmp_path / "heads", features=True)
    rewritten(folder, change)
    with pytest.raises(CheckpointError, match=words):
        repulse.load(folder, ensemble.model).update(labelled(20, 5), progress=False)


def test_foreign_inputs_may_be_the_first_repulsion_samples():
    kept, foreign = KeptFeatures(normal(9, 3), torch.arange(9)), normal(2, 3, seed=1)
    first = kept.repelled_on(foreign, 0.2)
    assert torch.equal(first.repulsion, foreign)
    assert torch.equal(first.repelled_on(normal(3, 3, seed=2), 0.5).repulsion[:2], foreign)


def test_an_ensemble_that_repels_nowhere_takes_no_foreign_inputs(ensemble):
    alone = repulse.retrofit(ensemble.model, labelled(80, 0), repulsion=None, recipe=QUICK, progress=False)
    with pytest.raises(RepulsionError, match="Expected `foreign` to be None for a recipe that does not repel"):
        alone.update(foreign=normal(6, 4) + 9, progress=False)
