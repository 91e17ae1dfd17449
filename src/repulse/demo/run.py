"""`repulse demo`: the whole job on scikit-learn's digits, as one table and one page."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from repulse import metrics
from repulse._files import write_whole
from repulse.demo import digits
from repulse.errors import FitWarning
from repulse.evaluation.page import Gallery, Page, Picture, Section
from repulse.evaluation.plots import panels, png_of, reliability_diagram, roc, save_picture, to_svg, uncertainty_map
from repulse.evaluation.table import Column, Table
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import FS_RLL_E, LL_E, Recipe
from repulse.retrofit import retrofit

NETWORK, PLAIN, JOINT, REPULSIVE = "network alone", "LL-E", "fs-RLL-E", "repulse"
VALIDATION = 150
"""Clean test digits, and as many ambiguous ones, that are kept as validation data and not judged on."""

FITS = {PLAIN: LL_E, JOINT: FS_RLL_E, REPULSIVE: Recipe()}

COLUMNS = (
    Column("accuracy", 1, "higher", "Percent of clean test digits classified correctly."),
    Column("NLL", 3, "lower", "Negative log-likelihood of clean and ambiguous test digits, in nats."),
    Column("ECE", 1, "lower", "Expected calibration error on clean and ambiguous test digits, in percent, 15 bins."),
    Column("clean/ambig.", 1, "higher", "AUROC: does aleatoric uncertainty tell ambiguous digits from clean ones?"),
    Column("clean/photo", 1, "higher", "AUROC: does epistemic uncertainty tell photographs from clean digits?"),
    Column("clean/scram.", 1, "higher", "AUROC: does epistemic uncertainty tell scrambled digits from clean ones?"),
    Column("ambig./photo", 1, "higher", "AUROC: photographs against ambiguous digits, by epistemic uncertainty."),
    Column("ambig./scram.", 1, "higher", "AUROC: scrambled against ambiguous digits, by epistemic uncertainty."),
    Column("seconds", 1, "", "Time to retrofit the trained network."),
)

Predict = Callable[[Tensor], ClassPrediction]


@dataclass(frozen=True)
class Outcome:
    """Predictions of one method for the four kinds of input, and the seconds of its fit."""

    clean: ClassPrediction
    ambiguous: ClassPrediction
    photographs: ClassPrediction
    scrambled: ClassPrediction
    seconds: float

    @property
    def inside(self) -> ClassPrediction:
        """Predictions for all in-distribution inputs: clean and ambiguous digits."""
        return Prediction.cat([self.clean, self.ambiguous])

    def groups(self) -> dict[str, ClassPrediction]:
        """Return the predictions by the name of their kind of input."""
        return {
            "clean digits": self.clean,
            "ambiguous digits": self.ambiguous,
            "photographs": self.photographs,
            "scrambled digits": self.scrambled,
        }


def run(out: Path, seeds: int = 3, map_to: Path | None = None, progress: bool = True) -> tuple[Table, Path]:
    """Train, retrofit and compare, over several seeds.

    Args:
        out: folder for the page and the numbers.
        seeds: number of repetitions, each with its own split, network and heads.
        map_to: also write the aleatoric-epistemic map to this picture file.
        progress: show a bar.

    Returns:
        The table, and the path of the page.
    """
    started = time.perf_counter()
    table = Table("method", COLUMNS)
    results: dict[str, list[list[float]]] = {name: [] for name in (NETWORK, *FITS)}
    first: tuple[digits.Digits, dict[str, Outcome]] | None = None
    with tqdm(total=(1 + len(FITS)) * seeds, desc="digits", unit="part", disable=not progress, leave=False) as bar:
        for seed in range(seeds):
            bar.set_postfix_str(f"seed {seed}: training a network")
            data, validation = _held_out(digits.load(seed))
            network = digits.train_network(data, seed)
            bar.update()
            outcomes = {NETWORK: _evaluate(data, _alone(network), 0.0)}
            for name, recipe in FITS.items():
                bar.set_postfix_str(f"seed {seed}: fitting {name}")
                loader = list(zip(data.train.split(128), data.train_labels.split(128), strict=True))
                begun = time.perf_counter()
                settings = {"recipe": recipe.replace(seed=seed), "progress": False}
                with warnings.catch_warnings():  # the table says where one is worse than the network
                    warnings.simplefilter("ignore", FitWarning)
                    ensemble = retrofit(network, loader, validation=validation, **settings)
                seconds = time.perf_counter() - begun
                outcomes[name] = _evaluate(data, ensemble.predict, seconds)  # pyright: ignore[reportArgumentType]
                bar.update()
            for name, outcome in outcomes.items():
                results[name].append(_figures(data, outcome))
            first = first or (data, outcomes)
    for name, rows in results.items():
        table.add(name, rows)
    assert first is not None
    page = _page(table, *first, seeds).write(out / "index.html")
    if map_to is not None:
        save_picture(uncertainty_maps(first[1]), map_to)
    names = [column.name for column in COLUMNS]
    record = {
        name: [
            {key: value if math.isfinite(value) else None for key, value in zip(names, row, strict=True)}
            for row in rows
        ]
        for name, rows in results.items()
    }
    took = time.perf_counter() - started
    write_whole(
        out / "results.json",
        json.dumps({"seeds": seeds, "seconds": took, "results": record}, indent=2, allow_nan=False) + "\n",
    )
    return table, page


def over_seeds(seeds: int) -> str:
    """Say what the numbers of a table are."""
    return "One seed" if seeds == 1 else f"Mean ± standard deviation over {seeds} seeds"


def _held_out(data: digits.Digits) -> tuple[digits.Digits, list[tuple[Tensor, Tensor]]]:
    """Take validation data, clean and ambiguous, from the test digits; return what is left, and the batches."""
    parts = ((data.clean, data.clean_labels), (data.ambiguous, data.ambiguous_labels))
    validation = [(images[:VALIDATION], labels[:VALIDATION]) for images, labels in parts]
    (clean, clean_labels), (ambiguous, ambiguous_labels) = ((x[VALIDATION:], y[VALIDATION:]) for x, y in parts)
    rest = {"clean": clean, "clean_labels": clean_labels}
    rest |= {"ambiguous": ambiguous, "ambiguous_labels": ambiguous_labels}
    return replace(data, **rest), validation


def _alone(network: nn.Module) -> Predict:
    @torch.no_grad()
    def predict(x: Tensor) -> ClassPrediction:
        return ClassPrediction(network(x).log_softmax(dim=-1).unsqueeze(0))

    return predict


def _evaluate(data: digits.Digits, predict: Predict, seconds: float) -> Outcome:
    images = (data.clean, data.ambiguous, data.photographs, data.scrambled)
    clean, ambiguous, photographs, scrambled = (predict(x) for x in images)
    return Outcome(clean, ambiguous, photographs, scrambled, seconds)


def _figures(data: digits.Digits, outcome: Outcome) -> list[float]:
    labels = torch.cat([data.clean_labels, data.ambiguous_labels])
    pairs = [(a, b) for a in (outcome.clean, outcome.ambiguous) for b in (outcome.photographs, outcome.scrambled)]
    return [
        100 * metrics.accuracy(outcome.clean, data.clean_labels),
        metrics.nll(outcome.inside, labels),
        100 * metrics.ece(outcome.inside, labels),
        100 * metrics.auroc(outcome.clean.aleatoric, outcome.ambiguous.aleatoric),
        *(100 * metrics.auroc(a.score, b.score) for a, b in pairs),
        outcome.seconds if outcome.seconds else float("nan"),
    ]


def uncertainty_maps(outcomes: dict[str, Outcome]):
    """Draw the aleatoric-epistemic maps of LL-E and of the default side by side."""
    draws = [uncertainty_map(outcomes[name].groups(), name) for name in (PLAIN, REPULSIVE)]
    return panels(draws, width=5.0, height=4.0, share=True)


def _page(table: Table, data: digits.Digits, outcomes: dict[str, Outcome], seeds: int) -> Page:
    labels = torch.cat([data.clean_labels, data.ambiguous_labels])
    scores = {
        name: (outcome.inside.score, torch.cat([outcome.photographs.score, outcome.scrambled.score]))
        for name, outcome in outcomes.items()
    }
    curves = [
        reliability_diagram({name: outcome.inside for name, outcome in outcomes.items()}, labels),
        roc(scores, "Out-of-distribution inputs against digits"),
    ]
    column = [c.name for c in COLUMNS].index("ambig./photo")
    rows = {name: i for i, (name, _) in enumerate(table.rows)}
    before, after = (table.mean(rows[name], column) for name in (NETWORK, REPULSIVE))
    return Page(
        title="What a digit classifier does not know",
        lead=(
            f"Telling photographs from ambiguous digits, the network alone scores an AUROC of {before:.1f}; with a "
            f"function-space repulsive ensemble in place of its last layer, {after:.1f}."
        ),
        sections=[
            Section(
                "Results",
                [
                    f"{over_seeds(seeds)}, each with its own split, network and heads; the best of a column is marked. "
                    "LL-E and fs-RLL-E are the paper's; the last row is this library's default, whose heads also see "
                    "an earlier stage of the network and repel with a kernel for each sample. AUROC in percent. "
                    "Repulsion samples: dead leaves, and phase-scrambled, swirled and sheared training digits. Neither "
                    "the photographs nor the digits with permuted pixels, on which methods are ranked, were in any "
                    "fit.",
                ],
                table=table.html(),
            ),
            Section(
                "Two kinds of doubt",
                [
                    "Each dot is an input of the first seed. Ambiguous digits belong to the right: every head sees the "
                    "ambiguity. Out-of-distribution inputs belong to the top: heads have no reason to agree on them.",
                ],
                figure=to_svg(uncertainty_maps(outcomes)),
                figure_alt="Scatter plots of epistemic against aleatoric uncertainty for LL-E and the default.",
            ),
            Section(
                "Calibration and detection",
                ["First seed. Left: clean and ambiguous test digits. Right: what is no digit against both."],
                figure=to_svg(panels(curves, width=5.0, height=4.0)),
                figure_alt="A reliability diagram and ROC curves of the methods.",
            ),
            Section(
                "The most and least certain inputs",
                ["Chosen by the default from all four kinds of test input of the first seed."],
                galleries=_galleries(data, outcomes[REPULSIVE]),
            ),
        ],
        footer=f"Made by `repulse demo --seeds {seeds}`.",
    )


def _galleries(data: digits.Digits, outcome: Outcome, count: int = 10) -> list[Gallery]:
    images = torch.cat([data.clean, data.ambiguous, data.photographs, data.scrambled])
    kinds = [kind for kind, p in outcome.groups().items() for _ in range(len(p))]
    prediction = Prediction.cat(list(outcome.groups().values()))
    aleatoric, epistemic, labels = prediction.aleatoric, prediction.epistemic, prediction.labels

    def row(title: str, score: Tensor) -> Gallery:
        pictures = []
        for i in score.argsort(descending=True)[:count].tolist():
            kind = kinds[i].removesuffix("s")
            caption = f"{kind}: {labels[i]}? a {aleatoric[i]:.2f}, e {epistemic[i]:.2f}"
            alt = f"{kind}, taken for a {labels[i]}; aleatoric {aleatoric[i]:.2f}, epistemic {epistemic[i]:.2f}"
            pictures.append(Picture(png_of(images[i]), caption, alt))
        return Gallery(title, pictures)

    return [
        row("Most certain", -prediction.total),
        row("Most aleatoric: ambiguous, and every head agrees that it is", aleatoric - epistemic),
        row("Most epistemic: heads disagree, this is no digit they know", epistemic),
    ]
