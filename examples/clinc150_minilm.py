"""Text: 150 intents on sentence embeddings, and what repelling on other text does to out-of-scope queries.

A linear classifier on all-MiniLM-L6-v2, fitted to the 15,000 training queries of CLINC150, is the network. Heads repel
on 10,000 sentences of Wikipedia, none of which is evaluated; out-of-scope queries, which are far from Wikipedia and
close to the intents, and 4,000 other sentences are out of distribution. The column "likeness" is the rank correlation,
over test and out-of-scope queries, of the score with how much a query is like Wikipedia (a linear discriminant). Needs
the data folder (REPULSE_DATA; `make data`) and `pip install 'repulse[text]'`.

    python examples/clinc150_minilm.py
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

import repulse
from repulse import FS_RLL_E, LL_E, ClassPrediction, DataError, Recipe, metrics
from repulse._files import write_whole
from repulse.backbone import Backbone, split
from repulse.evaluation.table import Column, Table
from repulse_lab.data import load
from repulse_lab.networks.sentences import SentenceClassifier, TokenBatches, minilm

COLUMNS = (
    Column("accuracy", 2, "higher"),
    Column("NLL", 3, "lower"),
    Column("ECE", 2, "lower"),
    Column("out of scope", 1, "higher"),
    Column("by total", 1, "higher"),
    Column("Wikipedia", 1, "higher"),
    Column("likeness", 2),
    Column("seconds", 1),
)
REPULSION = 10_000


@torch.no_grad()
def through(backbone: Backbone, batches: TokenBatches, name: str) -> Tensor:
    """Features of texts, in their order."""
    features = torch.cat([backbone(batch) for batch in tqdm(batches, desc=name, leave=False)])
    return features[batches.order.argsort()]


def train_classifier(layer: nn.Linear, features: Tensor, labels: Tensor) -> None:
    """Logistic regression, on features whose length is 1: as anyone would on frozen embeddings."""
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(layer(features), labels) + 3e-6 * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    layer.requires_grad_(False)


def problem(root: Path) -> tuple[dict[str, Tensor], nn.Linear, int]:
    """Features of all texts (taps last), the network's own last layer, and how many columns are taps."""
    sets = {split: load("clinc150", split, root) for split in ("train", "test", "oos", "wikipedia")}
    (train_texts, labels), (test_texts, test_labels) = (
        (sets[name].inputs, sets[name].targets) for name in ("train", "test")
    )
    wikipedia = sets["wikipedia"].inputs
    tokenizer, encoder = minilm()
    network = SentenceClassifier(encoder, 384, len(sets["train"].classes))
    train = TokenBatches(tokenizer, train_texts)
    backbone = split(network, next(iter(train)), layers="auto")
    held = wikipedia[REPULSION:]
    features = {
        "train": through(backbone, train, "train"),
        "labels": labels,
        "test": through(backbone, TokenBatches(tokenizer, test_texts), "test"),
        "test_labels": test_labels,
        "out of scope": through(backbone, TokenBatches(tokenizer, sets["oos"].inputs), "out of scope"),
        "Wikipedia": through(backbone, TokenBatches(tokenizer, held[:4000]), "Wikipedia"),
        "repulsion": through(backbone, TokenBatches(tokenizer, wikipedia[:REPULSION]), "repulsion"),
    }
    train_classifier(network.classifier, features["train"][:, : backbone.penultimate], labels)
    return features, network.classifier, backbone.width - backbone.penultimate


def figures(predict, data: dict[str, Tensor], seconds: float) -> list[float]:
    """One row of the table; the network alone, which has no epistemic uncertainty, is ranked by its entropy."""
    test, outside, other = (predict(data[name]) for name in ("test", "out of scope", "Wikipedia"))
    scores = [p.total if p.members == 1 else p.epistemic for p in (test, outside, other)]
    return [
        100 * metrics.accuracy(test, data["test_labels"]),
        metrics.nll(test, data["test_labels"]),
        100 * metrics.ece(test, data["test_labels"]),
        100 * metrics.auroc(scores[0], scores[1]),
        100 * metrics.auroc(test.total, outside.total),
        100 * metrics.auroc(scores[0], scores[2]),
        rank_correlation(
            torch.cat(scores[:2]), torch.cat([data["likeness of test"], data["likeness of out of scope"]])
        ),
        seconds,
    ]


def rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def likeness(data: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """How much each text is like the repulsion samples and unlike the training queries: Fisher's discriminant."""
    train, other = (data[name][:, :width].double() for name in ("train", "repulsion"))
    spread = torch.cov(train.T) + torch.cov(other.T)
    spread += 1e-3 * spread.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    direction = torch.linalg.solve(spread, other.mean(dim=0) - train.mean(dim=0))
    names = ("test", "out of scope", "Wikipedia")
    return {f"likeness of {name}": data[name][:, :width].double() @ direction for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the heads")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    if not os.environ.get("REPULSE_DATA"):
        sys.exit("examples/clinc150_minilm.py needs the real data: set REPULSE_DATA to its folder (see `make data`).")
    try:
        data, layer, taps = problem(Path(os.environ["REPULSE_DATA"]))
    except DataError as error:
        sys.exit(str(error))
    width = layer.in_features
    data |= likeness(data, width)
    last = {name: value[:, :width] if value.ndim == 2 else value for name, value in data.items()}
    rows = {
        "LL-E": (last, LL_E, False),
        "fs-RLL-E, strength 0.1": (last, FS_RLL_E.replace(strength=0.1), True),
        "repulse, Wikipedia, layers last": (last, Recipe(layers="last"), True),
        "repulse, nowhere": (data, Recipe(space="none"), False),
        "repulse, Wikipedia": (data, Recipe(), True),
    }
    table = Table("heads, and where they repel", COLUMNS)

    @torch.no_grad()
    def alone(features: Tensor) -> ClassPrediction:
        return ClassPrediction(layer(features).log_softmax(dim=-1).unsqueeze(0))

    table.add("network alone", [figures(alone, last, float("nan"))] * arguments.seeds)
    for name, (features, recipe, repel) in tqdm(rows.items(), desc="fits"):
        seeds = []
        for seed in range(arguments.seeds):
            begun = time.perf_counter()
            heads = repulse.fit_heads(
                features["train"],
                features["labels"],
                features["repulsion"] if repel else None,
                recipe.replace(seed=seed),
                taps=taps if features is data else 0,
                progress=False,
            )
            seeds.append(figures(heads.predict, features, time.perf_counter() - begun))
        table.add(name, seeds)
    print(table.text())
    alike = [
        100 * metrics.auroc(data["likeness of test"], data[f"likeness of {n}"]) for n in ("out of scope", "Wikipedia")
    ]
    print(
        f"likeness to Wikipedia alone: AUROC {alike[0]:.1f} out of scope, {alike[1]:.1f} other sentences of Wikipedia"
    )
    if arguments.markdown:
        write_whole(arguments.markdown, table.markdown() + "\n")


if __name__ == "__main__":
    main()
