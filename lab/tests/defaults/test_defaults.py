"""The room that measures the default: samples, training, measures, promises, rows that are kept, and the command."""

from __future__ import annotations

import math
import socket
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from repulse import ClassPrediction, RecipeError, RegressionPrediction
from repulse_lab import cli
from repulse_lab.defaults import report, run, tables
from repulse_lab.defaults.features import FeatureSets
from repulse_lab.defaults.measures import COLUMNS, measure
from repulse_lab.defaults.methods import METHODS, Bench
from repulse_lab.defaults.problem import BATCH, Problem, Samples, Trained, trimmed
from repulse_lab.defaults.registry import PROBLEMS, chosen
from repulse_lab.defaults.run import Results, Row, code_digest
from repulse_lab.defaults.training import Schedule, trained_network

QUICK = ["network", "network, temperature", "DE-5", "DDU", "ViM", "KNN", "LL-E", "repulse", "repulse, given samples"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Refuse every connection: problems are made of files and seeds."""

    def refuse(*args, **rest):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def clouds(seed: int, root: Path, keep: Path) -> Trained:
    """Three clouds of points, a small network, a ring around them as far set."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(count):
        targets = torch.randint(3, (count,), generator=generator)
        centres = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
        return Samples(centres[targets] + 0.7 * torch.randn(count, 2, generator=generator), targets)

    train, validation, test = drawn(120), drawn(60), drawn(80)

    def member(number):
        build = partial(small_network, 3)
        return trained_network(build, train, Schedule(60, 32, 1e-2), 10 * seed + number, keep / f"{number}.safetensors")

    far = Samples(12 * nn.functional.normalize(torch.randn(50, 2, generator=generator), dim=1))
    return Trained(
        *(member(0), train, validation, test),
        near={"shifted": Samples(drawn(50).inputs + 2.0)},  # pyright: ignore[reportOperatorIssue]
        far={"ring": far},
        repulsion=Samples(20 * torch.rand(100, 2, generator=generator) - 10),
        member=member,
    )


def small_network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, outputs))


def line(seed: int, root: Path, keep: Path) -> Trained:
    """A regression on two columns."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(count):
        x = torch.randn(count, 2, generator=generator)
        return Samples(x, x[:, 0] + 0.1 * torch.randn(count, generator=generator))

    parts = drawn(120), drawn(40), drawn(60)
    build = partial(small_network, 1)
    network = trained_network(build, parts[0], Schedule(100, 32, 1e-2, patience=100), seed, keep / "0", parts[1])
    return Trained(network, *parts, far={"far": Samples(10 + torch.randn(30, 2, generator=generator))}, unit=4.0)


CLOUDS = Problem("clouds", "three clouds", "clouds", "choosing", clouds)
LINE = Problem("line", "a line", "line", "reporting", line, "regression")


# Samples


def test_samples_give_prepared_batches_with_their_targets():
    samples = Samples(torch.arange(BATCH + 3).float(), torch.arange(BATCH + 3), lambda x: 2 * x)
    batches = list(samples)
    assert len(samples) == len(batches) == 2
    assert samples.count == BATCH + 3
    assert all(torch.equal(x, 2 * y.float()) for x, y in batches)
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(BATCH + 3))
    assert [len(x) for x in Samples(samples.inputs)] == [BATCH, 3]  # unlabelled: inputs alone


def test_at_most_draws_without_repetition_and_keeps_small_sets():
    samples = Samples(torch.arange(100), torch.arange(100))
    drawn = samples.at_most(10, seed=1)
    assert drawn.count == 10
    assert len(set(drawn.inputs.tolist())) == 10
    assert torch.equal(drawn.inputs, drawn.targets)  # pyright: ignore[reportArgumentType]
    assert samples.at_most(100) is samples


def test_token_batches_are_cut_to_their_longest_text():
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    samples = Samples({"input_ids": 7 * mask, "attention_mask": mask}, None, trimmed)
    assert samples.count == 3
    assert samples.some(slice(0, 2)).batch(torch.arange(2))["input_ids"].tolist() == [[7, 0], [7, 7]]


def test_digest_tells_inputs_targets_and_their_shapes_apart():
    x = torch.arange(6.0)
    several = [Samples(x), Samples(x.view(2, 3)), Samples(x, torch.zeros(6)), Samples(x + 1), Samples({"a": x})]
    assert len({samples.digest() for samples in several}) == len(several)
    assert Samples(x.clone()).digest() == Samples(x).digest()


# Training


def test_a_network_is_trained_once_and_again_when_its_data_or_schedule_change(tmp_path):
    train = clouds(0, tmp_path, tmp_path / "other").train
    path, schedule, build = tmp_path / "net.safetensors", Schedule(30, 32), partial(small_network, 3)
    first = trained_network(build, train, schedule, 0, path).state_dict()
    stamp = path.stat().st_mtime_ns
    again = trained_network(build, train, schedule, 0, path).state_dict()
    assert path.stat().st_mtime_ns == stamp
    assert all(torch.equal(first[name], again[name]) for name in first)
    trained_network(build, train, Schedule(31, 32), 0, path)
    assert any(not torch.equal(first[name], value) for name, value in load_file(path).items())


def test_early_stopping_takes_the_weights_with_the_smallest_validation_loss(tmp_path):
    generator = torch.Generator().manual_seed(0)
    train, validation = (
        Samples(torch.randn(n, 2, generator=generator), torch.randn(n, generator=generator)) for n in (16, 200)
    )
    build = partial(small_network, 1)

    def loss(patience):
        schedule = Schedule(2000, 16, 1e-2, patience=patience)
        network = trained_network(build, train, schedule, 0, tmp_path / f"{patience}.safetensors", validation)
        assert isinstance(validation.inputs, torch.Tensor)
        assert validation.targets is not None
        return float((network(validation.inputs).detach().squeeze(-1) - validation.targets).square().mean())

    assert loss(200) < loss(None)  # targets are noise, so the end is worse than the start


# Problems


def test_no_data_set_is_for_choosing_and_for_reporting():
    roles = {}
    for problem in PROBLEMS.values():
        roles.setdefault(problem.source, set()).add(problem.role)
    assert all(len(found) == 1 for found in roles.values())
    assert {"choosing", "reporting"} == {problem.role for problem in PROBLEMS.values()}
    assert len(PROBLEMS) >= 12
    assert sum(problem.task == "regression" for problem in PROBLEMS.values()) == 11


def test_problems_are_chosen_by_name():
    assert [problem.name for problem in chosen(["iris", "moons", "iris"])] == ["iris", "moons"]
    assert chosen([]) == chosen(["all"]) == list(PROBLEMS.values())
    with pytest.raises(RecipeError, match="Did you mean 'iris'"):
        chosen(["iriss"])


@pytest.mark.parametrize(
    "name", ["moons", "circles", "quantiles", "breast-cancer", "wine", "iris", "diabetes", "friedman-3"]
)
def test_tables_keep_their_parts_apart(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "trained_network", lambda build, *rest: build())
    trained = PROBLEMS[name].make(1, tmp_path, tmp_path)
    parts = [trained.train, trained.validation, trained.test]
    rows = [tuple(row) for part in parts for row in part.inputs.tolist()]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(rows) - len(set(rows)) <= 2  # irises and wines have one or two equal rows of their own
    assert isinstance(trained.train.inputs, torch.Tensor)
    assert torch.allclose(trained.train.inputs.mean(dim=0), torch.zeros(trained.train.inputs.shape[1]), atol=1e-4)
    for samples in (*trained.near.values(), *trained.far.values()):
        assert samples.count
        assert samples.targets is None


def test_far_rows_lie_outside():
    generator = torch.Generator().manual_seed(0)
    train, test = torch.rand(200, 3, generator=generator), torch.rand(50, 3, generator=generator).clamp(0.1, 0.9)
    box = tables.wide_box(train, generator, least=0.5)
    assert float(torch.cdist(box, train).amin()) > 0.5
    moved = tables.one_column_outside(train, test, generator)
    outside = (moved < train.amin(dim=0)) | (moved > train.amax(dim=0))
    assert bool((outside.sum(dim=1) == 1).all())


# Measures


def test_measures_of_a_classifier_by_hand(tmp_path):
    trained = clouds(0, tmp_path, tmp_path)
    trained = Trained(
        *(trained.model, trained.train, trained.validation, Samples(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))),
        near={"a": trained.test},
        far={"b": trained.test, "c": trained.test},
    )
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]])
    p = ClassPrediction(probs.log().unsqueeze(0))
    inside, outside = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0])
    judged = {
        "validation": (p, torch.arange(101.0) / 100 * 3),
        "test": (p, inside),
        "near: a": (p, outside),
        "far: b": (p, outside + 10),
        "far: c": (p, outside - 10),
    }
    found = measure(judged, trained)
    assert found["accuracy"] == 75.0
    assert math.isclose(found["NLL"], -(math.log(0.9) * 2 + math.log(0.6) + math.log(0.2)) / 4, rel_tol=1e-5)
    # by confidence: two right ones at .9, then the wrong one at .8, then a right one
    assert math.isclose(found["AURC"], 100 * (0 + 0 + 1 / 3 + 1 / 4) / 4, rel_tol=1e-5)
    assert math.isclose(found["AUROC near"], 87.5)
    assert math.isclose(found["AUROC far"], 50.0)
    assert math.isclose(found["AUROC"], (87.5 + 100 + 0) / 3)
    assert math.isclose(found["flagged"], (50 + 100 + 0) / 3)  # the threshold is 2.85


def test_measures_of_a_regression_are_in_the_units_of_the_table(tmp_path):
    trained = line(0, tmp_path, tmp_path)
    targets = trained.test.targets
    assert targets is not None
    p = RegressionPrediction((targets + 0.5).unsqueeze(0), torch.ones(1, len(targets)))
    scores = torch.zeros(len(targets))
    found = measure({"validation": (p, scores), "test": (p, scores), "far: far": (p, scores + 1)}, trained)
    assert math.isclose(found["RMSE"], 4 * 0.5, rel_tol=1e-5)
    assert found["coverage"] == 100.0
    assert math.isclose(found["NLL"], 0.5 * math.log(2 * math.pi) + 0.125 + math.log(4.0), rel_tol=1e-5)
    assert found["AUROC"] == found["AUROC far"] == 100.0
    assert math.isnan(found["AUROC near"])


def test_features_with_taps_keep_the_predictions_of_the_network(tmp_path):
    generator = torch.Generator().manual_seed(0)
    train, test = (Samples(torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 3) for n in (40, 20))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()) for i, o in ((1, 4), (4, 6), (6, 8))]
        model = nn.Sequential(*stages, nn.Flatten(), nn.Linear(8, 3)).eval()
    sets = FeatureSets(Trained(model, train, test, test), tmp_path)
    assert sets.has_taps
    wanted = torch.cat([model(inputs).detach() for inputs, _ in test])
    assert torch.allclose(sets.layer(sets.penultimate("test")), wanted, atol=1e-5)
    assert torch.allclose(sets.wide_layer(sets.with_taps("test")), wanted, atol=1e-5)
    scaled, cut = sets.with_taps("train"), sets.backbone.penultimate
    assert torch.allclose(scaled[:, cut:].mean(dim=0), torch.zeros(scaled.shape[1] - cut), atol=1e-4)
    assert len(list(tmp_path.iterdir())) == 2  # `test`, and `train` for the scales of the taps
    assert torch.equal(FeatureSets(sets.trained, tmp_path).with_taps("test"), sets.with_taps("test"))


# Promises


def rows_of(**methods: dict[str, float]) -> list[Row]:
    usual = {"accuracy": 90.0, "NLL": 0.3, "ECE": 2.0, "AUROC": 80.0}
    return [Row("clouds", 0, name.replace("_", " "), {**usual, **values}, 10_000) for name, values in methods.items()]


@pytest.mark.parametrize(
    ("ours", "kept"),
    [
        ({}, (True, True, True)),
        ({"accuracy": 89.75, "ECE": 2.04}, (True, True, True)),  # one standard error is 0.3
        ({"accuracy": 89.6}, (False, True, True)),
        ({"NLL": 0.302}, (True, False, True)),
        ({"ECE": 2.2}, (True, False, True)),
        ({"AUROC": 84.6}, (True, True, True)),
        ({"AUROC": 84.4}, (True, True, False)),
    ],
)
def test_promises_of_a_classifier(ours, kept):
    other = {"AUROC": 85.0 if "AUROC" in ours else 80.0}
    found = report.verdict(CLOUDS, rows_of(network={}, KNN=other, repulse=ours), "repulse")
    assert (found.accurate, found.calibrated, found.detects) == kept


@pytest.mark.parametrize(
    ("ours", "kept"),
    [
        ({}, (True, True)),
        ({"RMSE": 1.02}, (False, True)),
        ({"NLL": 1.1}, (True, False)),
        ({"coverage": 99.0}, (True, False)),
        ({"coverage": 96.9}, (True, True)),
    ],
)
def test_promises_of_a_regression(ours, kept):
    usual = {"RMSE": 1.0, "NLL": 1.0, "coverage": 93.0, "AUROC": 50.0}
    rows = [Row("line", 0, name, {**usual, **v}, 60) for name, v in (("network, noise", {}), ("repulse", ours))]
    found = report.verdict(LINE, rows, "repulse")
    assert (found.accurate, found.calibrated) == kept
    assert found.detects


def test_only_seeds_that_ours_has_are_compared():
    rows = [
        *rows_of(network={}, repulse={}),
        Row("clouds", 1, "network", {"accuracy": 99.0, "NLL": 0.1, "ECE": 0.1}, 9),
    ]
    assert report.verdict(CLOUDS, rows, "repulse").accurate


# Rows that are kept, and the command


def measured(results, problem=CLOUDS, methods=("network", "repulse"), say=lambda line: None):
    return list(run.run([problem], range(1), [METHODS[name] for name in methods], Path(), results, say))


@pytest.mark.usefixtures("few_steps")
def test_a_finished_row_is_not_measured_again(tmp_path, monkeypatch):
    results = Results(tmp_path, "before")
    first = measured(results)
    assert [row.method for row in first] == ["network", "repulse"]
    assert measured(results, Problem("clouds", "", "clouds", "choosing", lambda *_: pytest.fail("made"))) == []
    assert results.rows("clouds") == first
    monkeypatch.setattr(run, "code_digest", lambda: "another")  # the library has changed
    assert [row.method for row in measured(results)] == ["repulse"]


@pytest.mark.usefixtures("few_steps")
def test_labels_share_what_the_library_does_not_change(tmp_path):
    measured(Results(tmp_path, "before"))
    assert [row.method for row in measured(Results(tmp_path, "after"))] == ["repulse"]
    assert {row.code for row in Results(tmp_path, "after").rows("clouds")} == {"", code_digest()}


@pytest.mark.usefixtures("few_steps")
def test_what_fails_is_said_and_tried_again(tmp_path):
    told: list[str] = []
    torn = Problem("torn", "", "torn", "choosing", clouds, "regression")  # a classifier, taken for a regression
    assert measured(Results(tmp_path, "x"), torn, ["repulse"], told.append) == []
    assert len(told) == 1
    assert told[0].startswith("torn, repulse, seed 0: ")


@pytest.mark.usefixtures("few_steps")
def test_every_method_fills_every_column(tmp_path):
    rows = measured(Results(tmp_path, "now"), methods=QUICK)
    assert [row.method for row in rows] == QUICK
    for row in rows:
        assert all(math.isfinite(row.values[column.name]) for column in COLUMNS["classification"])
        assert math.isfinite(row.values["near: shifted"])
        assert row.test == 80
    own = {row.method: row.values for row in rows}
    for name in ("DDU", "ViM", "KNN"):
        assert own[name]["NLL"] == own["network"]["NLL"]
    assert own["network, temperature"]["accuracy"] == own["network"]["accuracy"]


def test_noise_of_the_network_is_that_of_the_validation_rows(tmp_path):
    trained = line(0, tmp_path, tmp_path)
    judged = METHODS["network, noise"].judge(Bench(trained, "regression", 0, tmp_path))
    prediction = judged["test"][0]
    assert isinstance(prediction, RegressionPrediction)
    assert prediction.members == 1
    targets, mean = trained.validation.targets, judged["validation"][0].mean  # pyright: ignore[reportAttributeAccessIssue]
    assert math.isclose(float(prediction.variances[0, 0]), float((mean - targets).square().mean()), rel_tol=1e-4)


@pytest.mark.usefixtures("few_steps")
def test_the_command_writes_tables_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(PROBLEMS, "clouds", CLOUDS)
    monkeypatch.setitem(PROBLEMS, "line", LINE)
    methods = "network;network, noise;KNN;repulse"
    command = ["defaults", "clouds", "line", "--seeds", "1", "--methods", methods, "--label", "before"]
    command += ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    made = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert made.exit_code == 0
    table = (tmp_path / "out" / "before" / "table.md").read_text(encoding="utf-8")
    assert table in made.stdout
    assert "KNN (best other)" in table
    assert table.count("**repulse**") == 2
    assert "| KNN |" in (tmp_path / "out" / "before" / "clouds.md").read_text(encoding="utf-8")
    again = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert "seed 0" not in again.output
    assert table in again.stdout
    listed = CliRunner().invoke(cli.app, ["defaults", "--list"], catch_exceptions=False).stdout
    assert len(listed.splitlines()) == len(PROBLEMS)
    with pytest.raises(RecipeError, match="Did you mean 'repulse'"):
        CliRunner().invoke(cli.app, [*command, "--methods", "repuls"], catch_exceptions=False)


def test_two_states_of_the_library_side_by_side(tmp_path):
    before, after = Results(tmp_path, "before"), Results(tmp_path, "after")
    for row in rows_of(network={}, KNN={"AUROC": 85.0}):
        before.write(row)
    before.write(rows_of(repulse={"accuracy": 80.0})[0])
    after.write(rows_of(repulse={"accuracy": 91.0})[0])
    lines = report.overview([CLOUDS], after, before).splitlines()
    assert [line.split(" | ")[3] for line in lines[2:6]] == [
        "network",
        "KNN (best other)",
        "repulse (before)",
        "**repulse**",
    ]
    assert "80.00" in lines[4]
    assert lines[5].endswith("| yes / yes / **no** |")
    assert lines[-1] == "Promises kept: accurate in 1 of 1, calibrated in 1 of 1, detects in 0 of 1."


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "methods"), [("yacht-early", ["network, noise", "repulse"]), ("digits", ["network", "KNN"])]
)
def test_real_problems_run(name, methods, data_root, tmp_path):
    results = Results(tmp_path, "now")
    rows = list(run.run([PROBLEMS[name]], [0], [METHODS[m] for m in methods], data_root, results, pytest.fail))
    assert [row.method for row in rows] == methods
    assert all(math.isfinite(row.values["AUROC far"]) for row in rows)
    if name == "digits":
        assert rows[0].values["accuracy"] > 90
