"""The comparison of all methods, on images small enough to make here: benches, rows, tables, files and the command."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from repulse import RecipeError
from repulse.baselines import MAP, METHODS, DeepEnsemble, Method
from repulse.evaluation.table import Column
from repulse.prediction import ClassPrediction
from repulse.repulsion import PatchShuffle, TrainingData
from repulse_lab import cli
from repulse_lab.study import comparison, measures, problems
from repulse_lab.study.bench import BATCH, Bench, Images
from repulse_lab.study.collections import halves
from repulse_lab.study.comparison import HEADINGS, Cell, Problem, Row
from repulse_lab.study.measures import Dirt, Trial

LAPLACE = ["LL-Laplace (full)", "LL-Laplace (diagonal)"]
SEEDED = ["SNGP", "LL-Laplace", *LAPLACE, "outlier exposure", "LL-E", "RLL-E", "fs-RLL-E", "repulse"]
COLUMNS = {"figures": {"x": Column("X", 2, "higher"), "y": Column("Y", 1)}, "more": {"z": Column("Z", 0, "lower")}}
ROWS = [Row("one"), Row("two", "letters"), Row("one", None, "auto")]
MISTAKES = {
    r"Expected `network` to be .* but got 'lenett'\. Did you mean 'lenet'\?": ["--network", "lenett"],
    r".*cifar.*nowhere.*": ["--data", "nowhere"],
    r"Expected a folder of data sets: .*REPULSE_DATA\.": [],
}

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Fits of few steps: what heads learn is tested elsewhere."""
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 120)


def pictures(count, seed):
    """Three classes, each with its own rows brighter, in so much noise that a network makes some errors."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (count,), generator=generator)
    images = torch.randint(220, (count, 1, 8, 8), generator=generator)
    images[:, 0] += 35 * (torch.arange(8) // 3 == targets.unsqueeze(1)).unsqueeze(2)
    return images.to(torch.uint8), targets


def made(images, seed=0):
    """A network of three stages, trained for a moment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = [nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.ReLU()) for i, o, s in ((1, 4, 1), (4, 6, 2), (6, 8, 2))]
        network = nn.Sequential(*stages, nn.Flatten(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        loss = nn.functional.cross_entropy(network(images.prepared(images.train)), images.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@pytest.fixture(scope="module")
def images():
    some = torch.randint(256, (220, 1, 8, 8), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    outside = {"static": some[:40], "flat": some[40:80, :, :1, :1].expand(-1, -1, 8, 8).contiguous()}
    repulsion = {"more static": some[80:120], "patches": PatchShuffle(4), "training data": TrainingData()}
    people = 1 + some[120:, 0, 0, :3].long()
    return Images(*pictures(240, 0), *pictures(100, 1), outside, repulsion, (0.4,), (0.2,), people)


@pytest.fixture(scope="module")
def bench(images):
    return Bench(images, made(images), progress=False)


def problem_on(bench, rows, **changes):
    what = {"columns": problems._cifar_columns(bench.images), "measure": measures.measure_photographs, **changes}
    return Problem("tiny", "Rows of light", lambda _: bench, rows, **what)


def test_features_are_computed_once_then_read_and_modes_stay(images, tmp_path):
    counted, networks = [], [made(images).train(), made(images)]
    networks[0][1].eval()
    modes = [module.training for module in networks[0].modules()]
    for each in networks:
        each[0].register_forward_hook(lambda *_: counted.append(1))
    benches = [Bench(images, each, tmp_path, progress=False) for each in networks]
    counted.clear()  # the split looked at a few images
    views = [benches[0].view("last"), benches[0].view("auto")]
    sets = [images.train, images.test, *images.outside.values()]
    assert len(counted) == sum(-(-len(x) // BATCH) for x in sets)  # nobody has asked to repel yet
    assert [list(view.repulsion) for view in views] == [list(images.repulsion)] * 2
    assert all(len(view.repulsion[name]) for view in views for name in view.repulsion)
    first = views[0]
    sets += [x if isinstance(x, torch.Tensor) else images.train for x in images.repulsion.values()]
    batches = sum(-(-len(x) // BATCH) for x in sets)
    assert (len(counted), len(list(tmp_path.iterdir()))) == (batches, len(sets))
    assert [module.training for module in networks[0].modules()] == modes
    again = benches[1].view("last")
    assert len(counted) == batches
    assert torch.equal(again.train, first.train)
    assert torch.equal(again.repulsion["patches"], first.repulsion["patches"])
    assert torch.equal(Bench(images, networks[0], progress=False).view("last").test, first.test)  # without a folder


def test_an_image_that_comes_several_times_goes_through_the_network_once(images, bench):
    seen, some = [], images.train[:50]
    hook = bench.network[0].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    features = bench.features(torch.cat([some[:30], some[10:], some[40:].flip(0)]))
    hook.remove()
    one = bench.features(some)
    assert seen == [50]
    torch.testing.assert_close(features, torch.cat([one[:30], one[10:], one[40:].flip(0)]))


def test_all_that_features_depend_on_gives_another_file(images, bench, tmp_path):
    kept, some = replace(bench, cache=tmp_path), images.train[:20]
    others = replace(kept, images=replace(images, mean=(0.3,))), replace(kept, network=made(images, 1))
    asked = [(kept, some), (kept, some.clone()), (kept, images.train[1:21]), (kept, some, PatchShuffle(4))]
    asked += [(kept, some, PatchShuffle(4)), (kept, some, PatchShuffle(16)), *((other, some) for other in others)]
    counts = [bench.features(*of) is None or len(list(tmp_path.iterdir())) for bench, *of in asked]
    assert counts == [1, 1, 2, 3, 3, 4, 5, 6]


def test_one_view_has_the_logits_of_the_network_the_other_scaled_taps_and_a_layer(images, bench):
    view = bench.view("last")
    sets = [(view.train, images.train), (view.test, images.test), (view.outside["flat"], images.outside["flat"])]
    for features, pixels in [*sets, (view.repulsion["more static"], images.repulsion["more static"])]:
        torch.testing.assert_close(view.layer(features), bench.network(images.prepared(pixels)).detach())
    assert view.taps == 0
    last, view = view, bench.view("auto")
    width = last.train.shape[1]
    assert view.taps == view.train.shape[1] - width == view.layer.weight.shape[1] - width > 0
    torch.testing.assert_close(view.train.mean(dim=0), torch.zeros(width + view.taps), atol=1e-4, rtol=0)
    torch.testing.assert_close(view.train[:, width:].std(dim=0, correction=0), torch.full((view.taps,), 0.2))
    right = [(v.layer(v.train).argmax(dim=1) == images.targets).float().mean() for v in (view, last)]
    assert right[0] > right[1] - 0.1 > 0.5


@pytest.fixture(scope="module")
def everything(bench):
    extra = {"pair": lambda b, _: DeepEnsemble([b.network, made(b.images, 1)], prepare=b.images.prepared)}
    return problem_on(bench, comparison.rows_for(("more static",), ("patches",), ("pair",)), extra=extra)


def test_every_method_on_both_views_gives_figures(everything):
    cells = list(comparison.run(everything, everything.rows, 1, progress=False))
    assert [Row(*cell.key[:3]) for cell in cells] == everything.rows
    assert {cell.method for cell in cells} == {*METHODS, "pair"}
    assert {cell.method for cell in cells if cell.layers == "auto"} == set(METHODS) - set(LAPLACE)
    for cell in cells:
        unknown = [k for columns in everything.columns.values() for k in columns if not math.isfinite(cell.figures[k])]
        assert unknown == ["fit_seconds"] * (cell.method == "pair"), cell  # which was trained before
        assert 50 < cell.figures["accuracy"] < 100, cell


@pytest.mark.parametrize("same", [True, False])
def test_what_is_not_random_is_run_once_for_each_network(same, bench, everything, monkeypatch):
    monkeypatch.setattr(Method, "fit", lambda self, *_: self)
    monkeypatch.setattr(Method, "predict_and_score", lambda *_: None)
    other, measured = bench if same else replace(bench), []
    other._views = bench._views
    problem = replace(everything, bench=[bench, other].__getitem__, measure=lambda t: measured.append(t.method) or {})
    cells = list(comparison.run(problem, problem.rows, 2, progress=False))
    for row in problem.rows:
        once = row.method == "pair" or (same and row.method not in SEEDED)
        assert [cell.seed for cell in cells if Row(*cell.key[:3]) == row] == ([0] if once else [0, 1]), row
    for cell, method in zip(cells, measured, strict=True):
        assert getattr(getattr(method, "recipe", method), "seed", cell.seed) == cell.seed


class Cheat(MAP):
    """Right where it was calibrated and wrong elsewhere; features are numbers of samples, and class 0 is no answer."""

    known = torch.tensor([])

    def calibrate(self, features, targets):
        assert torch.equal(targets, 1 + features[:, 0].long() % 2)
        self.known = features[:, 0]

    def _predict(self, features):
        answer = (1 + features[:, 0].long() % 2) * torch.isin(features[:, 0], self.known)
        return ClassPrediction((10.0 * nn.functional.one_hot(answer, 3)).log_softmax(dim=1).unsqueeze(0))


def test_methods_are_judged_on_what_they_were_not_calibrated_on(images, bench):
    few = replace(images, test=images.test[:21], test_targets=1 + torch.arange(21) % 2, human=None)
    numbers, cheat = torch.arange(30.0).unsqueeze(1).repeat(1, 32), Cheat(bench.view().layer)
    trial = Trial(cheat, few, replace(bench.view(), test=numbers[:21], outside={"static": numbers[21:]}))
    one, other = (half.tolist() for half in halves(21))
    assert (len(one), len(other), {*one, *other}) == (10, 11, set(range(21)))
    assert measures.measure_photographs(trial)["accuracy"] == 0
    assert sorted(cheat.known.tolist()) == sorted(one)
    assert measures.measure_digits(trial, Dirt(10, torch.arange(21), few.test_targets))["accuracy"] == 0
    folds = measures._folds(trial, torch.arange(21), few.test_targets)
    assert [(int(here.sum()), len(far["static"])) for here, far in folds] == [(10, 4), (11, 5)]


def test_a_method_without_calibration_is_judged_once_on_everything(images, bench):
    view = bench.view()
    trial = Trial(MAP(view.layer).fit(view.train, images.targets), images, view)
    pairs = torch.tensor([*range(60), *[99] * 10])  # sixty clean images, and ten labels of an ambiguous one
    targets = torch.cat([images.test_targets[:60], torch.arange(10) % 3])
    figures = measures.measure_digits(trial, Dirt(60, pairs, targets))
    right = view.layer(view.test[pairs]).argmax(dim=1) == targets
    assert figures["accuracy"] == pytest.approx(100 * right.double().mean().item())
    wins = trial.method.score(view.outside["flat"]).unsqueeze(1) - trial.method.score(view.test)[60:]
    assert figures["ambiguous flat"] == pytest.approx(50 * (1 + wins.sign().double().mean().item()))


def cells_of(*methods, seeds=(0, 1), shift=0.0):
    rows = [row for row in ROWS if row.method in methods]
    return [Cell(r.method, r.repulsion, r.layers, s, {"x": 1.0 + s + shift, "y": 4.1}) for r in rows for s in seeds]


def test_tables_have_columns_headings_and_means_over_seeds(bench):
    stub = problem_on(bench, ROWS, columns=COLUMNS)
    tables = comparison.tables(stub, [*cells_of("one", "two"), *cells_of("two", seeds=(2,), shift=6.0)])
    assert {v: [table.label for table in made] for v, made in tables.items()} == {v: [*COLUMNS] for v in HEADINGS}
    assert [re.split(r"\s{2,}", line) for line in tables["last"][0].text().splitlines()] == [
        ["figures", "X ↑", "Y"],
        ["one", "1.50 ± 0.71", "4.1 ± 0.0"],
        ["two, letters", "4.00 ± 4.36 *", "4.1 ± 0.0"],
    ]
    assert tables["auto"][1].text().splitlines()[1].split() == ["one", "–"]  # nobody measured z


@pytest.mark.parametrize("shared", [True, False])
def test_repelled_on_what_is_judged_is_an_oracle_whatever_its_name(shared, images, bench):
    letters = images.repulsion["more static"].clone()
    letters[7:8] = images.outside["flat"][3:4] if shared else letters[7:8]
    own = Bench(replace(images, repulsion={"letters": letters}), bench.network, progress=False)
    extra = {name: lambda b, _: MAP(b.view().layer).fit(b.view().train, images.targets) for name in ("one", "two")}
    figures = [{"x": 2.0, "y": 5.0}, {"x": 1.0, "y": 5.0}]
    problem = problem_on(own, ROWS[:2], columns=COLUMNS, measure=lambda _: figures.pop(), extra=extra)
    table = comparison.tables(problem, list(comparison.run(problem, ROWS[:2], 1, progress=False)))["last"][0]
    assert [name for name, _ in table.rows] == ["one", "two, letters" + " (oracle: flat)" * shared]
    assert [table.cell(1, j) for j in (0, 1)] == ["2.00" + " †" * shared, "5.0" + " †" * shared]
    assert [table.is_best(i, 0) for i in (0, 1)] == [False, not shared]


def test_rows_are_chosen_by_method_and_view(bench):
    stub = problem_on(bench, ROWS)
    assert comparison.chosen(stub, ["all"], "both") == ROWS
    assert comparison.chosen(stub, ["all"], "auto") == ROWS[2:]
    assert comparison.chosen(stub, ["one"], "both") == [ROWS[0], ROWS[2]]
    with pytest.raises(RecipeError, match=r"`methods` to be one of 'all', 'one', 'two', .* Did you mean 'two'\?"):
        comparison.chosen(stub, ["one", "twoo"], "both")
    with pytest.raises(RecipeError, match=r"Expected `layers` to be .*, but got 'lastt'. Did you mean 'last'\?"):
        comparison.chosen(stub, ["one"], "lastt")


def in_order(cells):
    """As the table has its rows, whenever they were measured."""
    places = [(row.method, row.repulsion, row.layers) for row in ROWS]
    return sorted(cells, key=lambda cell: (places.index(cell.key[:3]), cell.seed))


def test_files_have_all_figures_and_keep_other_rows(bench, tmp_path, monkeypatch):
    stub = problem_on(bench, ROWS, columns=COLUMNS)
    assert comparison.read(tmp_path) == []
    marked = [replace(cell, oracle=["flat"]) for cell in cells_of("two", seeds=(0,))]
    comparison.write(stub, marked, tmp_path)
    cells = comparison.write(stub, cells_of("one"), tmp_path)
    assert cells == comparison.read(tmp_path) == in_order([*marked, *cells_of("one")])
    cells = comparison.write(stub, cells_of("two", shift=5.0), tmp_path)
    assert cells == comparison.read(tmp_path) == in_order([*cells_of("two", shift=5.0), *cells_of("one")])
    before = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    lines = list(csv.reader(before["results.csv"].splitlines()))
    assert lines[0] == ["problem", "method", "repulsion", "oracle", "layers", "seed", "metric", "value"]
    figures = [(*c.key, key, value) for c in cells for key, value in c.figures.items()]
    assert lines[1:] == [["tiny", m, r or "", "", v, str(s), k, repr(x)] for m, r, v, s, k, x in figures]
    for view, tables in comparison.tables(stub, cells).items():
        assert f"## {HEADINGS[view]}\n\n{tables[0].markdown()}\n" in before["tables.md"]
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        comparison.write(stub, cells_of("one", shift=5.0), tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == before


def evaluate(*arguments):
    return CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPULSE_DATA", raising=False)
    monkeypatch.setattr("sys.argv", ["repulse", "evaluate", *MISTAKES[said]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, list(tmp_path.iterdir())) == ("", [])
    assert re.fullmatch(f"repulse: {said}\n", err), err


def test_the_command_says_what_it_does_and_does_it(images, bench, monkeypatch, tmp_path):
    assert all(option in evaluate("--help").output for option in ("--methods", "--layers", "--seeds"))
    rows, folder, names = comparison.rows_for(("more static",)), tmp_path / "out" / "tiny", ["MAP", "KNN", "LL-E"]
    made = lambda root, keep, progress: problem_on(Bench(images, bench.network, keep, progress), rows)  # noqa: E731
    monkeypatch.setitem(problems.PROBLEMS, "tiny", made)
    common = ["--network", "tiny", "--data", tmp_path, "--out", tmp_path / "out"]
    done = evaluate(*common, "--methods", ",".join(names), "--seeds", 2)
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.glob("[!.]*")} == {"cells.json", "results.csv", "tables.md"}
    assert len(list((tmp_path / "out" / "cache").iterdir())) == 4
    cells = comparison.read(folder)
    assert [c.method for c in cells] == 2 * [*names, "LL-E"]  # of two seeds, as it is random
    shown = ["Rows of light"]
    for view, tables in comparison.tables(made(tmp_path, None, False), cells).items():
        shown += [HEADINGS[view], *(table.text() for table in tables)]
    assert done.stdout == "\n\n".join([*shown, f"{comparison.legend(cells)}\nWritten to {folder}.\n"])
    more = evaluate(*common, "--methods", "Energy", "--layers", "last", "--seeds", 1)
    assert [c.method for c in comparison.read(folder)] == ["MAP", "Energy", *(c.method for c in cells[1:])]
    assert all(f"\n{name} " in more.stdout for name in (*names, "Energy"))
