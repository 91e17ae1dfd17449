"""From a description to tables: plans, cells on small images, what is written, and the command."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from repulse import RecipeError
from repulse.errors import CheckpointError
from repulse.evaluation.table import Column, Table
from repulse.repulsion import TrainingData
from repulse_lab import cli
from repulse_lab.jobs.job import Job, Place, execute, result
from repulse_lab.jobs.runner import Tally, in_order
from repulse_lab.paper import registry
from repulse_lab.study import grid, output, problems, reproduce
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions
from repulse_lab.study.features import features_of
from repulse_lab.study.figures import Figure, Heat, Line, Lines, PointGroup, Points
from repulse_lab.study.grid import Grid, Row, code_of
from repulse_lab.study.problems import CIFAR10, DIRTY_MNIST, SETS, Images
from repulse_lab.study.tables import methods_as_columns, methods_as_rows
from repulse_lab.study.training import Network, Networks, fresh, load_network, train_network, training_job
from tiny_problem import tiny_problem

NETWORK = Network("small", "resnet20", like="WRN-28-10")
TRAINED = Network("LeNet", "lenet", "cpu-lenet", like="LeNet")


def colours(count: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def with_digits(root: Path) -> Path:
    """Put files that look like MNIST in a data folder."""
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        path = root / "MNIST" / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def small_network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 3)
        )


@pytest.fixture
def small(monkeypatch) -> Images:
    """Few images and a network that is quick, as a problem."""
    images = Images(
        colours(120, 0),
        torch.arange(120) % 3,
        colours(60, 1),
        torch.arange(60) % 3,
        outside={"textures": colours(20, 2), "noise": colours(20, 3)},
        repulsion={"textures": colours(30, 4), "training data": TrainingData()},
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )
    problem = tiny_problem(images, small_network, sets=problems.CIFAR10.sets)
    monkeypatch.setitem(problems.PROBLEMS, "tiny", problem)
    return images


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data", tmp_path / "keep")


ROWS = (
    Row("MAP"),
    Row("DDU"),
    Row("LL-E", recipe={"epochs": 1}),
    Row("fs-RLL-E", "textures", recipe={"epochs": 1}),
    Row("fs-RLL-E", "Places365"),
    Row("repulse", "training data", "auto", {"epochs": 1}, label="ours"),
    Row("DE"),
)
OTHER = Network("other", "resnet32", like="WRN-28-10")
GRID = Grid("tiny", ROWS, Networks((NETWORK, OTHER), 2), Networks((NETWORK,), 5), ("It is small.",))


@pytest.mark.usefixtures("small")
def test_a_grid_becomes_cells_and_says_what_is_missing(place: Place):
    plan = GRID.plan(RunOptions("cpu", place.data))
    named = [
        (c.labels["network"], c.labels["row"], c.labels["seed"]) for c in plan.cells if c.labels["network"] == "small"
    ]
    twice = [("small", name, seed) for name in ("LL-E", "fs-RLL-E, textures", "ours") for seed in (0, 1)]
    assert named == [("small", "MAP", 0), ("small", "DDU", 0), *twice, ("small", "DE-2", 0)]
    assert len({cell.job.key for cell in plan.cells}) == len(plan.cells) - 1  # one ensemble of both networks
    assert plan.notes == ("It is small.",)
    assert any("fs-RLL-E, Places365" in line for line in plan.missing)
    assert any(line.startswith("SVHN is not") for line in plan.missing)
    assert len(GRID.plan(RunOptions("cpu", place.data, seeds=1)).cells) < len(plan.cells)


@pytest.mark.usefixtures("small")
def test_presets_share_no_cell_of_heads(place: Place):
    small, full = (GRID.plan(RunOptions(preset, place.data)) for preset in ("cpu", "paper"))
    heads = [
        {c.job.key for c in plan.cells if c.labels["method"] in ("LL-E", "RLL-E", "fs-RLL-E")} for plan in (small, full)
    ]
    assert heads[0]
    assert heads[1]
    assert not heads[0] & heads[1]
    trained = [c.job.about["recipe"] for c in full.cells if c.labels["method"] == "LL-E"]
    assert all(recipe["epochs"] == 1 and recipe["lr"] == 1e-4 for recipe in trained)  # a change of its own stays


def test_a_network_that_is_trained_has_the_seed_of_its_cell(tmp_path: Path):
    one, two = (grid.cell_job("dirty-mnist", TRAINED, Row("LL-E"), seed, tmp_path, {}) for seed in (0, 1))
    names = [job.function.__name__ for job in in_order([one])]
    assert names == ["make_ambiguous_digits", "train_network", "compute_features", "measure"]
    assert [job.about["network_seed"] for job in (one, two)] == [0, 1]
    assert len(in_order([one, two])) == 7  # digits are made once
    published = grid.cell_job("cifar10", NETWORK, Row("LL-E"), 1, tmp_path, {})
    assert published.about["network_seed"] == 0
    assert [job.function.__name__ for job in in_order([published])] == ["compute_features", "measure"]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (5, None, [[1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3]]),
        (2, None, [[0, 1]]),
        (10, 5, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
        (3, 5, [[0, 1, 2, 3, 4]]),
    ],
)
def test_deep_ensembles_are_apart_or_leave_out_one_network_each(tmp_path, count, size, expected):
    networks = Networks((TRAINED,), count, size)
    plan = Grid("dirty-mnist", (Row("DE"),), networks, networks).plan(RunOptions("cpu", with_digits(tmp_path)))
    found = [[member["seed"] for member in cell.job.about["members"]] for cell in plan.cells]
    assert found == expected
    assert [cell.labels["seed"] for cell in plan.cells] == list(range(len(expected)))
    assert {cell.labels["method"] for cell in plan.cells} == {f"DE-{len(expected[0])}"}


def test_repulsion_on_a_problem_has_the_strength_that_was_chosen_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "REPULSION", {"dirty-mnist": {"on": "logits", "strength": 0.5}})
    rows = (Row("LL-E"), Row("fs-RLL-E", "16 patches"), Row("fs-RLL-E", "16 patches", recipe={"strength": 2.0}))
    networks = Networks((TRAINED,), 1)
    for preset, more in (("cpu", {}), ("paper", {"epochs": 30, "lr": 1e-4})):
        cells = Grid("dirty-mnist", rows, networks, networks).plan(RunOptions(preset, with_digits(tmp_path))).cells
        none, chosen, changed = (cell.job.about.get("recipe", {}) for cell in cells)
        assert "on" not in none
        assert {"on": "logits", "strength": 0.5, **more}.items() <= chosen.items()
        assert changed == {**chosen, "strength": 2.0}


def test_keys_see_the_code_of_the_method_alone():
    own = "repulse.baselines."
    assert code_of("DDU") == (f"{own}ddu", f"{own}_gaussians", f"{own}detector")
    assert code_of("fs-RLL-E") == (f"{own}heads", f"{own}last_layer")
    assert code_of("SNGP")[0] == f"{own}sngp"
    assert code_of("DE-5") == ("repulse.baselines.deep_ensemble",)


@pytest.mark.usefixtures("small")
def test_cells_measure_and_deep_ensembles_are_those_of_their_members(place: Place, small: Images):
    plan = GRID.plan(RunOptions("cpu", place.data, seeds=1))
    for job in in_order([cell.job for cell in plan.cells]):
        execute(job, place)
    found = {c.labels["row"]: result(c.job, place)["figures"] for c in plan.cells if c.labels["network"] == "small"}
    assert list(found) == ["MAP", "DDU", "LL-E", "fs-RLL-E, textures", "ours", "DE-2"]
    for figures in found.values():
        assert {"accuracy", "nll", "ece", "textures auroc", "noise fpr95", "mean auroc"} <= set(figures)
        assert all(math.isfinite(value) for value in figures.values())
        assert figures["mean auroc"] == pytest.approx((figures["textures auroc"] + figures["noise auroc"]) / 2)
    assert found["DDU"]["accuracy"] == found["MAP"]["accuracy"]
    assert found["DDU"]["textures auroc"] != found["MAP"]["textures auroc"]
    features = features_of("tiny", NETWORK.about, 0, place)
    plain = sum(weights.numel() for weights in features.network.parameters())
    last = sum(weights.numel() for weights in features.backbone.weights)
    assert (found["MAP"]["parameters"], found["DE-2"]["parameters"]) == (plain, 2 * plain)
    assert found["LL-E"]["parameters"] == plain + 9 * last  # ten heads instead of one
    assert found["ours"]["parameters"] > plain + 10 * last  # ten heads, around the last layer
    assert "parameters" not in found["DDU"]
    for key in ("accuracy", "nll", "ece"):  # both members are the same network here
        assert found["DE-2"][key] == pytest.approx(found["MAP"][key], abs=1e-4)
    right = features.network(small.prepared(small.test)).argmax(dim=1) == small.test_targets
    assert found["MAP"]["accuracy"] == pytest.approx(100 * float(right.float().mean()), abs=1e-4)


def outcomes() -> list[Outcome]:
    made = []
    for network, extra in (("A", 0.0), ("B", 10.0)):
        for row, method, repulsion, base in (
            ("MAP", "MAP", None, 80.0),
            ("LL-E", "LL-E", None, 85.0),
            ("fs-RLL-E, noise", "fs-RLL-E", "noise", 90.0),
        ):
            for seed in range(1 if method == "MAP" else 3):
                labels = {"network": network, "method": method, "repulsion": repulsion, "layers": "last", "row": row}
                figures = {"accuracy": base + extra, "noise auroc": base - seed, "ece": 100 - base}
                made.append(Outcome({**labels, "seed": seed}, f"{network}{row}{seed}", {"figures": figures}))
    return made


COLUMNS = {
    "accuracy": Column("accuracy", 1, "higher"),
    "ece": Column("ECE", 1, "lower"),
    "noise auroc": Column("noise", 1, "higher"),
    "SVHN auroc": Column("SVHN", 1, "higher"),
}


def test_methods_as_rows_one_table_per_network_and_oracles_are_not_compared():
    tables = methods_as_rows(
        outcomes(), COLUMNS, "CIFAR", lambda network, method, repulsion, key: 1.0 if method == "MAP" else None
    )
    assert [table.title for table in tables] == ["CIFAR, A", "CIFAR, B"]
    first = tables[0]
    assert [column.name for column in first.columns] == ["accuracy", "ECE", "noise"]  # nothing was judged on SVHN
    assert [name for name, _ in first.rows] == ["MAP", "LL-E", "fs-RLL-E, noise"]
    assert first.cell(2, 2) == "89.0 ± 1.0 †"
    assert [first.place(i, 2) for i in range(3)] == [1, 0, None]
    assert [first.place(i, 0) for i in range(3)] == [None, 1, 0]
    assert first.printed == {(0, 0): 1.0, (0, 1): 1.0, (0, 2): 1.0}
    assert "Repelled on other images" in first.footnote
    for name, marked in (("noise", {(2, 1), (2, 2)}), ("Tiny ImageNet", set()), ("16 patches", set())):
        means = {"accuracy": COLUMNS["accuracy"], "mean auroc": Column("mean"), f"{name} auroc": Column(name)}
        labels = {"network": "A", "method": "fs-RLL-E", "repulsion": name, "layers": "last", "row": name, "seed": 0}
        figures = {"accuracy": 90.0, "mean auroc": 80.0, f"{name} auroc": 80.0}
        plain = {**labels, "repulsion": None, "row": "LL-E"}
        found = [
            Outcome(one, str(i), {"figures": figures}) for i, one in enumerate((plain, plain | {"row": "x"}, labels))
        ]
        assert methods_as_rows(found, means)[0].marks == marked, name


def test_methods_as_columns_the_best_of_a_row():
    table = methods_as_columns(outcomes(), {"noise auroc": COLUMNS["noise auroc"]}, "network", "AUROC")
    assert [name for name, _ in table.rows] == ["A", "B"]
    assert [table.cell(0, j) for j in range(3)] == ["80.0", "84.0 ± 1.0", "89.0 ± 1.0"]
    assert [table.place(0, j) for j in range(3)] == [None, 1, 0]
    both = methods_as_columns(
        outcomes(), {k: COLUMNS[k] for k in ("accuracy", "noise auroc")}, "network, metric", "two"
    )
    assert [name for name, _ in both.rows] == ["A, accuracy", "A, noise", "B, accuracy", "B, noise"]
    deep = [
        Outcome({"network": n, "method": m, "repulsion": None, "row": m, "seed": 0}, m, {"figures": {"ece": 1.0}})
        for n, m in (("A", "DE-5"), ("B", "DE-3"))
    ]
    one = methods_as_columns(deep, {"ece": COLUMNS["ece"]}, "network", "of any size in one column")
    assert [column.name for column in one.columns] == ["DE"]
    assert [one.cell(i, 0) for i in range(2)] == ["1.0", "1.0"]


def test_a_table_in_latex_and_back_from_json():
    table = methods_as_rows(outcomes(), COLUMNS, "100 % of A & B")[0]
    latex = table.latex()
    assert latex.splitlines()[0] == "% 100 % of A & B, A"
    assert r"\begin{tabular}{lrrr}" in latex
    assert r"MAP & 80.0 & 20.0 & \underline{80.0} \\" in latex
    assert (
        r"fs-RLL-E, noise & \textbf{90.0 $\pm$ 0.0} & \textbf{10.0 $\pm$ 0.0} & 89.0 $\pm$ 1.0 $^\dagger$ \\" in latex
    )
    assert "<u>80.0</u>" in table.markdown(second=True)
    table.rows[0][1][0][1] = math.nan
    again = Table.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False)))
    assert again.text() == table.text()
    assert (again.marks, again.printed, again.title, again.across) == (table.marks, table.printed, table.title, False)
    with pytest.raises(CheckpointError, match="table"):
        Table.from_json({"columns": []})


def figure() -> Figure:
    lines = [Line("a", [0, 1, 2], [1, 2, 3], [0, 1, 2], [2, 3, 4]), Line("", [0, 1], [1, 1], dots=True)]
    heat = Heat(
        "heat", "x", "y", [[1.0, None], [10.0, 100.0]], (0, 1), (0, 2), log=True, groups=[PointGroup("", [0.5], [1])]
    )
    points = Points("points", "x", "y", [PointGroup("b", [1, 2], [3, 4], ["AA", "BB"])], (0, 3), (0, 5))
    return Figure(
        "drawn", "A caption.", "What is seen.", [Lines("lines", "x", "y", lines, diagonal=True), heat, points]
    )


def test_a_figure_comes_back_from_json_and_can_be_drawn():
    again = Figure.from_json(json.loads(json.dumps(figure().to_json(), allow_nan=False)))
    assert again.to_json() == json.loads(json.dumps(figure().to_json()))
    axes = again.picture().axes
    assert [axis.get_title() for axis in axes][:3] == ["lines", "heat", "points"]
    assert axes[0].get_lines()[1].get_ydata().tolist() == [1, 2, 3]
    assert axes[2].get_xlim() == (0, 3)
    with pytest.raises(CheckpointError, match="figure"):
        Figure.from_json({"name": "x"})


def findings() -> output.Findings:
    about = {"preset": "cpu", "command": "repulse reproduce it", "date": "2026-01-01", "minutes": 1.5}
    experiment = Experiment("it", "What is it?", "Table 9", lambda options: Plan([]), _tables, lambda found: [figure()])
    return output.collect(experiment, outcomes(), **about, notes=["One."], missing=["Two."])


def _tables(found):
    return methods_as_rows(found, COLUMNS, "CIFAR")


def test_findings_are_written_and_read_again(tmp_path: Path):
    output.write(findings(), tmp_path / "it")
    names = {str(path.relative_to(tmp_path / "it")) for path in (tmp_path / "it").rglob("*") if path.is_file()}
    pictures = {"figures/drawn.png", "figures/drawn.svg"}
    assert names == {"experiment.json", "results.csv", "tables.md", "tables.tex", *pictures}
    again = output.read(tmp_path / "it")
    assert [table.text() for table in again.tables] == [table.text() for table in findings().tables]
    assert [one.figures for one in again.outcomes] == [one.figures for one in outcomes()]
    with (tmp_path / "it" / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * len(outcomes())
    assert lines[0] == {
        **{"experiment": "it", "preset": "cpu", "network": "A", "method": "MAP", "repulsion": "", "layers": "last"},
        **{"seed": "0", "row": "MAP", "metric": "accuracy", "value": "80.0"},
    }
    page = (tmp_path / "it" / "tables.md").read_text()
    for part in ("# What is it?", "Table 9", "- One.", "- Not run: Two.", "![What is seen.](figures/drawn.png)"):
        assert part in page
    (tmp_path / "it" / "experiment.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"experiment\.json"):
        output.read(tmp_path / "it")


def test_every_experiment_plans_without_data(tmp_path: Path):
    for preset in ("cpu", "paper"):
        for experiment in registry.chosen(["all"]):
            plan = experiment.plan(RunOptions(preset, tmp_path))
            assert plan.cells or plan.missing, experiment.name
    assert [experiment.name for experiment in registry.chosen(["all"])] == list(registry.NAMES)
    with pytest.raises(RecipeError, match=r"'cifar10x'.*Did you mean 'cifar10'"):
        registry.chosen(["cifar10x"])


@pytest.mark.data
def test_every_experiment_plans_with_the_real_data(data_root: Path):
    for experiment in registry.chosen(["all"]):
        plan = experiment.plan(RunOptions("cpu", data_root))
        keys = [cell.job.key for cell in plan.cells]
        assert len(set(keys)) == len(keys) or experiment.name in ("cifar10", "human-ambiguity"), experiment.name
        assert bool(plan.cells) == (experiment.name != "cifar100"), experiment.name


@pytest.mark.data
def test_what_is_repelled_on_is_never_judged_on(data_root: Path):
    for name in DIRTY_MNIST.judged(data_root) + CIFAR10.judged(data_root):
        to_repel, to_judge = SETS[name].load(data_root)
        if to_repel is not None:
            seen = {image.numpy().tobytes() for image in to_repel}
            assert not [image for image in to_judge if image.numpy().tobytes() in seen], name
            assert len(to_judge) > 500, name
    assert set(DIRTY_MNIST.repelled(data_root)) >= {"letters", "KMNIST", "training data", "8 patches"}
    assert set(CIFAR10.judged(data_root)) < set(CIFAR10.sets)


def test_a_network_is_trained_and_loaded_again(tmp_path: Path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (256, 1, 28, 28), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.arange(256) % 10, pixels, torch.arange(256) % 10, {}, {}, (0.5,), (0.5,))
    monkeypatch.setitem(problems.PROBLEMS, "tiny", tiny_problem(images, small_network))
    place = Place(tmp_path, tmp_path)
    job = training_job("tiny", TRAINED.about, 3)
    found = train_network(job.about, place)
    loaded = load_network("tiny", TRAINED.about, 3, place)
    assert 0 <= found["figures"]["training accuracy"] <= 100
    assert not loaded.training
    start = fresh(job.about).state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in loaded.state_dict().items())


def tiny(place: Place) -> Experiment:
    def plan(options: RunOptions) -> Plan:
        made = [Cell(Job(_job, {"seed": seed}), {"row": "one", "seed": seed}) for seed in range(options.count(2, 4))]
        return Plan(made, ["Noted."], ["Missing."])

    def tables(found):
        table = Table("row", [Column("value")], title="Numbers")
        table.add("one", [[one.figures["value"]] for one in found])
        return [table]

    return Experiment("tiny", "A question?", "Table 0", plan, tables, lambda found: [figure()])


def _job(about, place):
    return {"figures": {"value": 1.0 + about["seed"]}}


_job.code, _job.seconds = (), lambda about: 60.0


@pytest.fixture
def registered(monkeypatch, place: Place):
    monkeypatch.setattr(registry, "chosen", lambda names: [] if names == ["claims"] else [tiny(place)])


@pytest.mark.usefixtures("registered")
def test_the_command_runs_writes_and_goes_on(tmp_path: Path):
    runner = CliRunner()
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "0"]
    dry = runner.invoke(cli.app, ["reproduce", "tiny", "--dry-run", *options])
    assert dry.exit_code == 0, dry.output
    assert "tiny" in dry.output
    assert "tiny: Missing." in dry.output
    assert not (tmp_path / "out").exists()
    done = runner.invoke(cli.app, ["reproduce", "tiny", *options])
    assert done.exit_code == 0, done.output
    for part in ("A question? (Table 0)", "1.5 ± 0.7", "Not run: Missing.", "2 jobs"):
        assert part in done.output
    kept = json.loads((tmp_path / "out" / "cpu" / "tiny" / "experiment.json").read_text())
    assert kept["command"] == "repulse-lab reproduce tiny --preset cpu"
    again = runner.invoke(cli.app, ["reproduce", "tiny", *options])
    assert "0 jobs" in again.output
    other = runner.invoke(cli.app, ["reproduce", "tiny", "--preset", "paper", *options])
    assert "4 jobs" in other.output  # presets never mix
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cpu", "paper"]


@pytest.mark.usefixtures("registered")
def test_the_command_tells_of_failures_and_of_a_stop(tmp_path: Path, monkeypatch):
    options = ["reproduce", "tiny", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "0"]

    def stop(*about, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", stop)
    stopped = CliRunner().invoke(cli.app, options)
    assert stopped.exit_code == 130
    assert "goes on from there" in stopped.output
    monkeypatch.setattr(reproduce, "run", lambda *about, **how: Tally(failed=[(Job(_job, {"seed": 7}), "it broke")]))
    failed = CliRunner().invoke(cli.app, options)
    assert failed.exit_code == 1
    assert "Failed: {'seed': 7}: it broke" in failed.output


@pytest.mark.usefixtures("registered")
def test_claims_are_printed_over_what_was_run(tmp_path: Path):
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "0"]
    runner = CliRunner()
    assert runner.invoke(cli.app, ["reproduce", "tiny", *options]).exit_code == 0
    said = runner.invoke(cli.app, ["reproduce", "claims", *options])
    assert said.exit_code == 0, said.output
    assert "not testable here" in said.output
    assert (tmp_path / "out" / "cpu" / "claims.json").is_file()


def test_the_list_names_every_experiment():
    said = CliRunner().invoke(cli.app, ["reproduce", "--list"])
    assert said.exit_code == 0
    assert [line.split()[0] for line in said.output.splitlines()] == list(registry.NAMES)
