"""Text: 150 intents on frozen sentence embeddings, and queries that are out of scope.

The network is a linear classifier on all-MiniLM-L6-v2, fitted to the training queries of CLINC150. Whatever learns from
outside samples learns from sentences of Wikipedia, which are further from the intents than out-of-scope queries are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from repulse import metrics
from repulse._tensors import read_tensors, write_tensors
from repulse.backbone import split
from repulse.baselines import METHODS, LastLayer, Resources, build
from repulse.evaluation.compare import INSIDE
from repulse.evaluation.table import Column, Table
from repulse.prediction import ClassPrediction
from repulse_lab.data import load
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.networks.sentences import ENCODER, SentenceClassifier, TokenBatches, minilm
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Line, Lines

WIKIPEDIA = "Wikipedia"
SETS = {"train": "train", "test": "test", "outside": "oos", "repulsion": "wikipedia"}
SENTENCES = {"encoder": "all-MiniLM-L6-v2", "most": 10_000}
"""The encoder, and how many sentences of Wikipedia are taken at most."""

ROWS: tuple[tuple[str, str | None, str], ...] = (
    ("MAP", None, "last"),
    ("Energy", None, "last"),
    ("DDU", None, "last"),
    ("KNN", None, "last"),
    ("ViM", None, "last"),
    ("LL-Laplace", None, "last"),
    ("discriminator", WIKIPEDIA, "last"),
    ("outlier exposure", WIKIPEDIA, "last"),
    ("LL-E", None, "last"),
    ("fs-RLL-E", WIKIPEDIA, "last"),
    ("repulse", WIKIPEDIA, "last"),
    ("repulse", WIKIPEDIA, "auto"),
)
"""Method, where it repels or what it is told is outside, and the layers it sees."""

DRAWN = ("MAP", "ViM", "fs-RLL-E", "repulse")


@work(
    "repulse.backbone",
    "repulse_lab.data.text",
    "repulse_lab.networks.sentences",
    seconds=lambda about: 60 + 0.006 * about["most"],
)
def sentences(about: Mapping[str, Any], place: Place) -> Result:
    """Compute features of all sentences, taps last, and the classifier on them, in one file."""
    texts = {name: load("clinc150", part, place.data) for name, part in SETS.items()}
    tokenizer, encoder = minilm()
    with torch.random.fork_rng(devices=[]):
        network = SentenceClassifier(encoder, 384, len(texts["train"].classes))
    few = TokenBatches(tokenizer, [str(text) for text in texts["train"].inputs[:16]])
    backbone = split(network, next(iter(few)), layers="auto")
    kept: dict[str, Tensor] = {}
    for name, data in texts.items():
        some = data.inputs[: about["most"] if name == "repulsion" else None]
        batches = TokenBatches(tokenizer, [str(text) for text in some])
        bar = tqdm(batches, desc=name, disable=not place.progress, leave=False)
        with torch.no_grad():
            features = torch.cat([backbone(batch) for batch in bar])
        kept[name] = features[batches.order.argsort()].contiguous()
        if data.targets is not None:
            kept[f"{name} labels"] = data.targets
    layer = classifier(kept["train"][:, : backbone.penultimate], kept["train labels"])
    write_tensors(path_of(about, place), {**kept, "weight": layer.weight, "bias": layer.bias})
    return {"figures": {name: float(len(features)) for name, features in kept.items() if name in SETS}}


def classifier(features: Tensor, labels: Tensor, ridge: float = 3e-6) -> LastLayer:
    """Fit logistic regression to features of unit length, as anyone would to frozen embeddings."""
    weight = torch.zeros(int(labels.max()) + 1, features.shape[1], requires_grad=True)
    bias = torch.zeros(len(weight), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(features @ weight.T + bias, labels) + ridge * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return LastLayer(weight.detach(), bias.detach())


def path_of(about: Mapping[str, Any], place: Place) -> Path:
    return place.keep / "sentences" / f"{Job(sentences, about).key}.safetensors"


def _seconds(about: Mapping[str, Any]) -> float:
    return METHODS[about["method"]].seconds * (1.8 if about["layers"] == "auto" else 1.0)


@work(
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse.metrics",
    "repulse.baselines",
    seconds=_seconds,
)
def intents(about: Mapping[str, Any], place: Place) -> Result:
    """Fit a method to the features and rank out-of-scope queries."""
    path = path_of(about["sentences"], place)
    if not path.is_file():  # the numbers of the job are kept, its file was cleared away
        sentences(about["sentences"], place)
    data = read_tensors(path)[0]
    layer = LastLayer(data["weight"], data["bias"])
    width = layer.weight.shape[1]
    taps = data["train"].shape[1] - width if about["layers"] == "auto" else 0
    seen = {name: data[name][:, : width + taps].contiguous() for name in SETS}
    method = build(about["method"], Resources(layer, seen["repulsion"], taps, about["seed"]))
    method.fit(seen["train"], data["train labels"])
    inside, score = method.predict_and_score(seen["test"])
    outside, other = method.predict_and_score(seen["outside"])
    targets = data["test labels"]
    assert isinstance(inside, ClassPrediction)
    figures = {
        "accuracy": 100 * metrics.accuracy(inside, targets),
        "nll": metrics.nll(inside, targets),
        "ece": 100 * metrics.ece(inside, targets),
        "out-of-scope auroc": 100 * metrics.auroc(score, other),
        "out-of-scope fpr95": 100 * metrics.fpr_at_95(score, other),
        "out-of-scope auroc by total": 100 * metrics.auroc(inside.total, outside.total),
    }
    return {"figures": figures, **({"roc": _roc(score, other)} if about["seed"] == 0 else {})}


def _roc(inside: Tensor, outside: Tensor, points: int = 80) -> list[list[float]]:
    """Return shares of queries flagged, inside and outside, at thresholds that are dense where few inside are."""
    at = torch.linspace(0, 1, points).square()
    thresholds = inside.double().quantile(1 - at.double())
    return [[round(float((s >= t).double().mean()), 4) for t in thresholds.to(s)] for s in (inside, outside)]


def plan(options: RunOptions) -> Plan:
    """Plan the same in both presets: there is no paper's own."""
    missing = [f"CLINC150 ({part}) is not there." for part in SETS.values() if not options.has("clinc150", part)][:1]
    if any(importlib.util.find_spec(name) is None for name in (ENCODER, "transformers")):
        missing.append("The sentence encoder is not installed; `pip install 'repulse-lab[text]'` brings it.")
    if missing:
        return Plan([], missing=missing)
    encoded = Job(sentences, SENTENCES)
    cells = [
        Cell(
            Job(intents, {"method": method, "layers": layers, "seed": seed, "sentences": SENTENCES}, needs=(encoded,)),
            {"network": "MiniLM", "method": method, "repulsion": repulsion, "layers": layers, "seed": seed},
        )
        for method, repulsion, layers in ROWS
        for seed in range(options.count(3, 5) if METHODS[method].random else 1)
    ]
    notes = [
        "The network is logistic regression on frozen embeddings; 15,000 queries to fit, 4,500 to test, 1,000 out of "
        "scope.",
        "Repelled on 10,000 sentences of Wikipedia, which nothing is judged on. With layers auto, heads also see "
        "means of earlier layers of the encoder.",
    ]
    return Plan(cells, notes)


COLUMNS = {
    **{key: INSIDE[key] for key in ("accuracy", "nll", "ece")},
    "out-of-scope auroc": Column("AUROC", 1, "higher", "Of telling out-of-scope queries by the method's own score."),
    "out-of-scope fpr95": Column("FPR@95", 1, "lower", "Queries flagged when 95 % of those out of scope are."),
    "out-of-scope auroc by total": Column("by total", 1, "higher", "AUROC by total uncertainty instead."),
}


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Put every method in one table."""
    table = Table("method", list(COLUMNS.values()), title="CLINC150: 150 intents, and queries out of scope")
    for found in groups(outcomes, "method", "repulsion", "layers").values():
        table.add(_name(found[0]), [[one.figures[key] for key in COLUMNS] for one in found])
    return [table]


def _name(outcome: Outcome) -> str:
    labels = outcome.labels
    where = f", {labels['repulsion']}" if labels["repulsion"] else ""
    return f"{labels['method']}{where}" + (", with taps" if labels["layers"] == "auto" else "")


def _percent(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    inside, outside = ([round(100 * share, 2) for share in shares] for shares in curve)
    return inside, outside


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw the left part of the ROC curves, where a detector would work."""
    drawn = [o for o in outcomes if "roc" in o.result and o.labels["method"] in DRAWN]
    lines = [Line(_name(o), *_percent(o.result["roc"])) for o in drawn]
    if not lines:
        return []
    found = "; ".join(f"{_name(o)} {o.figures['out-of-scope auroc']:.1f}" for o in drawn)
    panel = Lines(
        "", "queries in scope that are flagged (%)", "out of scope that are flagged (%)", lines,
        x_range=(0, 30), y_range=(60, 100),
    )  # fmt: skip
    caption = "CLINC150: out-of-scope queries found, against queries in scope that are flagged with them."
    return [Figure("text-roc", caption, f"ROC curves of out-of-scope queries; AUROC: {found}.", [panel])]


EXPERIMENT = Experiment(
    "text", "Are queries out of scope told from 150 intents?", "beyond the paper", plan, tables, figures
)
