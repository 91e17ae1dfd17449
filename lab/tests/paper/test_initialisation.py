"""Heads that start alike: what is planned, and how far apart heads are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from repulse_lab.jobs.job import Place
from repulse_lab.paper import initialisation
from repulse_lab.paper.claims.reading import read_claims
from repulse_lab.paper.claims.results import Results
from repulse_lab.study import problems
from repulse_lab.study.experiment import Outcome, RunOptions
from repulse_lab.study.output import collect
from tiny_problem import light_and_static, tiny_problem, trained_network


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
def test_cells_start_as_they_say_and_tell_how_far_heads_part(tmp_path, monkeypatch):
    images = light_and_static()
    images = replace(images, repulsion={**images.repulsion, "Tiny ImageNet": images.repulsion["more static"]})
    images = replace(images, averaged=tuple(images.outside))
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)
    problem = tiny_problem(images, lambda name: trained_network(images), "cifar10")
    monkeypatch.setitem(problems.PROBLEMS, "cifar10", problem)
    place = Place(tmp_path / "data", tmp_path / "keep")
    cells = initialisation.plan(RunOptions("cpu", place.data, seeds=1)).cells
    assert [(cell.labels["method"], cell.labels["task"]) for cell in cells] == [
        (method, start) for method in ("LL-E", "fs-RLL-E") for start in ("random start", "same start")
    ]
    found = [initialisation.compare_heads(cell.job.about, place)["figures"] for cell in cells[:2]]
    random, same = (one["epistemic outside"] for one in found)
    assert 0 <= same < random  # twenty steps do not part heads that start alike
    assert all(0 <= one["disagreement outside"] <= 100 for one in found)


def test_claims_about_the_start_are_judged_at_it():
    """Repulsion that parts heads from the same start confirms the claim, whatever it does from random ones."""

    def outcome(method, start, seed, value):
        labels = {"network": "ResNet-20", "method": method, "repulsion": "Tiny ImageNet" if "fs" in method else None}
        labels |= {"layers": "last", "task": start, "seed": seed, "row": f"{method}, {start}"}
        return Outcome(labels, f"{labels}", {"figures": {"disagreement outside": value + seed}})

    values = {("LL-E", "same start"): 10.0, ("fs-RLL-E", "same start"): 20.0}
    values |= {("LL-E", "random start"): 50.0, ("fs-RLL-E", "random start"): 40.0}
    outcomes = [outcome(*key, seed, value) for key, value in values.items() for seed in range(3)]
    findings = collect(
        initialisation.EXPERIMENT, outcomes, preset="cpu", command="", date="", minutes=0.0, notes=(), missing=()
    )
    (claim,) = [one for one in read_claims() if one.id == "same-start-diverse"]
    verdict = claim.test(Results([findings]))
    assert verdict.word == "confirmed"
    assert verdict.effect == pytest.approx(10.0)


def test_heads_that_are_one_never_disagree():
    from repulse.prediction import ClassPrediction

    log_probs = torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    assert initialisation.disagreement(ClassPrediction(log_probs.expand(4, -1, -1))) == 0
