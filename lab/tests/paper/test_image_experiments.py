"""Corrupted images and the map of two doubts: plans, cells on images small enough to make here, tables and figures."""

from __future__ import annotations

import base64
import io
import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from repulse import metrics
from repulse.baselines import LastLayer
from repulse.prediction import ClassPrediction
from repulse.repulsion import PatchShuffle
from repulse_lab.data.corruptions import KINDS, SEVERITIES, corrupt
from repulse_lab.data.registry import about as entry
from repulse_lab.jobs.job import Place, execute, result
from repulse_lab.jobs.runner import in_order
from repulse_lab.paper import cifar10, corrupted, corruption, curves, uncertainty_map
from repulse_lab.study import problems
from repulse_lab.study.cells import Members, fit_method
from repulse_lab.study.experiment import Outcome, RunOptions
from repulse_lab.study.features import LazyFeatures, View
from repulse_lab.study.figures import Figure
from repulse_lab.study.measures import Trial
from repulse_lab.study.problems import Images, LabelledPairs
from tiny_problem import tiny_problem

COUNT = 24
WHAT = {"problem": "cifar10", "count": COUNT, "published": False}
FEW = ("gaussian_noise", "fog", "saturate")
FIRST, SECOND = {"name": "resnet20"}, {"name": "resnet32"}

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


# Plans.


def lay_out(root, *parts):
    """Empty files in the place of data sets: enough for a plan, and whoever reads them fails."""
    for name, split in parts:
        for path in entry(name).layouts(split)[0]:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()


@pytest.fixture
def photos(tmp_path):
    lay_out(tmp_path, ("cifar10", "train"), ("tiny-imagenet", "repulsion"), ("tiny-imagenet", "evaluation"))
    for name in ("resnet20-12fca82f.th", "resnet32-d509ac18.th"):
        (tmp_path / "weights").mkdir(exist_ok=True)
        (tmp_path / "weights" / name).touch()
    return tmp_path


def counts(plan):
    rows = [cell.labels["row"] for cell in plan.cells]
    return {row: rows.count(row) for row in dict.fromkeys(rows)}


def test_corruption_plans_random_methods_three_times_and_one_job_a_network_and_corruption(photos):
    plan = corruption.plan(RunOptions("cpu", photos))
    heads = {f"fs-RLL-E, {name}": 3 for name in ("training data", "16 patches", "Tiny ImageNet")}
    others = {"MAP": 1, "SNGP": 3, "LL-Laplace": 3, "DE-2": 1, "LL-E": 3}
    own = {"repulse, Tiny ImageNet, without taps": 3, "repulse, Tiny ImageNet": 3}
    assert counts(plan) == {**others, **heads, **own}
    assert {cell.labels["network"] for cell in plan.cells} == {"ResNet-20"}
    seen = {cell.labels["row"]: cell.labels["layers"] for cell in plan.cells if cell.labels["method"] == "repulse"}
    assert list(seen.values()) == ["last", "auto"]
    kept = [job for job in in_order([cell.job for cell in plan.cells]) if job.function is corrupted.corrupt_images]
    assert len(kept) == 2 * (len(KINDS) + 1)
    assert all(job.about["count"] == 1000 and not job.about["published"] for job in kept)
    assert sum(job.seconds for job in kept) < 600
    assert any("made here" in note for note in plan.notes)
    assert [one for one in plan.missing if "CIFAR-100-C" in one]


def test_corruption_at_full_size_trains_wide_networks_and_leaves_half_to_calibrate(photos):
    plan = corruption.plan(RunOptions("paper", photos))
    assert counts(plan)["MAP"] == counts(plan)["repulse, Tiny ImageNet"] == 10
    assert counts(plan)["DE-5"] == 2
    assert all(cell.job.about["count"] == 5000 for cell in plan.cells)
    trained = [job for job in in_order([c.job for c in plan.cells]) if job.function.__name__ == "train_network"]
    assert {job.about["network"]["name"] for job in trained} == {"wrn28-10"}
    assert len(trained) == 10
    assert len(corruption.plan(RunOptions("paper", photos, seeds=2)).cells) == 2 * 10


def test_published_corruptions_and_cifar100_are_taken_where_they_are(photos):
    before = corruption.plan(RunOptions("cpu", photos))
    lay_out(photos, *(("cifar10-c", f"{kind}-1") for kind in KINDS), ("cifar100", "train"))
    after = corruption.plan(RunOptions("cpu", photos))
    assert all(cell.job.about["published"] for cell in after.cells if cell.labels["collection"] == "CIFAR-10-C")
    assert not {cell.job.key for cell in before.cells} & {cell.job.key for cell in after.cells}
    assert not [note for note in after.notes if "CIFAR-10-C" in note and "made here" in note]
    assert [cell for cell in after.cells if cell.labels["collection"] == "CIFAR-100-C"]
    assert not after.missing


def test_without_data_nothing_is_planned_and_the_plan_says_why(tmp_path):
    for module, name in ((corruption, "cifar10"), (uncertainty_map, "mnist")):
        plan = module.plan(RunOptions("cpu", tmp_path))
        assert not plan.cells
        assert any(name in one for one in plan.missing)


def test_without_repulsion_images_the_other_rows_are_planned(photos):
    for path in [path for path in photos.rglob("*") if "tiny" in str(path.relative_to(photos)) and path.is_file()]:
        path.unlink()
    plan = corruption.plan(RunOptions("cpu", photos))
    assert "fs-RLL-E, 16 patches" in counts(plan)
    assert not [row for row in counts(plan) if "Tiny" in row]
    assert [one for one in plan.missing if "repulse, Tiny ImageNet" in one]


@pytest.mark.parametrize(
    ("preset", "network", "seeds", "ensembles"),
    [("cpu", "LeNet", 5, {"DE-4": 5}), ("paper", "ResNet-18", 10, {"DE-5": 2})],
)
def test_the_map_has_four_methods(tmp_path, preset, network, seeds, ensembles):
    lay_out(tmp_path, ("mnist", "train"), *((name, "test") for name in ("mnist", "kmnist", "fashion-mnist")))
    plan = uncertainty_map.plan(RunOptions(preset, tmp_path))
    heads = dict.fromkeys(("LL-E", "fs-RLL-E, 8 patches", "repulse, synthetic images"), seeds)
    assert counts(plan) == {**ensembles, **heads}
    assert {cell.labels["network"] for cell in plan.cells} == {network}
    assert {cell.job.function for cell in plan.cells} == {uncertainty_map.map_uncertainty}
    assert [one for one in plan.missing if one.startswith("Omniglot")]
    assert not [one for one in plan.missing if one.startswith("EMNIST")]


def assert_kept(figure):
    """A figure is the same after it was written and read."""
    kept = json.dumps(figure.to_json(), allow_nan=False)
    assert json.dumps(Figure.from_json(json.loads(kept)).to_json()) == kept


# Corrupted images.


def network_of(name):
    width = int(name[6:]) // 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        stages = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()) for i, o in ((3, 4), (4, 6))]
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        return nn.Sequential(*stages, pooled, nn.Linear(24, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (260, 3, 32, 32), generator=generator, dtype=torch.uint8)
    targets = torch.randint(3, (260,), generator=generator)
    outside, repulsion = {"static": pixels[:10]}, {"Tiny ImageNet": pixels[10:40], "16 patches": PatchShuffle(16)}
    return Images(pixels[:160], targets[:160], pixels[200:], targets[200:], outside, repulsion, (0.5,) * 3, (0.3,) * 3)


@pytest.fixture
def place(images, tmp_path, monkeypatch):
    """A place in which these images are CIFAR-10 and two tiny networks the published ones."""
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 60)
    monkeypatch.setattr(corrupted, "KINDS", FEW)
    monkeypatch.setitem(problems.PROBLEMS, "cifar10", tiny_problem(images, network_of, "cifar10"))
    return Place(tmp_path / "data", tmp_path / "keep")


def keep_all(place, *networks):
    for network in networks:
        for kind in ("clean", *FEW):
            execute(corrupted.corruption_job(WHAT, network, 0, kind), place)


def expected_figures(images, *names):
    """By the networks themselves, on images corrupted here."""

    def predicted(batch):
        logits = [network_of(name)(images.prepared(batch)).log_softmax(dim=-1) for name in names]
        return ClassPrediction(torch.stack(logits).detach())

    batch, targets = images.test[:COUNT], images.test_targets[:COUNT]
    fog = predicted(corrupt(batch, "fog", 3))
    return {
        "nll severity 0": metrics.nll(predicted(batch), targets),
        "ece fog 3": 100 * metrics.ece(fog, targets),
        "accuracy fog 3": 100 * metrics.accuracy(fog, targets),
        "nll severity 2": statistics.fmean(metrics.nll(predicted(corrupt(batch, k, 2)), targets) for k in FEW),
    }


def test_networks_alone_and_together_are_judged_as_if_they_saw_the_images(images, place):
    keep_all(place, FIRST, SECOND)
    alone = {**WHAT, "network": FIRST, "network_seed": 0, "seed": 0, "method": "MAP", "layers": "last"}
    both = {**WHAT, "members": [{"network": FIRST, "seed": 0}, {"network": SECOND, "seed": 0}], "method": "DE-2"}
    for about, names in ((alone, ["resnet20"]), (both, ["resnet20", "resnet32"])):
        found = corrupted.judge_under_corruption(about, place)["figures"]
        for key, value in expected_figures(images, *names).items():
            assert found[key] == pytest.approx(value, rel=1e-4), key
        assert found["nll mean"] == pytest.approx(statistics.fmean(found[f"nll severity {s}"] for s in SEVERITIES))
        assert ("epistemic severity 5" in found) == (len(names) > 1)
        assert not [key for key in found if "fog 2" in key or "_" in key]


def test_heads_see_corrupted_taps_as_they_saw_those_of_clean_images(images, place):
    keep_all(place, FIRST)
    about = {**WHAT, "network": FIRST, "network_seed": 0, "seed": 0, "method": "repulse", "layers": "auto"}
    about["repulsion"] = "Tiny ImageNet"
    found = corrupted.judge_under_corruption(about, place)["figures"]
    trial, _ = fit_method(about, place)
    assert trial.view.taps
    assert trial.method.calibrates
    trial.method.calibrate(trial.view.test[COUNT:], images.test_targets[COUNT:])  # on images that are not judged
    clean = trial.method.predict(trial.view.test[:COUNT])
    assert found["nll severity 0"] == pytest.approx(metrics.nll(clean, images.test_targets[:COUNT]), rel=1e-3)
    assert found["epistemic severity 0"] == pytest.approx(float(clean.epistemic.mean()), rel=1e-3)
    assert found["epistemic severity 5"] > 0


def test_published_files_are_read_block_by_block(images, place):
    pixels = np.random.default_rng(0).integers(0, 256, (5 * 40, 32, 32, 3), dtype=np.uint8)
    (place.data / "CIFAR-10-C").mkdir(parents=True)
    np.save(place.data / "CIFAR-10-C/fog.npy", pixels)
    np.save(place.data / "CIFAR-10-C/labels.npy", np.tile(np.arange(40) % 3, 5))
    job = corrupted.corruption_job({**WHAT, "published": True}, SECOND, 0, "fog")
    execute(job, place)
    assert result(job, place) == {"figures": {"images": COUNT}}
    kept = load_file(place.keep / "corrupted" / f"{job.key}.safetensors")
    network, block = network_of("resnet32"), torch.from_numpy(pixels[80 : 80 + COUNT]).permute(0, 3, 1, 2)
    torch.testing.assert_close(network[-1](kept["features 3"]), network(images.prepared(block)))
    assert kept["targets"].tolist() == [i % 3 for i in range(COUNT)]


@pytest.mark.data
def test_kept_features_have_the_logits_of_the_published_network(data_root, tmp_path):
    job = corrupted.corruption_job({**WHAT, "count": 16}, FIRST, 0, "brightness")
    execute(job, Place(data_root, tmp_path))
    kept = load_file(tmp_path / "corrupted" / f"{job.key}.safetensors")
    network = corrupted.load_network("cifar10", FIRST, 0, Place(data_root, tmp_path))
    logits = network.linear(kept["features 1"][:, :64])
    assert kept["features 1"].shape[1] > 64
    assert (logits.argmax(dim=1) == kept["targets"]).float().mean() > 0.7
    with torch.no_grad():
        found = [network.linear(kept[f"features {s}"][:, :64]).log_softmax(dim=1) for s in (1, 5)]
    right = [float(each[range(16), kept["targets"]].mean()) for each in found]
    assert right[0] > right[1]


def outcome(method, seed, repulsion=None, **values):
    labels = {"network": "ResNet-20", "method": method, "repulsion": repulsion, "layers": "last", "seed": seed}
    labels |= {"row": f"{method}, {repulsion}" if repulsion else method, "collection": "CIFAR-10-C"}
    return Outcome(labels, "", values)


def invented(base, epistemic=True):
    """Figures of a method that gets worse by one with each severity, and more so under fog."""
    found = {("clean", 0): {"nll": base, "ece": base}}
    for kind in KINDS:
        for s in SEVERITIES:
            found[kind, s] = {"nll": base + s + (19 if kind == "fog" else 0), "ece": base + s}
    for figures in found.values():
        figures |= {"accuracy": 90.0, **({"epistemic": 0.1} if epistemic else {})}
    return corrupted.summary(found)


def invented_outcomes():
    rows = [("MAP", None, 1), ("SNGP", None, 3), ("DE-2", None, 1), ("LL-E", None, 3), ("fs-RLL-E", "16 patches", 3)]
    rows += [("fs-RLL-E", "Tiny ImageNet", 3), ("repulse", "Tiny ImageNet", 3)]
    return [
        outcome(m, s, r, figures=invented(i + s, m not in ("MAP", "SNGP")))
        for i, (m, r, n) in enumerate(rows)
        for s in range(n)
    ]


def test_means_are_over_corruptions_then_severities():
    figures = invented(2.0)
    assert figures["nll severity 0"] == 2
    assert figures["nll severity 4"] == pytest.approx(2 + 4 + 1)
    assert figures["nll fog 5"] == 2 + 5 + 19
    assert figures["ece mean"] == pytest.approx(5)
    assert "ece fog 2" not in figures


def test_tables_of_corruption_have_severities_as_columns():
    nll, ece, accuracy, epistemic = corruption.tables(invented_outcomes())
    assert [column.name for column in nll.columns] == ["clean", *"12345", "mean"]
    assert [table.columns[0].better for table in (nll, ece, accuracy, epistemic)] == ["lower", "lower", "higher", ""]
    assert [name for name, _ in ece.rows][:3] == ["MAP", "SNGP", "DE-2"]
    assert ece.cell(1, 1) == "3.00 ± 1.00"  # 1 + seed + severity
    assert [name for name, _ in epistemic.rows][:2] == ["DE-2", "LL-E"]
    assert "NLL" in nll.title
    assert "ResNet-20" in nll.title


def test_figures_of_corruption_give_a_method_one_colour_and_many_seeds_a_band():
    curves, ece, nll = corruption.figures(invented_outcomes())
    names = [[line.name for line in panel.lines] for panel in curves.panels]
    assert names[0] == names[1] == ["repulse, Tiny ImageNet", "DE-2", "MAP", "SNGP"]
    assert names[2] == names[0][: len(names[2])] == ["repulse, Tiny ImageNet", "DE-2"]
    assert names[3] == ["repulse, Tiny ImageNet", "LL-E", "fs-RLL-E, 16 patches", "fs-RLL-E, Tiny ImageNet"]
    line = curves.panels[1].lines[3]
    assert (list(line.x), line.y[0], line.low[0], line.high[0]) == ([0, *SEVERITIES], 2, 1, 3)
    assert not curves.panels[1].lines[2].low
    assert len(ece.panels) == len(nll.panels) == 20
    fog = next(panel for panel in nll.panels if panel.title == "fog")
    assert [line.name for line in fog.lines] == [""] * 5
    assert (list(fog.lines[1].x), list(fog.lines[1].y)) == ([0, 1, 3, 5], [0, 20, 22, 24])  # MAP: severity + 19
    for figure in (curves, ece, nll):
        assert_kept(figure)
    assert len(curves.picture().axes) == 6


# The map.


def test_counts_are_those_of_numpy_and_nothing_is_lost():
    generator = torch.Generator().manual_seed(0)
    a, e = 2.3 * torch.rand(2, 500, generator=generator)
    wanted, _, _ = np.histogram2d(e.double().numpy(), a.double().numpy(), 50, [[0, 2.31]] * 2)
    assert np.abs(np.array(uncertainty_map.histogram(a, e)) - wanted).sum() <= 2  # a bin's edge in float32
    assert sum(map(sum, uncertainty_map.histogram(10 * a, 10 * e))) == 500


@pytest.fixture
def mapped(monkeypatch, tmp_path):
    """Two heads on two features: their logits agree on the first, and differ in sign on the second."""
    generator = torch.Generator().manual_seed(0)
    sets = {name: torch.randn(30, 2, generator=generator) for name in ("KMNIST", "FashionMNIST", "Omniglot", "letters")}
    test = torch.randn(50, 2, generator=generator)
    pixels = torch.randint(256, (50, 1, 28, 28), generator=generator, dtype=torch.uint8)
    images = Images(
        pixels,
        torch.zeros(50),
        pixels,
        torch.zeros(50),
        dict.fromkeys(sets, pixels[:30]),
        {},
        (0.1,),
        (0.3,),
        pairs=LabelledPairs(20, torch.zeros(0), torch.zeros(0)),
    )
    layers = [LastLayer(torch.tensor([[1.0, sign], [0.0, 0.0]]), torch.zeros(2)) for sign in (1.0, -1.0)]
    view = View(
        test[:0].repeat(1, 2),
        test.repeat(1, 2),
        {n: x.repeat(1, 2) for n, x in sets.items()},
        LazyFeatures({}),
        0,
        lambda: layers[0],
        layers[0],
    )
    monkeypatch.setattr(uncertainty_map, "fit_method", lambda about, place: (Trial(Members(layers), images, view), 0.0))
    found = [uncertainty_map.map_uncertainty({"seed": s, "method": "DE-2"}, Place(tmp_path, tmp_path)) for s in (0, 1)]
    return found, test, pixels


def two_heads(features):
    """Aleatoric and epistemic uncertainty, from the probabilities of both heads."""
    p = torch.stack([torch.sigmoid(features[:, 0] + sign * features[:, 1]) for sign in (1, -1)]).double()

    def entropy(q):
        return -(q * q.log() + (1 - q) * (1 - q).log())

    return entropy(p).mean(dim=0), entropy(p.mean(dim=0)) - entropy(p).mean(dim=0)


def test_the_map_has_means_counts_and_for_the_first_seed_points_with_their_images(mapped):
    (first, second), test, pixels = mapped
    aleatoric, epistemic = two_heads(test[20:])
    assert first["figures"]["aleatoric ambiguous mean"] == pytest.approx(float(aleatoric.mean()), rel=1e-4)
    assert first["figures"]["epistemic ambiguous mean"] == pytest.approx(float(epistemic.mean()), rel=1e-4)
    share = 100 * epistemic.mean() / (aleatoric.mean() + epistemic.mean())
    assert first["figures"]["epistemic ambiguous share"] == pytest.approx(float(share), rel=1e-4)
    assert len(first["figures"]) == 3 * 5  # not of the letters
    sizes = {name: sum(map(sum, rows)) for name, rows in first["counts"].items()}
    assert sizes == {"MNIST": 20, "ambiguous": 30, "FashionMNIST": 30}
    points = first["points"]["ambiguous"]
    for x, y, picture in zip(points["x"], points["y"], points["images"], strict=True):
        seen = torch.from_numpy(np.array(Image.open(io.BytesIO(base64.b64decode(picture)))))
        (at,) = (pixels[20:, 0] == seen).all(dim=(1, 2)).nonzero().flatten().tolist()
        assert (x, y) == pytest.approx((float(aleatoric[at]), float(epistemic[at])), abs=1e-3)
    assert len(points["x"]) == 30
    assert second["points"] == {"MNIST": {}, "ambiguous": {}, "FashionMNIST": {}}


def test_maps_are_tabled_over_seeds_and_drawn_of_the_first(mapped):
    labels = {"network": "LeNet", "method": "LL-E", "repulsion": None, "layers": "last", "row": "LL-E"}
    outcomes = [Outcome({**labels, "seed": s}, "", found) for s, found in enumerate(mapped[0])]
    other = {**labels, "method": "DE-5", "row": "DE-5", "seed": 0}
    outcomes.append(replace(outcomes[0], labels=other))
    aleatoric, epistemic, share = uncertainty_map.tables(outcomes)
    assert [c.name for c in epistemic.columns] == ["MNIST", "ambiguous", "KMNIST", "FashionMNIST", "Omniglot"]
    assert len(aleatoric.rows[0][1]) == 2
    assert share.mean(1, 1) == pytest.approx(mapped[0][0]["figures"]["epistemic ambiguous share"])
    heats, points = uncertainty_map.figures(outcomes)
    assert [panel.title for panel in heats.panels][3:5] == ["DE-5: MNIST", "DE-5: ambiguous MNIST"]
    assert len({panel.most for panel in heats.panels}) == 1
    drawn = [v for row in heats.panels[0].values for v in row if v is not None]
    assert sum(drawn) == 20
    assert min(drawn) > 0
    assert [len(group.images) for group in points.panels[0].groups] == [20, 30, 30]
    for figure in (heats, points):
        assert_kept(figure)
        figure.picture()
    assert uncertainty_map.figures(outcomes[1:2]) == []


# Curves.


def test_curves_stand_beside_the_table_and_change_nothing_in_it(photos):
    plan = cifar10.plan(RunOptions("cpu", photos))
    drawn = [cell for cell in plan.cells if cell.labels.get("beyond")]
    assert {cell.labels["row"] for cell in drawn} == {*cifar10.DRAWN, "DE-2"}
    figures = {"accuracy": 90.0, "mean auroc": 80.0}
    risk = [0.001 * i for i in range(len(curves.COVERAGES))]
    outcomes = []
    for cell in plan.cells:
        off = 0.1 * cell.labels["seed"]
        bins = [None] * 10 + [0.7, 0.75, 0.83, 0.9, 0.98]
        line = {"confidence": bins, "accuracy": [b and b - off for b in bins], "risk": [r + off for r in risk]}
        kept = {"figures": {}, **line} if cell.labels.get("beyond") else {"figures": figures}
        outcomes.append(Outcome(cell.labels, cell.job.key, kept))
    table = cifar10.tables(outcomes)[0]
    assert [name for name, _ in table.rows][:2] == ["MAP", "Energy"]
    assert len(table.rows) == len({c.labels["row"] for c in plan.cells})
    (figure,) = cifar10.figures(outcomes)
    assert [panel.title for panel in figure.panels][:2] == ["ResNet-20: reliability", "ResNet-20: selection"]
    reliability, selection = (panel.lines[2] for panel in figure.panels[:2])  # three seeds of heads
    assert reliability.x == pytest.approx([0.7, 0.75, 0.83, 0.9, 0.98])
    assert reliability.y == pytest.approx([x - 0.1 for x in reliability.x])
    assert selection.y[0] == pytest.approx(10.0)
    assert selection.high[0] - selection.low[0] == pytest.approx(20.0)
    assert Figure.from_json(json.loads(json.dumps(figure.to_json()))).panels[0].lines[2].y == reliability.y
    assert cifar10.figures([one for one in outcomes if not one.labels.get("beyond")]) == []
