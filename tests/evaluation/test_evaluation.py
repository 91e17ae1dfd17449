"""One call judges any method: all metrics are those of `repulse.metrics`, and repulsion samples are no fair test."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch import nn

import repulse
from repulse import (
    CheckpointError,
    ClassPrediction,
    DataError,
    Recipe,
    RecipeError,
    RegressionPrediction,
    fit_heads,
    metrics,
    tasks,
)
from repulse.baselines import Predictor
from repulse.evaluation.compare import ORACLE, compare
from repulse.evaluation.evaluate import Evaluation, evaluate
from repulse.particles.heads import Heads

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")
QUIET = {"progress": False}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Toy(Predictor):
    """Two members, whose logits and score are read off the input; counts what it is asked for."""

    def __init__(self):
        self.sizes, self.scored = [], 0

    def predict(self, x):
        self.sizes.append(len(x))
        return ClassPrediction(torch.stack([x[:, :3], x[:, 1:4]]).log_softmax(dim=-1))

    def score(self, x):
        self.scored += 1
        return x[:, 4]


class Regression(Toy):
    def predict(self, x):
        return RegressionPrediction(x[:, :2].T, x[:, 2:4].T.square() + 0.1)


X, Y = draw(300, 5), torch.arange(300) % 3
FAR, NEAR = draw(200, 5, seed=1) + 2, draw(100, 5, seed=2)
SETS = {"far": FAR, "near": NEAR}


@pytest.fixture(scope="module")
def result():
    return evaluate(
        Toy(), (X, Y), SETS, repulsion=FAR[:50], human=draw(300, 3).abs(), bootstrap=40, name="toy", **QUIET
    )


def test_metrics_are_those_of_the_whole_prediction(result):
    p = Toy().predict(X)
    wrong = p.labels != Y
    wanted = {
        "accuracy": metrics.accuracy(p, Y),
        "nll": metrics.nll(p, Y),
        "brier": metrics.brier(p, Y),
        "ece": metrics.ece(p, Y),
        "adaptive_ece": metrics.ece(p, Y, adaptive=True),
        "aurc": metrics.aurc(p.total, wrong),
        "coverage_at_5": metrics.coverage_at_risk(p.total, wrong),
        "misclassification_auroc": metrics.misclassification_auroc(p, Y),
    }
    assert {key: value for key, value in result.id.items() if key != "human_correlation"} == pytest.approx(wanted)
    assert (result.name, result.task, result.counts) == ("toy", "classification", {"id": 300, "far": 200, "near": 100})
    assert result.milliseconds > 0
    for name, inputs in SETS.items():
        scores = (X[:, 4], inputs[:, 4])
        assert result.ood[name] == pytest.approx(
            {
                "auroc": metrics.auroc(*scores),
                "aupr_out": metrics.aupr(*scores),
                "aupr_in": metrics.aupr(*scores, positive="inside"),
                "fpr95": metrics.fpr_at_95(*scores),
            }
        )


def test_human_labels_are_compared_with_aleatoric_uncertainty():
    p = Toy().predict(X)
    found = evaluate(Toy(), (X, Y), human=p.probs, **QUIET).id["human_correlation"]
    assert found == pytest.approx(metrics.human_correlation(p.aleatoric, p.probs))
    assert math.isnan(evaluate(Toy(), (X, Y), human=torch.ones(300, 3), **QUIET).id["human_correlation"])
    with pytest.raises(DataError, match="Expected `human` to be 300 rows, one per in-distribution sample, but got 299"):
        evaluate(Toy(), (X, Y), human=p.probs[1:], **QUIET)


def test_intervals_hold_their_values(result):
    assert set(result.intervals) == {"id", "far", "near"}
    assert set(result.intervals["far"]) == set(result.ood["far"])
    for name, found in result.intervals.items():
        for key, interval in found.items():
            assert interval.value == pytest.approx((result.id if name == "id" else result.ood[name])[key])
            assert interval.low <= interval.high
    accuracy = result.intervals["id"]["accuracy"]
    assert accuracy.low < accuracy.value < accuracy.high
    assert evaluate(Toy(), (X, Y), SETS, **QUIET).intervals == {}


def test_a_set_that_was_repelled_on_is_an_oracle(result):
    assert result.oracle == {"far": 0.25}
    assert result.leaks == {}
    mapped = {"some": [FAR[:20], NEAR[:0]], "more": (FAR[20:50] * (1 + 1e-5), torch.zeros(30))}
    assert evaluate(Toy(), (X, Y), SETS, repulsion=mapped, **QUIET).oracle == {"far": 0.25}
    assert evaluate(Toy(), (X, Y), SETS, **QUIET).oracle == {}
    assert evaluate(Toy(), (X, Y), SETS, repulsion=draw(50, 5, seed=9), **QUIET).oracle == {}
    assert evaluate(Toy(), (X, Y), SETS, repulsion=FAR[:, :3], **QUIET).oracle == {}


def test_samples_in_two_places_are_told():
    mixed = {"far": torch.cat([FAR[:30], X[:10]])}
    found = evaluate(Toy(), [(X[:200], Y[:200]), (X[200:], Y[200:])], mixed, repulsion=[X[290:], NEAR], **QUIET)
    assert found.leaks == {"id in repulsion": pytest.approx(1 / 30), "far in id": 0.25}
    assert found.oracle == {}
    assert "! 25 % of far in id" in repr(found)


def test_loaders_mappings_and_tensors_are_the_same_data(result):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=70)
    sets = {"far": FAR.split(64), "near": [(NEAR, torch.zeros(100))]}
    found = evaluate(Toy(), loader, sets, **QUIET)
    assert found.ood == result.ood
    assert found.id["nll"] == pytest.approx(result.id["nll"])
    dicts = [{"x": X, "labels": Y}]

    class Named(Toy):
        def predict(self, x):
            return super().predict(x["x"])

        def score(self, x):
            return super().score(x["x"])

    method = Named()
    found = evaluate(method, dicts, {"far": {"x": FAR}, "near": [{"x": NEAR}]}, batch_size=128, **QUIET)
    assert found.ood == result.ood
    assert method.sizes == [128, 128, 44, 128, 72, 100]


def test_one_pass_is_enough():
    class Both(Toy):
        name = "both"

        def predict_and_score(self, x):
            return self.predict(x), x[:, 4] + 1

        def score(self, x):
            raise AssertionError

    method = Both()
    assert evaluate(method, (X, Y), SETS, **QUIET).name == "both"
    assert method.sizes == [300, 200, 100]
    method = Toy()
    evaluate(method, (X, Y), SETS, batch_size=100, **QUIET)
    assert method.sizes == [100] * 6
    assert method.scored == 6


def test_heads_are_predicted_once(monkeypatch):
    heads = Heads(4, 5, tasks.Classification(3), generator=torch.Generator().manual_seed(0))
    calls, forward = [], Heads.forward
    monkeypatch.setattr(Heads, "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    found = evaluate(heads, (X, Y), {"far": FAR}, **QUIET)
    assert calls == [300, 200]
    monkeypatch.undo()
    assert found.ood["far"]["auroc"] == pytest.approx(metrics.auroc(heads.score(X), heads.score(FAR)))


def test_an_ensemble_is_judged_on_inputs():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    labels = X[:, :3].argmax(dim=1)
    ensemble = repulse.retrofit(model, [(X, labels)], repulsion=[3 * FAR], recipe=Recipe(epochs=3, heads=4), **QUIET)
    test = draw(120, 5, seed=5)
    found = evaluate(ensemble, (test, labels[:120]), {"far": 3 * FAR, "near": NEAR}, repulsion=3 * FAR, **QUIET)
    assert isinstance(ensemble, Predictor)
    assert found.name == "Ensemble"
    assert found.oracle == {"far": 1.0}
    assert found.id["nll"] == pytest.approx(metrics.nll(ensemble.predict(test), labels[:120]), rel=1e-5)
    wanted = metrics.auroc(ensemble.predict(test).epistemic, ensemble.predict(NEAR).epistemic)
    assert found.ood["near"]["auroc"] == pytest.approx(wanted)


def test_regression_has_metrics_of_its_own():
    y = draw(300, 1, seed=3)
    found = evaluate(Regression(), (X, y), {"far": FAR}, bootstrap=20, **QUIET)
    p = Regression().predict(X)
    wanted = {
        "rmse": metrics.rmse(p, y[:, 0]),
        "nll": metrics.nll(p, y[:, 0]),
        "coverage_95": metrics.interval_coverage(p, y[:, 0]),
    }
    assert found.task == "regression"
    assert found.id == pytest.approx(wanted)
    assert {key: interval.value for key, interval in found.intervals["id"].items()} == pytest.approx(wanted)
    assert found.reliability["level"][9] == 0.5
    assert found.reliability["coverage"][9] == pytest.approx(metrics.interval_coverage(p, y[:, 0], 0.5))
    assert [len(table.columns) for table in compare({"r": [found]})] == [3, 1, 1]
    assert len(found.plot().axes) == 2
    heads = fit_heads(X, y[:, 0], None, Recipe(task="regression", epochs=2, heads=3), **QUIET)
    assert evaluate(heads, (X, y[:, 0]), **QUIET).id["rmse"] > 0


def test_curves_are_short_and_histograms_are_whole(result):
    assert len(evaluate(Toy(), (X[:7], Y[:7]), **QUIET).risk_coverage["risk"]) == 7
    assert len(result.risk_coverage["coverage"]) == 200
    p = Toy().predict(X)
    assert result.risk_coverage["coverage"][-1] == 1.0
    assert result.risk_coverage["risk"][-1] == pytest.approx(1 - metrics.accuracy(p, Y))
    assert sum(result.reliability["share"]) == pytest.approx(1)
    edges = result.histograms["edges"]
    assert edges == sorted(set(edges))
    for name in ("id", "far", "near"):
        assert len(result.histograms[name]) == len(edges) - 1
        assert sum(result.histograms[name]) == pytest.approx(1)


@pytest.mark.parametrize(
    "scores", [torch.zeros(300), torch.full((300,), math.inf), 10 ** (4 * draw(300)), draw(300) / 0.1]
)
def test_scores_of_any_size_have_a_histogram_and_a_figure(scores):
    inputs = torch.cat([X[:, :4], scores.unsqueeze(1)], dim=1)
    found = evaluate(Toy(), (inputs, Y), {"far": FAR}, **QUIET)
    edges = found.histograms["edges"]
    assert edges == sorted(set(edges))
    assert all(map(math.isfinite, edges))
    assert sum(found.histograms["id"]) == pytest.approx(1)
    found.plot().canvas.draw()


def test_json_comes_back(result, tmp_path):
    assert Evaluation.from_json(result.to_json()) == result
    perfect = evaluate(Toy(), (X, Toy().predict(X).labels), {"far": FAR}, **QUIET)
    assert math.isnan(perfect.id["misclassification_auroc"])
    text = perfect.to_json(tmp_path / "new" / "result.json")
    assert json.loads(text, parse_constant=pytest.fail)["id"]["misclassification_auroc"] is None
    again = Evaluation.from_json(tmp_path / "new" / "result.json")
    assert math.isnan(again.id["misclassification_auroc"])
    assert again.to_json() == text


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"format": 2}', '{"format": 1, "name": "x"}', '{"format": 1'])
def test_other_json_is_refused(text):
    with pytest.raises(CheckpointError, match="Expected `source` to be"):
        Evaluation.from_json(text)


def test_tables_compare_and_mark_oracles(result):
    other = evaluate(Toy(), (X, Y), SETS, name="other", **QUIET)
    inside, selective, auroc, fpr = compare({"toy": [result, result], "other": [other]})
    assert [column.name for column in auroc.columns] == ["far", "near", "mean"]
    assert auroc.marks == fpr.marks == {(0, 0), (0, 2)}
    lines = auroc.text().splitlines()
    assert lines[-1] == ORACLE
    assert lines[1].count("†") == 2
    assert "†" not in lines[2] + inside.text() + selective.text()
    assert auroc.mean(1, 2) == pytest.approx(50 * (other.ood["far"]["auroc"] + other.ood["near"]["auroc"]))
    assert inside.mean(0, 0) == pytest.approx(100 * result.id["accuracy"])
    assert inside.cell(1, len(inside.columns) - 1) == "–"  # no human labels there
    assert ORACLE in auroc.markdown().split("\n\n")[1]
    assert ORACLE in auroc.html()
    with pytest.raises(DataError, match="Expected `evaluations` to be at least one per method, but got none of 'x'"):
        compare({"x": []})
    with pytest.raises(DataError, match="Expected `evaluations` to be at least one per method, but got none"):
        compare({})


def test_an_oracle_is_never_the_best():
    def of(auroc, oracle):
        return Evaluation("m", "classification", {"id": 1}, {}, {"a": {"auroc": auroc, "fpr95": 0.0}}, oracle)

    oracles = {"oracle": [of(0.99, {"a": 1.0})], "equal": [of(0.9, {"a": 0.1})]}
    table = compare({"good": [of(0.9, {})], **oracles, "bad": [of(0.8, {})]})[0]
    assert [table.is_best(i, 0) for i in range(4)] == [True, False, False, False]
    assert [table.cell(i, 0) for i in range(4)] == ["90.0", "99.0 †", "90.0 †", "80.0"]


def test_one_row_and_a_summary_in_words(result):
    table = result.table()
    assert len(table.rows) == 1
    head, row, foot = table.text().splitlines()
    assert head.startswith("method")
    assert row.startswith("toy")
    assert foot == ORACLE
    assert [table.columns[j].name for _, j in sorted(table.marks)] == ["far", "mean"]
    text = repr(result)
    assert "Evaluation of toy: 300 samples" in text
    assert "far †" in text
    assert "† 25 % of far are repulsion samples" in text
    rows = [line for line in text.splitlines() if line.startswith(("  far", "  near", "  out of"))]
    assert len({len(line) for line in rows}) == 1


def test_figures_are_written(result, tmp_path):
    figure = result.plot(tmp_path / "figures" / "toy.png")
    assert (tmp_path / "figures" / "toy.png").read_bytes()[:4] == b"\x89PNG"
    assert [axis.get_title().split(":")[0] for axis in figure.axes] == [
        "Reliability",
        "Selective prediction",
        "far †",
        "near",
    ]
    result.plot(tmp_path / "toy.svg")
    assert "<svg" in (tmp_path / "toy.svg").read_text()


@pytest.fixture
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def spoilt(part, value):
    return type("Spoilt", (Toy,), {part: lambda self, x: value(x) if len(x) == 100 else getattr(Toy, part)(self, x)})()


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"method": nn.Linear(5, 3)},
            r"`method` to be something with `predict`, `score` and `predict_and_score`, but got Linear",
        ),
        (
            {"method": spoilt("score", lambda x: x[:, 4] / 0 * 0)},
            "the scores of 'near' to be free of NaN, but got 100 NaN",
        ),
        (
            {"method": spoilt("score", lambda x: x)},
            r"scores of a batch of 'near' to be of shape \(100,\), but got shape",
        ),
        ({"method": spoilt("score", lambda x: 0.5)}, r"scores of a batch of 'near'.*but got float"),
        ({"method": spoilt("predict", lambda x: x)}, "predictions for a batch of 'near' to be 100.*but got Tensor"),
        ({"method": spoilt("predict", lambda x: Toy().predict(x[1:]))}, "a batch of 'near' to be 100.*but got 99"),
        ({"id": X}, r"`id` to be \(inputs, targets\) or a loader of labelled batches, but got Tensor"),
        ({"id": None}, "`id` to be .*but got NoneType"),
        ({"id": []}, "`id` to be at least one sample, but got none"),
        ({"id": (X[:0], Y[:0])}, "`id` to be at least one sample, but got none"),
        ({"id": [X, X]}, r"batch 0 of `id` to be \(inputs, targets\)"),
        ({"id": (X, Y[:-1])}, r"targets of batch 0 of `id` to be 300, one an input, but got shape \(299,\)"),
        ({"id": (X, Y + 1)}, "`targets` to be integers from 0 to 2, but got torch.int64 from 1 to 3"),
        ({"id": (X, Y - 1)}, "`targets` to be integers from 0 to 2"),
        ({"id": (X, Y.float())}, "`targets` to be integers from 0 to 2"),
        ({"id": (X, X)}, r"`targets` to be of shape \(300,\)"),
        ({"ood": {"empty": X[:0]}}, r"`ood\['empty'\]` to be at least one sample, but got none"),
        ({"ood": {"empty": []}}, r"`ood\['empty'\]` to be at least one sample, but got none"),
        ({"ood": {"wrong": None}}, r"`ood\['wrong'\]` to be a tensor"),
        ({"ood": X}, "`ood` to be a mapping of names to inputs, but got Tensor"),
        ({"ood": {"id": X}}, "the names in `ood` to be other than 'id' and 'edges', but got 'id'"),
        ({"repulsion": X[:0]}, "`repulsion` to be at least one sample, but got none"),
        ({"repulsion": "auto"}, "`repulsion` to be a tensor"),
    ],
)
def test_wrong_input_is_named(arguments, words):
    with pytest.raises(DataError, match=rf"^Expected .*{words}") as caught:
        evaluate(**{"method": Toy(), "id": (X, Y), "ood": SETS, **QUIET, **arguments})
    assert type(caught.value) is DataError


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("arguments", [{"bootstrap": -1}, {"bootstrap": True}, {"bootstrap": 1.5}, {"batch_size": 0}])
def test_settings_are_checked(arguments):
    with pytest.raises(RecipeError, match=f"Expected `{next(iter(arguments))}` to be"):
        evaluate(Toy(), (X, Y), **arguments)


def test_the_library_does_not_import_the_report():
    script = (
        "import sys, repulse, repulse.evaluation.evaluate; "
        "sys.exit(any(n == 'matplotlib' or n.startswith('repulse_lab.report') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
