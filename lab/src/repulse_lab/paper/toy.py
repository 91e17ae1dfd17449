"""Toy problems: where there is no data, thirty networks agree and repulsive heads do not.

As in the paper, the base is trained together with its heads here; only the row "repulse" is post hoc, on a network that
is trained alone before. Nearest to the data and farthest from it are told by the distance to the closest training
input, in standard deviations of the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repulse import metrics
from repulse.evaluation.table import Column, Table
from repulse.functional import repulsion
from repulse.particles.heads import Heads
from repulse.particles.tasks import Classification, Regression, Task
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction
from repulse.recipe import Recipe
from repulse.repulsion import UniformBox
from repulse.retrofit import retrofit
from repulse_lab.data import load
from repulse_lab.data.toys import NOISE
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.networks import build
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions, groups
from repulse_lab.study.figures import Figure, Heat, Line, Lines, PointGroup

PRIOR_STD, STRENGTH = 0.3, 0.1
NEAR, FAR = 0.1, 0.5
POINTS = {1: 141, 2: 48}
"""Points of the grid along each axis, by the number of axes."""

BOXES = {
    "sine": ((-0.875,), (7.875,)),
    "two-moons": ((-3.0, -3.0), (4.0, 3.5)),
    "gaussians": ((-20.0, -20.0), (20.0, 20.0)),
}
"""Corners of what is plotted, which is also where heads repel."""

METHODS = {
    "deep ensemble": None,
    "LL-E": "",
    "fs-RLL-E": "jointly",
    "fs-RLL-E, pointwise": "pointwise",
    "repulse": "pointwise",
}
"""Of each method how it compares particles: None for networks that share nothing, "" for heads that do not repel."""


@dataclass(frozen=True, eq=False)
class ToyProblem:
    """Training data with standardised inputs, and the corners of the box that repulsion samples come from."""

    x: Tensor
    y: Tensor
    shift: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    task: Task

    @staticmethod
    def of(name: str) -> ToyProblem:
        inputs, y = load(name, "train").labelled
        shift, scale = inputs.mean(dim=0), inputs.std(dim=0)
        low, high = ((torch.tensor(corner) - shift) / scale for corner in BOXES[name])
        task = Classification(int(y.max()) + 1) if not y.is_floating_point() else Regression(NOISE)
        return ToyProblem((inputs - shift) / scale, y, shift, scale, low, high, task)

    def grid(self) -> Tensor:
        """Return the plotted box, standardised; the first axis runs fastest."""
        count = POINTS[self.x.shape[1]]
        axes = [torch.linspace(float(a), float(b), count) for a, b in zip(self.low, self.high, strict=True)]
        return torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="xy")], dim=1)

    def distances(self, x: Tensor) -> Tensor:
        """Return the distance to the closest training input."""
        return torch.cdist(x, self.x).amin(dim=1)


class Model(nn.Module):
    """Particles on a shared base, or, without one, networks that share nothing."""

    def __init__(self, problem: ToyProblem, particles: int, width: int, seed: int, shared: bool) -> None:
        super().__init__()
        inputs, generator = problem.x.shape[1], torch.Generator().manual_seed(seed)
        network = build("mlp", 1, inputs, 1, width=width, seed=seed)
        self.base = nn.Sequential(*list(network.children())[:-1]) if shared else nn.Identity()
        features, hidden = (width, ()) if shared else (inputs, (width,) * 3)
        self.heads = Heads(particles, features, problem.task, hidden, generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(self.base(x))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return self.heads.task.predict(self(x))


def fit(model: nn.Module, problem: ToyProblem, compare: str | None, steps: int, seed: int) -> None:
    """Train particles; unless `compare` is None with a prior, and unless it is empty with repulsion.

    Repulsion on unbounded outputs needs something to pull against where there is no data: the Gaussian prior on the
    weights, whose exact weight relative to a mean log-likelihood is 1/N.
    """
    generator = torch.Generator().manual_seed(seed)
    box = UniformBox(problem.low, problem.high)
    on = "logits" if isinstance(problem.task, Regression) else "probabilities"
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        batch = torch.randint(len(problem.x), (128,), generator=generator)
        outputs = model(problem.x[batch])
        loss = problem.task.nll(outputs if outputs.ndim == 3 else outputs.unsqueeze(0), problem.y[batch]).sum()
        if compare is not None:
            squares = torch.stack([p.square().sum() for p in model.parameters()]).sum()
            loss = loss + squares / (2 * len(problem.x) * PRIOR_STD**2)
        if compare:
            outputs = model(box.sample(problem.x[batch], generator))
            loss = loss + STRENGTH * repulsion(outputs, on=on, compare=compare)  # pyright: ignore[reportArgumentType]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _retrofitted(problem: ToyProblem, about: Mapping[str, Any]) -> Any:
    """Retrofit a network that was trained alone with the default recipe."""
    seed = about["seed"]
    network = build("mlp", problem.task.outputs, problem.x.shape[1], 1, width=about["width"], seed=seed)
    fit(network, problem, None, about["steps"], seed)
    network.eval()
    count, generator = 5000, torch.Generator().manual_seed(seed)
    elsewhere = UniformBox(problem.low, problem.high).sample(problem.x[:1].expand(count, -1), generator)
    noise = problem.task.noise if isinstance(problem.task, Regression) else None
    task = "regression" if isinstance(problem.task, Regression) else "classification"
    recipe = Recipe(heads=about["particles"], task=task, noise=noise, seed=seed)
    return retrofit(network, [(problem.x, problem.y)], repulsion=[elsewhere], recipe=recipe, progress=False)


def _seconds(about: Mapping[str, Any]) -> float:
    cost = {"deep ensemble": 0.022, "LL-E": 0.002}.get(about["method"], 0.004)
    return about["steps"] * cost + (6.0 if about["method"] == "repulse" else 0.0)


@work(
    "repulse.particles",
    "repulse.recipe",
    "repulse.prediction",
    "repulse.metrics",
    "repulse_lab.networks",
    "repulse.retrofit",
    "repulse.backbone",
    "repulse.repulsion",
    "repulse_lab.data.toys",
    seconds=_seconds,
)
def toy(about: Mapping[str, Any], place: Place) -> Result:
    """Fit one method to one problem; the curves of the first seed are kept for the figure."""
    problem, method = ToyProblem.of(about["task"]), about["method"]
    if method == "repulse":
        model = _retrofitted(problem, about)
    else:
        model = Model(problem, about["particles"], about["width"], about["seed"], shared=method != "deep ensemble")
        fit(model, problem, METHODS[method], about["steps"], about["seed"])
    grid = problem.grid()
    prediction = model.predict(grid)
    inputs, targets = load(about["task"], "test").labelled
    test = (inputs - problem.shift) / problem.scale
    near = problem.distances(test) <= NEAR
    close = model.predict(test[near])
    far = particle_std(prediction)[problem.distances(grid) > FAR]
    figures = {
        "std near": float(particle_std(close).mean()),
        "std far": float(far.mean()),
        "std least": float(far.min()),
    }
    if isinstance(close, ClassPrediction):
        figures["accuracy"] = 100 * metrics.accuracy(close, targets[near])
    elif isinstance(close, RegressionPrediction):
        figures["rmse"] = metrics.rmse(close, targets[near])
    return {"figures": figures, **(_curves(problem, grid, prediction) if about["seed"] == 0 else {})}


def particle_std(prediction: Prediction) -> Tensor:
    """Compute the std over particles of their means, or of the probability of the class they differ on most."""
    if isinstance(prediction, ClassPrediction):
        return prediction.log_probs.exp().std(dim=0, correction=0).amax(dim=-1)
    return prediction.epistemic.sqrt()


def _curves(problem: ToyProblem, grid: Tensor, prediction: Prediction) -> dict[str, Any]:
    """Return what is drawn, in the units of the data."""
    x, shown = grid * problem.scale + problem.shift, slice(None, None, max(1, len(problem.x) // 200))
    drawn = {"points": problem.x[shown] * problem.scale + problem.shift, "targets": problem.y[shown]}
    drawn["std"] = particle_std(prediction)
    if isinstance(prediction, RegressionPrediction):
        drawn |= {"x": x[:, 0], "particles": prediction.means, "mean": prediction.mean}
    else:
        drawn["std"] = drawn["std"].view(POINTS[2], POINTS[2])
    return {name: _rounded(values.tolist()) for name, values in drawn.items()}


def _rounded(values: Any) -> Any:
    return [_rounded(value) for value in values] if isinstance(values, list) else round(values, 4)


TITLES = {"sine": "regression", "two-moons": "two moons", "gaussians": "five Gaussians"}


def plan(options: RunOptions) -> Plan:
    """Plan every method on every problem; the data is drawn from a seed, so that nothing can be missing."""
    tasks = ("sine", "two-moons") if options.small else tuple(BOXES)
    size = {"steps": 500 if options.small else 2000, "particles": 30, "width": 128}
    cells = [
        Cell(
            Job(toy, {"task": task, "method": method, "seed": seed, **size}),
            {"network": "MLP 3x128", "task": task, "method": method, "seed": seed},
        )
        for task in tasks
        for method in METHODS
        for seed in range(options.count(3, 10))
    ]
    notes = [
        "The paper does not give its toy data: a noisy x sin x seen on two intervals, two moons and, with the paper's "
        "preset, five Gaussians stand for them.",
        "The base is trained together with its heads, except in the row repulse: that network is trained alone, and "
        "retrofitted.",
        f"{size['steps']} steps of Adam at 0.002; the paper does not say how it trained.",
    ]
    return Plan(cells, notes)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Make one table per problem."""
    doubt = {
        "std near": Column("std near", 3, "", "Mean over test inputs near the data of the std over particles."),
        "std far": Column("std far", 3, "higher", "Mean over the plotted domain, far from all data."),
        "std least": Column("least far", 3, "higher", "The smallest std far from all data."),
    }
    right = {"rmse": Column("RMSE", 3, "lower", "Near the data."), "accuracy": Column("accuracy", 2, "higher")}
    made = []
    for (task,), found in groups(outcomes, "task").items():
        columns = doubt | {key: column for key, column in right.items() if key in found[0].figures}
        table = Table("method", list(columns.values()), title=f"Toy {TITLES[task]}")
        what = "of their means" if task == "sine" else "of the probability of the class they differ on most"
        table.footnote = (
            f"std: over particles, {what}. Near: within {NEAR}, far: farther than {FAR} standard deviations of the "
            f"inputs from the closest training input."
        )
        for (method,), seeds in groups(found, "method").items():
            table.add(method, [[seed.figures[key] for key in columns] for seed in seeds])
        made.append(table)
    return made


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Draw the curves of the first seed, one panel per method."""
    made = []
    for (task,), found in groups([o for o in outcomes if "points" in o.result], "task").items():
        draw, name = (_bundle, "regression") if task == "sine" else (_map, task)
        captions = {
            _bundle: "Particles, their mean and two standard deviations around it; training data as dots.",
            _map: "Standard deviation over particles of the probability of a class, with training data.",
        }
        alt = f"Toy {TITLES[task]}: " + "; ".join(
            f"{o.labels['method']} has a std of {o.figures['std near']:.2f} near the data and "
            f"{o.figures['std far']:.2f} far from it"
            for o in found
        )
        made.append(Figure(f"toy-{name}", captions[draw], alt + ".", [draw(o) for o in found]))
    return made


def _bundle(outcome: Outcome) -> Lines:
    kept = outcome.result
    x, mean, std = kept["x"], kept["mean"], kept["std"]
    low, high = ([round(m + side * s, 4) for m, s in zip(mean, std, strict=True)] for side in (-2, 2))
    lines = [Line("", x, particle) for particle in kept["particles"]]
    lines += [Line("mean ± 2 std", x, mean, low, high)]
    lines += [Line("training data", [point[0] for point in kept["points"]], kept["targets"], dots=True)]
    return Lines(str(outcome.labels["method"]), "x", "y", lines, x_range=(x[0], x[-1]), y_range=(-12, 12))


def _map(outcome: Outcome) -> Heat:
    kept, task = outcome.result, str(outcome.labels["task"])
    x, y = zip(*kept["points"], strict=True)
    first = [label == 0 for label in kept["targets"]]
    points = [
        PointGroup(
            name,
            [v for v, own in zip(x, first, strict=True) if own == side],
            [v for v, own in zip(y, first, strict=True) if own == side],
        )
        for name, side in (("first class", True), ("other classes", False))
    ]
    (left, bottom), (right, top) = BOXES[task]
    title, scale = str(outcome.labels["method"]), "std of p(y)"
    return Heat(title, "x₁", "x₂", kept["std"], (left, right), (bottom, top), scale=scale, most=0.5, groups=points)


EXPERIMENT = Experiment("toy", "Do particles doubt where there is no data?", "the toy figure", plan, tables, figures)
