"""Regression on tables: error, likelihood and intervals, and what happens in a gap that was cut into the data.

A perceptron with two outputs, mean and log-variance, is the network; five of them are the deep ensemble; heads stand on
the features of the first. A sixth of the training rows is held out from all networks: they stop where its likelihood is
best. Heads see features of rows that the network was fitted to, where residuals are smaller than they will be, and so
they predict too little noise. Cures need nothing but held-out rows: give them as `validation=`, which is the default
recipe as it is meant; give `noise=` the residual of the network there; or multiply the variances that heads predict by
the one factor that suits those rows best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repulse import metrics
from repulse._tensors import read_tensors, write_tensors
from repulse.errors import FitWarning
from repulse.evaluation.compare import INSIDE
from repulse.evaluation.table import Column, Table
from repulse.particles.fit import fit_heads
from repulse.particles.heads import Heads
from repulse.particles.tasks import Regression
from repulse.prediction import RegressionPrediction
from repulse.recipe import FS_RLL_E, LL_E, Recipe
from repulse.repulsion import Mixture, Mixup, UniformBox
from repulse_lab.data import load
from repulse_lab.data.tables import SPLITS
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Line, Lines

TABLES = ("concrete", "energy", "yacht", "power-plant")
HELD = 1 / 6
BINS = 24
REPULSION = "box and mixtures"
RECIPES: dict[str, tuple[Recipe, str]] = {
    "LL-E": (LL_E, ""),
    "fs-RLL-E": (FS_RLL_E, ""),
    "repulse": (Recipe(), "validation"),
    "repulse, fixed noise": (Recipe(), "noise"),
    "repulse, rescaled": (Recipe(), "factor"),
    "repulse, rescaled, stronger": (Recipe(), "stronger"),
}
"""Recipe, and what is learnt from the held-out rows: all that `validation` decides, the noise alone, or a factor on it
(then perhaps with more strength)."""
STRONGER = 500
"""Strength times training rows, at most 1: the exact posterior has 1, and few rows leave more to doubt."""
METHODS = ("MAP", "DE-5", *RECIPES)
Predict = Callable[[Tensor], RegressionPrediction]


@dataclass(frozen=True, eq=False)
class Rows:
    """A table by part ("train", "test", "gap"), in units in which training rows have mean 0 and spread 1.

    `held` are the training rows that no network is fitted to, `where` is how far along the axis of the gap a row lies.
    """

    x: dict[str, Tensor]
    y: dict[str, Tensor]
    held: Tensor
    shift: float
    scale: float
    where: dict[str, Tensor]

    @staticmethod
    def of(about: Mapping[str, Any], data: Path) -> Rows:
        """Read the rows of a split; with "gap", the middle third along the first principal component is cut out."""
        parts = [load(f"uci-{about['data']}", f"{part}-{about['seed']}", data).labelled for part in ("train", "test")]
        inputs, targets = (torch.cat(pair) for pair in zip(*parts, strict=True))
        rank = _ranks_along_first_axis(inputs)
        training = torch.arange(len(inputs)) < len(parts[0][0])
        gap = (rank > 1 / 3) & (rank < 2 / 3) if about["rows"] == "gap" else torch.zeros_like(training)
        chosen = {"train": training & ~gap, "test": ~training & ~gap, "gap": gap}
        some, y = inputs[chosen["train"]], targets[chosen["train"]]
        spread = some.std(dim=0).clamp_min(1e-6)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(about["seed"]))
        return Rows(
            {name: (inputs[rows] - some.mean(dim=0)) / spread for name, rows in chosen.items()},
            {name: (targets[rows] - y.mean()) / y.std() for name, rows in chosen.items()},
            torch.zeros(len(y), dtype=torch.bool).index_fill(0, order[: round(HELD * len(y))], True),
            float(y.mean()),
            float(y.std()),
            {name: rank[rows] for name, rows in chosen.items()},
        )


def _ranks_along_first_axis(inputs: Tensor) -> Tensor:
    """Return the share of rows below each one along the first principal component, whose sign is arbitrary."""
    scaled = ((inputs - inputs.mean(dim=0)) / inputs.std(dim=0).clamp_min(1e-6)).double()
    along = scaled @ torch.linalg.eigh(scaled.T @ scaled)[1][:, -1]
    return along.argsort().argsort().double() / (len(along) - 1)


@work("repulse.particles", "repulse_lab.data.tables", seconds=lambda about: 0.002 * about["steps"])
def networks(about: Mapping[str, Any], place: Place) -> Result:
    """Train the perceptrons, each kept as it was when the held-out rows liked it best."""
    rows, steps = Rows.of(about, place.data), about["steps"]
    generator = torch.Generator().manual_seed(about["seed"])
    members = _members(about, rows.x["train"].shape[1], generator)
    fitted, held = ((rows.x["train"][part], rows.y["train"][part]) for part in (~rows.held, rows.held))
    optimizer = torch.optim.AdamW(members.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best = torch.full((members.count,), math.inf)
    kept = [parameter.detach().clone() for parameter in members.parameters()]
    for step in range(1, steps + 1):
        batch = torch.randint(len(fitted[0]), (64,), generator=generator)
        optimizer.zero_grad()
        members.task.nll(members(fitted[0][batch]), fitted[1][batch]).sum().backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            with torch.no_grad():
                nll = members.task.nll(members(held[0]), held[1])
                for copy, parameter in zip(kept, members.parameters(), strict=True):
                    copy[nll < best] = parameter[nll < best]
                best = torch.minimum(nll, best)
    write_tensors(_path(about, place), {str(i): tensor for i, tensor in enumerate(kept)})
    return {"figures": {"held-out nll": float(best.mean())}}


def _members(about: Mapping[str, Any], inputs: int, generator: torch.Generator | None = None) -> Heads:
    """Make five perceptrons in one: heads with hidden layers on the inputs themselves."""
    return Heads(5, inputs, Regression(), (about["width"], about["width"]), generator)


def _path(about: Mapping[str, Any], place: Place) -> Path:
    return place.keep / "regressors" / f"{Job(networks, about).key}.safetensors"


@work(
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse.metrics",
    "repulse.repulsion",
    "repulse_lab.data.tables",
    seconds=lambda about: 2.0,
)
def regress(about: Mapping[str, Any], place: Place) -> Result:
    """Judge one method on one split, inside and, if there is one, in the gap."""
    start, method = about["networks"], about["method"]
    rows = Rows.of(start, place.data)
    if not _path(start, place).is_file():  # the numbers of the job are kept, its file was cleared away
        networks(start, place)
    members = _members(start, rows.x["train"].shape[1])
    members.requires_grad_(False)
    kept = read_tensors(_path(start, place))[0]
    for i, parameter in enumerate(members.parameters()):
        parameter.copy_(kept[str(i)])
    if method in RECIPES:
        predict = _heads(members, rows, *RECIPES[method], start["seed"])
    else:
        predict = _of_members(members, slice(0, 1) if method == "MAP" else slice(None))
    inside = predict(rows.x["test"])
    figures = _judge(inside, rows, "test", "")
    if start["rows"] != "gap":
        return {"figures": figures}
    gap = predict(rows.x["gap"])
    figures |= _judge(gap, rows, "gap", "gap ")
    if inside.members > 1:
        figures["gap ratio"] = float(gap.epistemic.sqrt().mean() / inside.epistemic.sqrt().mean())
    deviation = torch.cat([inside.epistemic, gap.epistemic]).sqrt()
    where = torch.cat([rows.where["test"], rows.where["gap"]])
    return {"figures": figures, **({"profile": _profile(where, deviation)} if start["seed"] == 0 else {})}


def _of_members(members: Heads, which: slice) -> Predict:
    def predict(x: Tensor) -> RegressionPrediction:
        outputs = members.predict(x)
        assert isinstance(outputs, RegressionPrediction)
        return RegressionPrediction(outputs.means[which], outputs.variances[which])

    return predict


def _features(members: Heads, x: Tensor) -> Tensor:
    """Compute what the last layer of the first perceptron sees."""
    for weight, bias in list(zip(members.weights, members.biases, strict=True))[:-1]:
        x = torch.addmm(bias[0], x, weight[0].T).relu()
    return x


def _heads(members: Heads, rows: Rows, recipe: Recipe, learnt: str, seed: int) -> Predict:
    """Fit heads on the first perceptron; held-out rows that are validation data, or decide a factor, are left out."""
    x, y, held = rows.x["train"], rows.y["train"], rows.held
    generator = torch.Generator().manual_seed(seed)
    some = x[torch.randint(len(x), (2000,), generator=generator)]
    outside = Mixture([UniformBox(), Mixup()]).sample(some, generator)
    recipe = recipe.replace(task="regression", seed=seed)
    if learnt == "noise":
        alone = _of_members(members, slice(0, 1))(x[held])
        recipe = recipe.replace(noise=metrics.rmse(alone, y[held]))
    if learnt == "stronger":
        recipe = recipe.replace(strength=min(1.0, STRONGER / len(x)))
    factored = learnt in ("factor", "stronger")
    kept = ~held if factored or learnt == "validation" else torch.ones_like(held)
    far = _features(members, outside) if recipe.space == "function" else None
    features, start = _features(members, x), (members.weights[-1][0], members.biases[-1][0])
    validation = (features[held], y[held]) if learnt == "validation" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # of rows without validation data, which the table compares
        heads = fit_heads(
            features[kept], y[kept], far, recipe, start=start, validation=validation, inputs=x[kept], progress=False
        )

    def predict(part: Tensor) -> RegressionPrediction:
        found = heads.predict(_features(members, part))
        assert isinstance(found, RegressionPrediction)
        return found

    if not factored:
        return predict
    factor = best_factor(predict(x[held]), y[held])
    return lambda part: rescaled(predict(part), factor)


def rescaled(prediction: RegressionPrediction, factor: float) -> RegressionPrediction:
    """Return the same means, with every member's variance multiplied."""
    return replace(prediction, variances=prediction.variances * factor)


def best_factor(prediction: RegressionPrediction, targets: Tensor) -> float:
    """Find the factor on all variances under which targets are most likely, as a temperature does for classes."""
    factors = torch.logspace(-2, 3, 126).tolist()
    return min(factors, key=lambda factor: -float(rescaled(prediction, factor).log_likelihood(targets).mean()))


def _judge(prediction: RegressionPrediction, rows: Rows, part: str, prefix: str) -> dict[str, float]:
    """Compute metrics in the units of the table."""
    means, variances = prediction.means * rows.scale + rows.shift, prediction.variances * rows.scale**2
    in_units = replace(prediction, means=means, variances=variances)
    targets = rows.y[part] * rows.scale + rows.shift
    return {
        f"{prefix}rmse": metrics.rmse(in_units, targets),
        f"{prefix}nll": metrics.nll(in_units, targets),
        f"{prefix}coverage_95": 100 * metrics.interval_coverage(in_units, targets),
    }


def _profile(where: Tensor, deviation: Tensor) -> list[list[float]]:
    """Compute the mean epistemic standard deviation along the axis, in units of that of the targets."""
    bins = (where * BINS).long().clamp_max(BINS - 1)
    full = [number for number in range(BINS) if bool((bins == number).any())]
    heights = [round(float(deviation[bins == number].mean()), 4) for number in full]
    return [[round(100 * (number + 0.5) / BINS, 2) for number in full], heights]


def plan(options: RunOptions) -> Plan:
    """Every method on every split that is there, with all rows and with the gap."""
    cells, missing = [], []
    for table in TABLES:
        there = [
            split
            for split in range(len(SPLITS) // 2)
            if all(options.has(f"uci-{table}", f"{part}-{split}") for part in ("train", "test"))
        ]
        if not there:
            missing.append(f"UCI {table} is not there.")
        for kind in ("all", "gap"):
            for method in METHODS:
                for split in there[: options.count(3, 20)]:
                    start = {"data": table, "rows": kind, "seed": split, "steps": 1200, "width": 64}
                    job = Job(regress, {"method": method, "networks": start}, needs=(Job(networks, start),))
                    where = REPULSION if method in RECIPES and RECIPES[method][0].space == "function" else None
                    labels = {"network": "MLP 2x64", "data": table, "rows": kind, "method": method}
                    cells.append(Cell(job, {**labels, "repulsion": where, "seed": split}))
    notes = [
        "Seeds are the standard splits; heads repel on a box around the data, and between its rows.",
        "A sixth of the training rows is held out: networks stop by it, repulse has it as validation data, and the "
        "rows fixed noise and rescaled learn the noise from it. LL-E, fs-RLL-E and heads with fixed noise are fitted "
        "to all training rows. Stronger: the strength is "
        f"min(1, {STRONGER} / rows).",
        "Gap: the middle third of the rows along the first principal component is cut out, and judged apart.",
    ]
    return Plan(cells, notes, missing)


GAP = {
    "gap rmse": Column("gap RMSE", 3, "lower", "Root of the mean squared error in the gap."),
    "gap nll": Column("gap NLL", 3, "lower", "Negative log-likelihood in the gap."),
    "gap coverage_95": Column("gap in 95 %", 1, "", "Share of targets of the gap in their interval."),
    "gap ratio": Column("gap ratio", 2, "higher", "Mean epistemic std in the gap over that on test rows outside it."),
}


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Make one table per data set: all rows, then the gap."""
    inside = {key: INSIDE[key] for key in ("rmse", "nll", "coverage_95")}
    made = []
    for (name,), found in groups(outcomes, "data").items():
        table = Table("method", [*inside.values(), *GAP.values()], title=f"UCI {name}")
        for (method,), seeds in groups(found, "method").items():
            parts = [[one for one in seeds if one.labels["rows"] == kind] for kind in ("all", "gap")]
            values = [
                [one.figures.get(key, math.nan) for one, keys in zip(pair, (inside, GAP), strict=True) for key in keys]
                for pair in zip(*parts, strict=False)
            ]
            if values:
                table.add(method, values)
        made.append(table)
    return [table for table in made if table.rows]


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw epistemic uncertainty along the axis in which the gap was cut."""
    drawn = ("DE-5", "LL-E", "fs-RLL-E", "repulse", "repulse, rescaled, stronger")
    kept = [o for o in outcomes if "profile" in o.result and o.labels["method"] in drawn]
    panels = [
        Lines(
            f"UCI {name}",
            "place along the axis (%)",
            "epistemic std / std of targets",
            [Line(str(o.labels["method"]), *o.result["profile"][:2]) for o in found],
            x_range=(0, 100),
        )
        for (name,), found in groups(kept, "data").items()
    ]
    if not panels:
        return []
    ratios = "; ".join(f"{o.labels['data']}, {o.labels['method']}: {o.figures['gap ratio']:.1f}" for o in kept)
    caption = "Epistemic uncertainty where training data was cut out (from 33 to 67 %) and next to it, first split."
    return [Figure("regression-gap", caption, f"Ratio of the std in the gap to that outside. {ratios}.", panels, 2)]


EXPERIMENT = Experiment(
    "regression", "Do intervals hold, and does doubt grow in a gap?", "beyond the paper", plan, tables, figures
)
