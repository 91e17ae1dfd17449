"""The toy and text experiments: what they plan, what a cell finds, and what becomes of it."""

from __future__ import annotations

import importlib.util
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from repulse import Recipe
from repulse._files import write_whole
from repulse._tensors import write_tensors
from repulse.evaluation.table import Table
from repulse.prediction import ClassPrediction
from repulse.recipe import NAMED
from repulse_lab.jobs.job import Place
from repulse_lab.networks.sentences import ENCODER
from repulse_lab.paper import text, toy
from repulse_lab.study.experiment import Outcome, RunOptions
from repulse_lab.study.figures import Figure

EXPERIMENTS = {module.EXPERIMENT.name: module for module in (toy, text)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files that are there."""
    root = tmp_path_factory.mktemp("data")
    for file in ("data_full.json", "all_wiki_sents.txt"):
        write_whole(root / "clinc150" / file, "{}")
    return root


@pytest.fixture
def place(folder, tmp_path) -> Place:
    return Place(folder, tmp_path)


def planned(name: str, preset: str, root: Path, seeds: int | None = None):
    return EXPERIMENTS[name].EXPERIMENT.plan(RunOptions(preset, root, seeds))


@pytest.mark.parametrize(("preset", "tasks", "seeds"), [("cpu", 2, 3), ("paper", 3, 10)])
def test_toy_plans_every_method_on_every_task(tmp_path, preset, tasks, seeds):
    plan = planned("toy", preset, tmp_path)
    assert len(plan.cells) == tasks * 5 * seeds
    assert not plan.missing  # the data is drawn from a seed
    assert {cell.labels["method"] for cell in plan.cells} == set(toy.METHODS)


@pytest.mark.skipif(importlib.util.find_spec(ENCODER) is None, reason="the text extra is not installed")
@pytest.mark.parametrize(("preset", "seeds"), [("cpu", 3), ("paper", 5)])
def test_text_plans_seeds_only_of_what_is_random(folder, tmp_path, preset, seeds):
    plan = planned("text", preset, folder)
    assert len(plan.cells) == 6 + 6 * seeds
    assert len({need.key for cell in plan.cells for need in cell.job.needs}) == 1
    assert planned("text", preset, tmp_path).missing == ["CLINC150 (train) is not there."]


def test_text_without_its_encoder_is_missing(folder, monkeypatch):
    monkeypatch.setattr(text, "ENCODER", "no_such_package")
    plan = planned("text", "cpu", folder)
    assert not plan.cells
    assert "pip install 'repulse-lab[text]'" in plan.missing[0]


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_cells_have_keys_of_their_own_that_stay(folder, name, preset):
    first, second = (planned(name, preset, folder, 2) for _ in range(2))
    keys = [cell.job.key for cell in first.cells]
    assert len(set(keys)) == len(keys)
    assert keys == [cell.job.key for cell in second.cells]
    assert len({tuple(cell.labels.items()) for cell in first.cells}) == len(keys)
    assert all(cell.job.seconds > 0 for cell in first.cells)


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
@pytest.mark.parametrize("task", ["sine", "two-moons", "gaussians"])
def test_toy_cell_with_few_particles(place, task):
    about = {"task": task, "seed": 0, "steps": 150 if task == "sine" else 80, "particles": 6, "width": 32}
    found = {name: toy.toy({**about, "method": name}, place) for name in ("fs-RLL-E", "LL-E")}
    for one in found.values():
        assert one["figures"]["std least"] <= one["figures"]["std far"]
        assert all(math.isfinite(value) for value in one["figures"].values())
    assert found["fs-RLL-E"]["figures"]["std far"] > 3 * found["LL-E"]["figures"]["std far"]
    outcomes = [outcome({"task": task, "method": name, "seed": 0}, one) for name, one in found.items()]
    (figure,) = toy.figures(outcomes)
    assert len(figure.panels) == 2
    check(toy.tables(outcomes), [figure])


def test_toy_curves_are_of_the_first_seed_only(place):
    about = {"task": "sine", "method": "deep ensemble", "steps": 2, "particles": 2, "width": 4}
    assert "particles" in toy.toy({**about, "seed": 0}, place)
    assert set(toy.toy({**about, "seed": 1}, place)) == {"figures"}


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_toy_retrofits_a_trained_network(place, monkeypatch):
    monkeypatch.setattr(toy, "Recipe", partial(Recipe, epochs=100))
    about = {"task": "sine", "method": "repulse", "seed": 1, "steps": 100, "particles": 4, "width": 16}
    figures = toy.toy(about, place)["figures"]
    assert figures["std far"] > figures["std near"]


def test_spread_of_two_classes_is_that_of_either():
    p = torch.tensor([[0.2, 0.8], [0.6, 0.4]]).unsqueeze(1)
    assert float(toy.particle_std(ClassPrediction(p.log()))) == pytest.approx(0.2)


@pytest.fixture
def encoded(place) -> Place:
    """Sentences of three well separated intents, as the job would have kept them; the last four columns are taps."""
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.eye(3, 10)
    labels = torch.arange(240) % 3
    near = centres[labels] + 0.5 * torch.randn(240, 10, generator=generator)
    sets = {"train": near[:150], "test": near[150:], "outside": 3 * torch.randn(40, 10, generator=generator)}
    sets |= {"repulsion": 3 * torch.randn(80, 10, generator=generator)}
    layer = text.classifier(sets["train"][:, :6], labels[:150])
    targets = {"train labels": labels[:150], "test labels": labels[150:]}
    tensors = {**sets, **targets, "weight": layer.weight, "bias": layer.bias}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_tensors(text.path_of(text.SENTENCES, place), tensors)
    return place


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_text_cells_judge_methods_on_features_that_are_kept(encoded, monkeypatch):
    monkeypatch.setitem(NAMED, "repulse", Recipe(epochs=100, lr=0.02))
    outcomes = []
    for method, repulsion, layers in text.ROWS:
        if method in ("MAP", "KNN", "discriminator", "repulse"):
            about = {"method": method, "layers": layers, "seed": 0, "sentences": text.SENTENCES}
            labels = {"method": method, "repulsion": repulsion, "layers": layers, "seed": 0}
            outcomes.append(outcome(labels, text.intents(about, encoded)))
    for one in outcomes:
        assert one.figures["accuracy"] > 90
        assert one.figures["out-of-scope auroc"] > 50
    assert outcomes[-1].figures["nll"] != outcomes[-2].figures["nll"]  # one sees the taps, the other does not
    (table,) = text.tables(outcomes)
    assert [name for name, _ in table.rows][-1] == "repulse, Wikipedia, with taps"
    check([table], text.figures(outcomes))


def test_roc_of_scores_that_are_apart():
    inside, outside = torch.linspace(0, 1, 200), torch.linspace(2, 3, 50)
    flagged, found = text._roc(inside, outside)
    assert flagged[0] == pytest.approx(1 / 200)
    assert flagged[-1] == 1.0
    assert set(found) == {1.0}


@pytest.mark.data
def test_sentences_of_clinc150_are_read_and_encoded(data_root, tmp_path, monkeypatch):
    if importlib.util.find_spec(ENCODER) is None:
        pytest.skip("the text extra is not installed")
    whole = text.load

    def few(name, split, root):
        data = whole(name, split, root)
        return data[torch.arange(0, len(data), 300)]

    monkeypatch.setattr(text, "load", few)
    about = {**text.SENTENCES, "most": 20}
    place = Place(data_root, tmp_path)
    counts = text.sentences(about, place)["figures"]
    assert counts == {"train": 50, "test": 15, "outside": 4, "repulsion": 20}
    figures = text.intents({"method": "MAP", "layers": "last", "seed": 0, "sentences": about}, place)["figures"]
    assert figures["accuracy"] > 10


def outcome(labels: dict, found: dict) -> Outcome:
    return Outcome(labels, "key", found)


def check(tables: list[Table], figures: list[Figure]) -> None:
    """They survive JSON, and can be printed and drawn."""
    for table in tables:
        assert Table.from_json(table.to_json()).text() == table.text()
        assert table.latex()
    for figure in figures:
        assert Figure.from_json(figure.to_json()).to_json() == figure.to_json()
        assert figure.picture().axes
