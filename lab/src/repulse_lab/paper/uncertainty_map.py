"""Two kinds of doubt on one map: aleatoric to the right, epistemic upwards; of digits, ambiguous ones, and clothes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repulse.evaluation.plots import png_of
from repulse.evaluation.table import Column, Table
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study import presets
from repulse_lab.study.cells import CODE, fit_method
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Heat, PointGroup, Points
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.problems import DIRTY_MNIST
from repulse_lab.study.tables import methods_as_rows
from repulse_lab.study.training import Networks

EXTENT = (0.0, 2.31)
"""Nats on both axes: up to log 10, beyond which the sum of both cannot be; the paper stops at 1.8 and 2."""
BINS = 50
SAMPLED = 120
"""Points of each set on the map that shows its images."""
SETS = {"MNIST": "MNIST", "ambiguous": "ambiguous MNIST", "FashionMNIST": "FashionMNIST"}
"""Sets that are drawn, with their titles; of the others, only means are taken."""
AXES = ("aleatoric uncertainty (nats)", "epistemic uncertainty (nats)")

GRID = Grid(
    "dirty-mnist",
    (Row("DE"), Row("LL-E"), Row("fs-RLL-E", "8 patches"), Row("repulse", "synthetic images", "auto")),
    cpu=Networks((presets.LENET,), 5),
    paper=Networks(presets.PAPER_DIGITS.networks[-1:], 10, members=5),
    notes=(
        "LeNets, trained for 8 epochs, stand in for ResNet-18. Deep ensembles leave out one of five, each in turn.",
        f"Heads: {presets.heads_note('dirty-mnist')}",
        "The paper has no row for repulse, our default, which repels on images made of the training data.",
    ),
)


@work(
    *CODE,
    "repulse_lab.study.cells",
    "repulse.evaluation.plots",
    seconds=lambda about: 8.0 if about["method"] == "repulse" else 4.0,
)
def map_uncertainty(about: Mapping[str, Any], place: Place) -> Result:
    """Find where each set lies on the map: means, counts in bins and, for the first seed, some points with images."""
    trial, _ = fit_method(about, place)
    assert trial.images.pairs is not None
    clean = trial.images.pairs.clean
    test, outside = trial.sets()
    samples = {"MNIST": test[:clean], "ambiguous": test[clean:]} | {
        name: outside[name] for name in DIRTY_MNIST.averaged if name in outside
    }
    pictures = {"MNIST": trial.images.test[:clean], "ambiguous": trial.images.test[clean:], **trial.images.outside}
    figures: dict[str, float] = {}
    counts, points = {}, {}
    for name, features in samples.items():
        prediction = trial.method.predict(features)
        aleatoric, epistemic = prediction.aleatoric, prediction.epistemic
        means = float(aleatoric.double().mean()), float(epistemic.double().mean())
        figures |= {f"aleatoric {name} mean": means[0], f"epistemic {name} mean": means[1]}
        figures[f"epistemic {name} share"] = 100 * means[1] / (means[0] + means[1])
        if name in SETS:
            counts[name] = histogram(aleatoric, epistemic)
            points[name] = _sample(aleatoric, epistemic, pictures[name]) if about["seed"] == 0 else {}
    return {"figures": figures, "counts": counts, "points": points}


def histogram(aleatoric: Tensor, epistemic: Tensor) -> list[list[int]]:
    """Count in square bins, rows from bottom to top.

    Examples:
        >>> counts = histogram(torch.tensor([0.0, 2.3, 2.3]), torch.tensor([0.0, 0.0, 0.01]))
        >>> counts[0][0], counts[0][-1], sum(map(sum, counts))
        (1, 2, 3)
    """
    across, up = ((x / EXTENT[1] * BINS).long().clamp(0, BINS - 1) for x in (aleatoric, epistemic))
    return torch.bincount(up * BINS + across, minlength=BINS**2).view(BINS, BINS).tolist()


def _sample(aleatoric: Tensor, epistemic: Tensor, pictures: Tensor) -> dict[str, list[Any]]:
    """Choose some points, the same ones for every method, and their images as base64 PNG."""
    chosen = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))[:SAMPLED]
    x, y = ([round(value, 4) for value in of[chosen].tolist()] for of in (aleatoric, epistemic))
    images = [base64.b64encode(png_of(picture / 255)).decode() for picture in pictures[chosen]]
    return {"x": x, "y": y, "images": images}


def plan(options: RunOptions) -> Plan:
    """Plan the cells of the grid, mapped instead of measured."""
    planned = GRID.plan(options)
    missing = [
        one for one in planned.missing if "neither judged" not in one or one.startswith(tuple(DIRTY_MNIST.averaged))
    ]
    cells = [
        Cell(Job(map_uncertainty, cell.job.about, cell.job.needs, cell.job.code), cell.labels) for cell in planned.cells
    ]
    return Plan(cells, planned.notes, missing)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Show means of both kinds on every set, and how much of the sum is epistemic."""
    names = {"MNIST": "MNIST", "ambiguous": "ambiguous", **{name: name for name in DIRTY_MNIST.averaged}}
    kinds = {
        "Mean aleatoric uncertainty, nats": ("aleatoric {} mean", 3),
        "Mean epistemic uncertainty, nats": ("epistemic {} mean", 3),
        "Share of both that is epistemic, per cent": ("epistemic {} share", 1),
    }
    return [
        table
        for title, (key, digits) in kinds.items()
        for table in methods_as_rows(
            outcomes, {key.format(name): Column(head, digits) for name, head in names.items()}, title
        )
    ]


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw, of the first seed of each method, histograms, and points with their images."""
    first = [one for one in outcomes if one.labels["seed"] == 0 and "counts" in one.result]
    by_network = groups(first, "network").items()
    return [draw(str(network), found) for (network,), found in by_network for draw in (_histograms, _map)]


def _histograms(network: str, outcomes: Sequence[Outcome]) -> Figure:
    drawn = [(one, name, one.result["counts"][name]) for one in outcomes for name in one.result["counts"]]
    most = float(max(max(map(max, counts)) for _, _, counts in drawn))
    panels = [
        Heat(
            f"{one.labels['method']}: {SETS[name]}",
            *AXES,
            [[count or None for count in row] for row in counts],
            EXTENT,
            EXTENT,
            log=True,
            scale="images",
            most=most,
        )
        for one, name, counts in drawn
    ]
    caption = (
        f"{network}: images of each test set by their aleatoric and epistemic uncertainty. Digits belong at the lower "
        "left, ambiguous digits at the right, and clothes, which nobody has seen, at the top. fs-RLL-E repels on "
        "digits of shuffled patches, repulse on images made of the digits."
    )
    alt = "A grid of histograms, methods down and test sets across, with one spot or cloud in each."
    return Figure(f"histograms-{network.lower()}", caption, alt, panels, columns=len(drawn) // len(outcomes))


def _map(network: str, outcomes: Sequence[Outcome]) -> Figure:
    panels = [
        Points(
            str(one.labels["row"]),
            *AXES,
            [PointGroup(SETS[name], **points) for name, points in one.result["points"].items()],
            EXTENT,
            EXTENT,
        )
        for one in outcomes
    ]
    caption = f"{network}: {SAMPLED} images of each test set by their two uncertainties. On the page, point at one."
    return Figure(
        f"map-{network.lower()}", caption, "Scatter plots of test sets, one plot a method.", panels, columns=2
    )


EXPERIMENT = Experiment(
    name="uncertainty-map",
    title="Two kinds of doubt: is what nobody has seen told from what is ambiguous?",
    source="Figure 4",
    plan=plan,
    tables=tables,
    figures=figures,
)
