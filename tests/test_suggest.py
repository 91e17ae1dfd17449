"""Which source, how strong, which layers: what is tried, on what it is judged, and when nothing is suggested."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn

from repulse import ClassPrediction, DataError, Recipe, RepulsionError, retrofit, suggest
from repulse.metrics import auroc
from repulse.repulsion import Mixture, Shell, TrainingData, UniformBox, WideBox
from repulse.suggest.search import Candidates, Search, _mixed, placements
from repulse.suggest.suggestion import Suggestion, Trial

QUICK = Recipe(heads=4, epochs=2, lr=0.02)
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(300) % 2
ROWS = torch.randn(300, 2, generator=GENERATOR) + 2.0 * LABELS.unsqueeze(1)
LOADER = [(ROWS[i : i + 50], LABELS[i : i + 50]) for i in range(0, 200, 50)]
VALIDATION = [(ROWS[200:], LABELS[200:])]


class Counting(nn.Module):
    """A small network that counts the rows it was called with."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 6), nn.ReLU())
        self.last = nn.Linear(6, outputs)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.rows = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        return self.last(self.body(x))


def trial(**changes) -> Trial:
    values = {"source": "Box()", "strength": 0.03, "layers": "with taps", "others": 90.0, "gain": 2.0, "error": 0.1}
    return Trial(**{**values, "mistakes": math.nan, "nll": 0.3, "costly": False, "score": 2.0, **changes})


def search_of(trials: list[Trial]) -> Search:
    nothing = torch.zeros(7, 2), torch.zeros(7)
    candidates = Candidates.of(Shell(), {}, 0.5)
    search = Search(QUICK, QUICK, 2, nothing, (1, 2), nothing, nothing, True, candidates, {})
    search.trials += trials
    return search


def test_every_part_is_tried_on_features_that_are_computed_once():
    """The network sees 200 training and 100 validation rows, 1,600 of two sources, and first batches a few times."""
    network = Counting()
    found = suggest(network, LOADER, validation=VALIDATION, recipe=QUICK, progress=False)
    names = [one.source for one in found.trials]
    assert names[:5] == ["nowhere", "auto", "HalfShuffle()", "WideBox(margin=1)", "Shell(radius 1.5 to 6)"]
    assert 200 + 100 + 2 * 1600 <= network.rows <= 200 + 100 + 2 * 1600 + 12 * 100
    assert found.held_out == "100 validation samples"
    assert found.trials[0].gain == 0
    assert not found.trials[0].costly
    ensemble = retrofit(network, LOADER, repulsion=found.repulsion, recipe=found.recipe, progress=False)
    assert ensemble.predict(ROWS[:3]).epistemic.shape == (3,)


def test_a_source_that_repels_on_the_data_judges_nobody_and_is_not_suggested(monkeypatch):
    monkeypatch.setattr(sys.modules[Search.__module__], "PER_SOURCE", 200)
    recipe, given = QUICK.replace(strength=1.0, epochs=20), {"the data itself": TrainingData()}
    found = suggest(Counting(), LOADER, validation=VALIDATION, candidates=given, recipe=recipe, progress=False)
    worth = {one.source: one for one in found.trials if one.strength in (0.0, 1.0) and one.layers != "last"}
    assert worth["the data itself"].score < min(0.0, worth["auto"].score)
    assert worth["nowhere"].others > 60
    assert found.best.source != "the data itself"


def test_without_strength_nothing_beats_no_repulsion_and_it_says_so(capsys):
    recipe = QUICK.replace(strength=0.0)
    found = suggest(Counting(), LOADER, recipe=recipe)
    assert found.repulsion is None
    assert found.recipe == recipe
    printed = capsys.readouterr().out
    assert printed.startswith("source")
    assert "Nothing clearly beats no repulsion" in printed
    assert "40 training samples kept from the heads" in printed


@pytest.mark.parametrize("outputs", [1, 2])
def test_single_logits_and_regression_are_judged_too(outputs, capsys):
    task = "classification" if outputs == 1 else "regression"
    batches = [(x, y.float()) for x, y in LOADER]
    found = suggest(
        Counting(outputs), batches, samples=100, recipe=QUICK.replace(task=task, strength=0.0), progress=False
    )
    assert all(math.isfinite(one.nll) and math.isfinite(one.others) for one in found.trials)
    assert found.held_out == "20 training samples kept from the heads"
    assert not capsys.readouterr().out


def test_a_source_is_left_out_of_a_mixture_before_it_judges_it(monkeypatch):
    """With two sources a mixture is judged by two further fits, each on the other source alone."""
    fits = []

    def fitted(self, parts, strength, taps):
        fits.append(None if parts is None else set(parts))
        return predicted

    def predicted(rows):
        logits = torch.randn(3, len(rows), 2, generator=torch.Generator().manual_seed(0))
        return ClassPrediction((logits * (1 + rows[:, :1])).log_softmax(-1))

    monkeypatch.setattr(Search, "_fit", fitted)
    search = search_of([])
    search.candidates = Candidates.of(Mixture([Shell(), WideBox()]), {}, 0.5)
    search.held_out = torch.zeros(7, 2), torch.zeros(7, dtype=torch.long)
    search.last_layer = torch.zeros(2, 1), torch.zeros(2)
    search.pools = {name: torch.ones(5, 2) for name in search.candidates.singles}
    search.run(False)
    shell, box = "Shell(radius 1.5 to 6)", "WideBox(margin=1)"
    assert fits == [None, {shell, box}, {box}, {shell}, {shell}, {box}]


def test_the_best_costs_nothing_and_gains_more_than_its_error():
    nowhere = trial(source="nowhere", strength=0.0, score=0.0)
    costly = trial(score=9.0, costly=True)
    unsure = trial(score=4.0, error=5.0)
    small, good = trial(score=0.4), trial(score=3.0)
    assert search_of([nowhere, costly, unsure, small, good])._best() is good
    assert search_of([nowhere, costly, unsure, small])._best() is nowhere


def test_given_data_is_mixed_as_retrofit_mixes_it():
    """Half of the samples are synthetic: the weights of given data and of all parts of `auto` are equal."""
    chosen = Mixture([UniformBox(0, 1), Shell()], [3, 1])
    mixtures = Candidates.of(chosen, {"mine": [ROWS], "box": WideBox()}, 0.5).mixtures
    assert mixtures["mine"] == pytest.approx(
        {"mine": 1.0, "UniformBox(low=0, high=1)": 0.75, "Shell(radius 1.5 to 6)": 0.25}
    )
    assert mixtures["box"] == {"WideBox(margin=1)": 1.0}


def test_mixed_samples_have_the_shares_of_their_weights():
    pools = {"a": torch.zeros(100, 1), "b": torch.ones(60, 1)}
    assert _mixed(pools, {"a": 1.0, "b": 0.3}).mean() == pytest.approx(0.3 / 1.3, abs=0.01)
    assert _mixed(pools, {"a": 0.1, "b": 0.9}).mean() == pytest.approx(0.9, abs=0.01)


def test_placements_average_to_the_auroc():
    inside, outside = torch.randint(5, (40,), generator=GENERATOR), torch.randint(7, (30,), generator=GENERATOR)
    assert float(placements(inside, outside).mean()) == pytest.approx(auroc(inside.double(), outside.double()))


def test_a_page_shows_names_as_they_are_and_marks_the_best():
    best = trial(source="<mine>")
    page = Suggestion(Shell(), QUICK, best, [trial(), best], "9 samples")._repr_html_()
    assert "<b>&lt;mine&gt;</b>" in page
    assert "<mine>" not in page
    assert "Repel on &lt;mine&gt;" in page


@pytest.mark.parametrize("wrong", ["Shell", [3], {"auto": Shell()}, [Shell(), LOADER]])
def test_candidates_that_are_no_sources_are_refused(wrong):
    with pytest.raises(RepulsionError, match="Expected `candidates`"):
        suggest(Counting(), LOADER, candidates=wrong, progress=False)


def test_recipes_that_look_at_no_source_and_data_that_is_none_are_refused():
    with pytest.raises(RepulsionError, match=r"Expected `recipe\.space`"):
        suggest(Counting(), LOADER, recipe=Recipe(space="none"), progress=False)
    with pytest.raises(DataError, match="at least one batch"):
        suggest(Counting(), [], progress=False)
