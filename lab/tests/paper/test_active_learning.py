"""Active learning among ambiguous digits: plans, every strategy on digits made here, and what becomes of its curves."""

from __future__ import annotations

import json
import statistics
from types import SimpleNamespace

import pytest
import torch

from repulse.evaluation.table import Table
from repulse_lab.data.registry import about as entry
from repulse_lab.jobs.job import Place
from repulse_lab.paper import active_learning, labelling
from repulse_lab.paper.labelling import CLASSES, STRATEGIES, Exam, Learner, Pool, buy
from repulse_lab.study.dirty_mnist import Ambiguous
from repulse_lab.study.experiment import Outcome, RunOptions
from repulse_lab.study.figures import Figure
from repulse_lab.study.training import make_ambiguous_digits

TINY = active_learning.CPU | {"draws": 64, "clean": 40, "ambiguous": 24, "rounds": 2, "test": 2, "head steps": 6}

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


# Plans.


@pytest.fixture
def folder(tmp_path):
    """Empty files in the place of MNIST: enough for a plan, and whoever reads them fails."""
    for split in ("train", "test"):
        for path in entry("mnist").layouts(split)[0]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
    return tmp_path


def test_cpu_runs_every_strategy_three_times_within_the_budget(folder):
    plan = active_learning.plan(RunOptions("cpu", folder))
    labels = [(cell.labels["method"], cell.labels["seed"]) for cell in plan.cells]
    assert labels == [
        (strategy, i) for some in (STRATEGIES, active_learning.ONCE_TOO) for strategy in some for i in range(3)
    ]
    assert {cell.labels["network"]: cell.job.about["labels"] for cell in plan.cells} == {
        "LeNet": 10,
        "LeNet, images once": 1,
    }
    repelled = {cell.labels["method"] for cell in plan.cells if cell.labels["repulsion"] == "pool"}
    assert repelled == {"fs-RLL-E PE", "fs-RLL-E MI", "repulse MI", "repulse BatchBALD"}
    assert len({cell.job.key for cell in plan.cells}) == len(plan.cells)
    assert all([need.function for need in cell.job.needs] == [make_ambiguous_digits] for cell in plan.cells)
    assert all(cell.job.seconds < 120 for cell in plan.cells)
    assert sum(cell.job.seconds for cell in plan.cells) < 30 * 60
    json.dumps([cell.job.about for cell in plan.cells])
    said = " ".join(plan.notes)
    assert all(word in said for word in ("ResNet-18", "120", "300 steps", "fifth", "random"))


def test_paper_is_the_papers_setting(folder):
    plan = active_learning.plan(RunOptions("paper", folder))
    assert len(plan.cells) == 5 * (len(STRATEGIES) + len(active_learning.ONCE_TOO))
    about = plan.cells[0].job.about
    assert about["network"] == {"name": "resnet18", "spectral_norm": 3.0, "mod": True}
    assert about["schedule"]["batch_size"] == 64
    assert about["draws"] == 20 * 5056
    assert 2 * CLASSES + labelling.EACH * about["rounds"] == 295
    assert about["clean"] * 60 == about["ambiguous"] * 10
    assert about["test"] == 1
    assert {method: heads["lr"] for method, heads in about["heads"].items()} == {"LL-E": 1e-4, "fs-RLL-E": 1e-4}
    assert not any("LeNet" in note for note in plan.notes)


def test_fewer_seeds_and_no_data(folder, tmp_path_factory):
    assert len(active_learning.plan(RunOptions("cpu", folder, 1)).cells) == len(STRATEGIES) + len(
        active_learning.ONCE_TOO
    )
    nothing = active_learning.plan(RunOptions("cpu", tmp_path_factory.mktemp("empty")))
    assert not nothing.cells
    assert "MNIST" in nothing.missing[0]


# The pool and the exam.


def _digits(classes, seed):
    """Images that show their class: a bright bar at its place, and noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(60, (len(classes), 1, 28, 28), generator=generator)
    for image, label in zip(images, classes.tolist(), strict=True):
        image[0, 2 * label + 4 : 2 * label + 7] += 180
    return images.to(torch.uint8)


@pytest.fixture
def digits(monkeypatch, tmp_path):
    """Sixty clean digits and thirty ambiguous ones of each split, in place of the real ones."""

    def load(name, split, root):
        classes = torch.arange(60) % CLASSES
        return SimpleNamespace(labelled=(_digits(classes, len(split)), classes))

    def ambiguous(root, split, progress):
        first = torch.arange(30) % CLASSES
        images = torch.maximum(_digits(first, 7 + len(split)), _digits((first + 3) % CLASSES, 70 + len(split)))
        labels = torch.stack([first, (first + 3) % CLASSES] * 5, dim=1)
        return Ambiguous(images, labels, torch.full((30, CLASSES), 0.1))

    monkeypatch.setattr(labelling, "load", load)
    monkeypatch.setattr(labelling, "ambiguous_mnist", ambiguous)
    return tmp_path


def test_a_pool_holds_clean_pairs_once_and_ambiguous_images_with_ten_labels(digits):
    pool = Pool.drawn(digits, 40, 24, 10, 0)
    assert len(pool.inputs) == 64
    assert len(pool.numbers) == len(pool.targets) == 40 + 240
    assert torch.bincount(pool.numbers).tolist() == [1] * 40 + [10] * 24
    assert bool((pool.numbers[:40] < 40).all())
    labels = pool.targets[40:].view(24, 10)
    assert bool(((labels[:, 1] - labels[:, 0]) % CLASSES == 3).all())
    clean, _ = labelling.load("mnist", "train", digits).labelled
    inputs = (clean.float() / 255 - 0.1307) / 0.3081
    assert all(torch.isclose(inputs, one).flatten(1).all(dim=1).sum() == 1 for one in pool.inputs[:40])


def test_both_pools_hold_sixty_ambiguous_pairs_for_each_clean_one(digits):
    for size in (active_learning.CPU, active_learning.CPU | active_learning.ONCE):
        assert 60 * size["clean"] == size["ambiguous"] * size["labels"]
    pool = Pool.drawn(digits, 40, 24, 1, 0)
    assert pool.numbers.tolist() == list(range(64))


def test_the_first_labels_are_two_clean_ones_of_each_class_and_the_seeds(digits):
    first = Pool.drawn(digits, 40, 24, 10, 0).first()
    pool = Pool.drawn(digits, 40, 24, 10, 0)
    assert torch.equal(first, pool.first())
    assert torch.bincount(pool.targets[first]).tolist() == [2] * CLASSES
    assert int(first.max()) < pool.clean
    other = Pool.drawn(digits, 40, 24, 10, 1)
    assert not torch.equal(pool.targets, other.targets)


def test_accuracy_counts_every_pair_of_an_image_and_a_label(digits):
    exam = Exam.of(digits, 2)
    assert len(exam.inputs) == 30 + 15
    predicted = torch.cat([exam.targets, exam.labels[:, 0]])
    assert exam.accuracies(predicted) == (100 * (30 + 15 * 5) / (30 + 150), 100.0)
    predicted[:15] = (predicted[:15] + 1) % CLASSES
    assert exam.accuracies(predicted) == pytest.approx((100 * (15 + 75) / 180, 50.0))
    assert torch.equal(exam.inputs, Exam.of(digits, 2).inputs)


# Learners.


def learner(digits, method):
    pool = Pool.drawn(digits, 40, 24, 10, 0)
    return Learner(pool, method, TINY | {"seed": 0}), pool.first()


@pytest.mark.parametrize("method", sorted({method for method, _ in STRATEGIES.values()}))
def test_pairs_of_one_image_are_answered_alike_and_members_are_as_many_as_named(digits, method):
    made, first = learner(digits, method)
    asked = made.train(first, made.pool.targets[first])
    prediction = asked.predict(made.pool.numbers)
    assert prediction.members == {"DE-3": 3, "MAP": 1, "DDU": 1}.get(method, 10)
    scores = asked.score(made.pool.numbers)[40:].view(24, 10)
    assert bool((scores == scores[:, :1]).all())
    assert len(scores[:, 0].unique()) > 1
    examined = asked.examine(made.pool.inputs)
    assert torch.equal(examined.labels[made.pool.numbers], prediction.labels)


def test_heads_are_fitted_as_their_strategy_says(digits, monkeypatch):
    kept = []

    class Spy(labelling.LastLayerEnsemble):
        def fit(self, features, targets):
            kept.append(self)
            return super().fit(features, targets)

    monkeypatch.setattr(labelling, "LastLayerEnsemble", Spy)
    for method in ("LL-E", "fs-RLL-E", "repulse"):
        made, first = learner(digits, method)
        made.train(first, made.pool.targets[first])
    plain, paper, ours = kept
    assert (plain.repulsion, plain.heads.recipe.space) == (None, "none")
    assert (paper.heads.recipe.strength, paper.heads.recipe.compare) == (0.1, "jointly")
    assert (ours.heads.recipe.strength, ours.heads.recipe.whiten) == (0.03, True)
    assert len(paper.repulsion) == len(ours.repulsion) == 280 - 20
    assert [len(one.heads.history) for one in kept] == [6] * 3


def test_heads_repel_on_what_is_not_bought(digits):
    made, first = learner(digits, "fs-RLL-E")
    bought = torch.cat([first, torch.tensor([40, 41, 55])])  # two pairs of the first ambiguous image, one of the second
    counts = torch.bincount(made._unlabelled(bought, 0), minlength=64)
    assert counts[first].sum() == 0
    assert counts[40:42].tolist() == [8, 9]
    assert counts.sum() == 280 - 23


# Buying.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_buy_five_at_a_time_and_nothing_twice(digits, strategy):
    found = buy(TINY | {"strategy": strategy, "seed": 0}, Place(digits, digits))
    assert json.loads(json.dumps(found)) == found
    bought, curves, figures = found["bought"], found["curves"], found["figures"]
    assert len(set(bought)) == len(bought) == 20 + 5 * 2
    assert bought[:20] == Pool.drawn(digits, 40, 24, 10, 0).first().tolist()
    assert max(bought) < 280
    assert curves["samples"] == [20, 25, 30]
    assert {len(curve) for curve in curves.values()} == {3}
    ambiguous = [sum(one >= 40 for one in bought[20:count]) / (count - 20) * 100 for count in (25, 30)]
    assert curves["ambiguous share"] == pytest.approx([0, *ambiguous], abs=1e-3)
    assert figures["ambiguous share"] == curves["ambiguous share"][-1]
    assert figures["final accuracy"] == curves["accuracy"][-1]
    assert figures["mean clean accuracy"] == pytest.approx(statistics.fmean(curves["clean accuracy"]))
    images = {one if one < 40 else 40 + (one - 40) // 10 for one in bought[20:]}
    assert figures["images"] == pytest.approx(100 * len(images) / 10)


def test_runs_repeat_and_strategies_of_one_network_begin_alike(digits):
    place = Place(digits, digits)
    first, again, other, third = (
        buy(TINY | {"strategy": strategy, "seed": seed, "rounds": 1}, place)
        for strategy, seed in (("MAP", 0), ("MAP", 0), ("random", 0), ("MAP", 1))
    )
    assert first == again
    assert first["curves"]["accuracy"][0] == other["curves"]["accuracy"][0]
    assert first["bought"][20:] != other["bought"][20:]
    assert first["bought"] != third["bought"]


# Tables and figures.


def outcome(method, seed, accuracy):
    rises = [accuracy - 10, accuracy - 5, accuracy]
    curves = {"samples": [20, 25, 30], "accuracy": rises, "clean accuracy": [one + 20 for one in rises]}
    curves["ambiguous share"] = [0.0, 80.0, 60.0]
    figures = {"final accuracy": accuracy, "clean accuracy": accuracy + 20, "mean accuracy": accuracy - 5}
    figures |= {"mean clean accuracy": accuracy + 15, "ambiguous share": 60.0, "images": 50.0}
    labels = {"network": "LeNet", "method": method, "seed": seed}
    return Outcome(labels, f"{method}{seed}", {"figures": figures, "curves": curves})


OUTCOMES = [outcome(method, seed, 40.0 + 2 * i + 4 * seed) for i, method in enumerate(STRATEGIES) for seed in (0, 1)]


def test_the_table_has_a_row_a_strategy():
    (table,) = active_learning.tables(OUTCOMES)
    assert [name for name, _ in table.rows] == list(STRATEGIES)
    assert "30 labels" in table.title
    assert table.cell(0, 0) == "42.0 ± 2.8"
    assert table.cell(1, 1) == "64.0 ± 2.8"
    assert table.is_best(len(STRATEGIES) - 1, 0)
    assert Table.from_json(json.loads(json.dumps(table.to_json()))).text() == table.text()


def test_the_figure_shows_every_strategy_with_bands_on_common_axes():
    (figure,) = active_learning.figures(OUTCOMES)
    assert len(figure.panels) == 9
    assert all(len(panel.lines) == 5 for panel in figure.panels)  # as many as there are colours
    assert {line.name for panel in figure.panels for line in panel.lines} == set(STRATEGIES)
    first = figure.panels[0].lines[0]
    assert (first.name, list(first.x), list(first.y)) == ("DE-3 MI", [20, 25, 30], [34.0, 39.0, 44.0])
    spread = statistics.stdev([42.0, 46.0])
    assert first.low[-1] == pytest.approx(44 - spread, abs=1e-3)
    assert first.high[-1] == pytest.approx(44 + spread, abs=1e-3)
    assert figure.panels[0].y_range == figure.panels[3].y_range == (30.0, 65.0)
    assert list(figure.panels[2].lines[0].x) == [25, 30]
    assert "random ends at 62.0" in figure.alt
    again = Figure.from_json(json.loads(json.dumps(figure.to_json())))
    assert len(again.picture().axes) >= 9


def test_one_run_of_some_strategies_is_drawn_without_bands():
    some = [one for one in OUTCOMES if one.labels["seed"] == 0 and one.labels["method"] in ("MAP", "random")]
    (figure,) = active_learning.figures(some)
    assert all(not line.low for panel in figure.panels for line in panel.lines)
    assert [line.name for line in figure.panels[3].lines] == ["MAP", "random"]
    assert active_learning.EXPERIMENT.name == "active-learning"
