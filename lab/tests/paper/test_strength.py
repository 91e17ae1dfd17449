"""The sweep of strengths and spaces: its plan, one cell, and what would be chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from repulse import metrics
from repulse.repulsion import PatchShuffle
from repulse_lab.jobs.job import Place
from repulse_lab.paper import strength
from repulse_lab.study import problems
from repulse_lab.study.cells import fit_method
from repulse_lab.study.experiment import Outcome, RunOptions
from tiny_problem import light_and_static, tiny_problem, trained_network


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A place in which rows of light are CIFAR-10, and there is nothing else."""
    images = light_and_static()
    others = {"Tiny ImageNet": images.repulsion["more static"], "16 patches": PatchShuffle(4)}
    images = replace(images, repulsion={**images.repulsion, **others, "synthetic images": PatchShuffle(4)})
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 60)
    monkeypatch.setitem(
        problems.PROBLEMS, "cifar10", tiny_problem(images, lambda name: trained_network(images), "cifar10")
    )
    return Place(tmp_path / "data", tmp_path / "keep")


def test_every_strength_is_planned_in_both_spaces(place):
    plan = strength.plan(RunOptions("cpu", place.data, seeds=1))
    rows = [cell.labels["row"] for cell in plan.cells]
    assert len(rows) == len(set(rows)) == 1 + 3 * len(strength.SPACES) * len(strength.STRENGTHS)
    assert "training data, logits, 0.001" in rows
    assert all({"on", "strength"} <= set(cell.labels) for cell in plan.cells if cell.labels["method"] == "fs-RLL-E")
    assert any("no table reports" in note for note in plan.notes)
    assert [line for line in plan.missing if "mnist" in line]


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_a_cell_is_also_measured_on_what_chooses(place):
    plan = strength.plan(RunOptions("cpu", place.data, seeds=1))
    (job,) = [cell.job for cell in plan.cells if cell.labels["row"] == "Tiny ImageNet, logits, 0.1"]
    found = strength.sweep_strength(job.about, place)["figures"]
    trial, _ = fit_method(job.about, place)
    assert (trial.method.recipe.on, trial.method.recipe.strength) == ("logits", 0.1)
    inside, outside = (trial.method.score(x) for x in (trial.view.train, trial.view.repulsion["synthetic images"]))
    assert found[strength.VALIDATION] == pytest.approx(100 * metrics.auroc(inside, outside))
    assert math.isfinite(found["mean auroc"])


def outcome(method, value, validation, loss=0.5, **labels):
    kept = {"network": "ResNet-20", "method": method, "repulsion": None, "layers": "last", "seed": 0, "row": method}
    figures = {"mean auroc": value, "ece": 1.0, strength.VALIDATION: validation, strength.LOSS: loss}
    return Outcome({**kept, **labels}, f"{labels}", {"figures": {**figures, strength.SHARE: 2.0}})


def sweep(*tried, name="Tiny ImageNet"):
    """Outcomes of (space, strength, AUROC on reported sets, on what is chosen on, NLL there), after those of LL-E."""
    outcomes = [outcome("LL-E", 90.0, 50.0)]
    for space, number, value, validation, loss in tried:
        labels = {"repulsion": name, "on": space, "strength": number, "row": f"{name} {space} {number}"}
        outcomes.append(outcome("fs-RLL-E", value, validation, loss, **labels))
    return outcomes


def test_the_choice_is_made_where_nothing_is_reported():
    """The strength with the largest AUROC on the reported sets is not the one that validation prefers."""
    outcomes = sweep(
        ("logits", 0.001, 91.0, 80.0, 0.5), ("logits", 0.1, 95.0, 70.0, 0.5), ("probabilities", 0.03, 88.0, 60.0, 0.5)
    )
    of_all, chosen, *_ = strength.made_tables(outcomes)
    assert [name for name, *_ in of_all.rows] == ["photographs, on logits: ResNet-20, Tiny ImageNet"]
    assert [name for name, *_ in chosen.rows] == [
        "ResNet-20, Tiny ImageNet, logits",
        "ResNet-20, Tiny ImageNet, probabilities",
    ]
    text = chosen.markdown()
    assert "| 0.0010 | 80.0 | 1.00 |" in text
    assert "| 0.0300 | 60.0 | -2.00 |" in text
    figure, _ = strength.figures(outcomes)
    (panel,) = figure.panels
    assert [(line.name, list(line.x), list(line.y)) for line in panel.lines] == [
        ("probabilities", [pytest.approx(math.log10(0.03))], [-2.0]),
        ("logits", [-3.0, -1.0], [1.0, 5.0]),
    ]
    assert strength.figures([]) == []
    assert torch.tensor(panel.lines[1].x).diff().min() > 0


def test_a_strength_that_costs_likelihood_is_not_chosen():
    outcomes = sweep(("logits", 0.1, 91.0, 80.0, 0.504), ("logits", 1.0, 99.0, 99.0, 0.6))
    (one, other) = strength.tried(outcomes)
    assert (one.allowed, other.allowed) == (True, False)
    assert strength.best([one, other]) is one
    assert strength.best([other]) is None
    assert strength.best_of_all([one, other]) == ("logits", 0.1)
    assert strength.best_of_all([other]) is None


def test_the_setting_for_all_sets_is_allowed_with_each_of_them():
    """0.1 is better on the mean of both sets, but costs likelihood with one of them."""
    tried = [
        one
        for name, loss in (("Tiny ImageNet", 0.5), ("16 patches", 0.6))
        for one in strength.tried(
            sweep(("logits", 0.01, 91.0, 70.0, 0.5), ("logits", 0.1, 91.0, 80.0, loss), name=name)
        )
    ]
    assert strength.best_of_all(tried) == ("logits", 0.01)
    assert strength.best_of_all(tried[:2]) == ("logits", 0.1)


def test_gains_are_over_heads_of_the_same_seeds():
    outcomes = [*sweep(("logits", 0.1, 91.0, 80.0, 0.5)), outcome("LL-E", 50.0, 50.0, seed=1)]
    (one,) = strength.tried(outcomes)
    assert one.means["gain"] == pytest.approx(1.0)
