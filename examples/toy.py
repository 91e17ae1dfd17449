"""The paper's toy figure: 1-D regression and 2-D classification, a deep ensemble beside fs-RLL-E.

Left, thirty independent networks. Then one shared base with thirty linear heads that repel each other on inputs drawn
uniformly from the plotted domain: in the middle with one kernel over the whole batch, as in the paper; on the right
with one kernel a sample, which asks heads to differ everywhere and not only where it is easiest. The base is trained
together with its heads, so this is also an example of a training loop of your own around
`repulse.functional.repulsion`.

    python examples/toy.py --out docs/images/toy.png
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import repulse

PARTICLES, WIDTH = 30, 128
NOISE, PRIOR_STD, STRENGTH = 0.25, 0.3, 0.1


@dataclass(frozen=True)
class Problem:
    """Training data, the box that repulsion samples come from, and the loss of `(n, B, outputs)` outputs."""

    x: Tensor
    y: Tensor
    low: Tensor
    high: Tensor
    classes: int | None = None

    @property
    def outputs(self) -> int:
        return self.classes or 1

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.classes is None:
            return (outputs.squeeze(-1) - y).square().mean(dim=1).sum() / (2 * NOISE**2)
        return F.cross_entropy(outputs.flatten(0, 1), y.repeat(len(outputs)), reduction="sum") / len(y)

    def task(self) -> repulse.tasks.Task:
        return repulse.tasks.Classification(self.classes) if self.classes else repulse.tasks.Regression(NOISE)

    def standardise(self, x: Tensor) -> Tensor:
        return (x - self.x.mean(dim=0)) / self.x.std(dim=0)


def regression(generator: torch.Generator) -> Problem:
    """y = x sin x + noise, seen on [1.5, 2.5] and [4.5, 6]; plotted and repelled on [0, 7] and a quarter beyond."""
    x = torch.cat([1.5 + torch.rand(45, 1, generator=generator), 4.5 + 1.5 * torch.rand(45, 1, generator=generator)])
    y = (x * x.sin()).squeeze(1) + NOISE * torch.randn(90, generator=generator)
    return Problem(x, y, torch.tensor([-0.875]), torch.tensor([7.875]))


def moons(generator: torch.Generator) -> Problem:
    """Two interleaved half circles; plotted and repelled on [-3, 4] x [-3, 3.5]."""
    angle = torch.pi * torch.rand(1500, generator=generator)
    label = torch.arange(1500) % 2
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    x = torch.where(label.unsqueeze(1) == 0, upper, lower) + 0.1 * torch.randn(1500, 2, generator=generator)
    return Problem(x, label, torch.tensor([-3.0, -3.0]), torch.tensor([4.0, 3.5]), classes=2)


def train(problem: Problem, model: nn.Module, compare: str | None, steps: int, seed: int) -> nn.Module:
    """Fit `model`, a map from a batch to `(n, B, outputs)`; with `compare`, repel on inputs drawn uniformly.

    Repulsion on unbounded outputs needs something to pull against where there is no data: the Gaussian prior on the
    weights, whose exact weight beside a mean log-likelihood is 1/N.
    """
    generator = torch.Generator().manual_seed(seed)
    box = repulse.repulsion.UniformBox(problem.low, problem.high)
    on = "logits" if problem.classes is None else "probabilities"
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        batch = torch.randint(len(problem.x), (128,), generator=generator)
        loss = problem.loss(model(problem.x[batch]), problem.y[batch])
        if compare:
            outputs = model(box.sample(problem.x[batch], generator))
            prior = sum(p.square().sum() for p in model.parameters()) / (2 * len(problem.x) * PRIOR_STD**2)
            loss = loss + prior + STRENGTH * repulse.functional.repulsion(outputs, on=on, compare=compare)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class SharedBase(nn.Module):
    """One base of three hidden layers, thirty linear heads."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths = [problem.x.shape[1], WIDTH, WIDTH, WIDTH]
        parts = [[nn.Linear(fan_in, fan_out), nn.ReLU()] for fan_in, fan_out in zip(widths, widths[1:], strict=False)]
        self.base = nn.Sequential(*(layer for pair in parts for layer in pair))
        self.heads = repulse.Heads(PARTICLES, WIDTH, problem.task(), generator=torch.Generator().manual_seed(seed))
        self.standardise = problem.standardise

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(self.base(self.standardise(x)))


class DeepEnsemble(nn.Module):
    """Thirty networks that share nothing; heads with hidden layers on the inputs themselves are just that."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        hidden = (WIDTH, WIDTH, WIDTH)
        self.heads = repulse.Heads(PARTICLES, problem.x.shape[1], problem.task(), hidden, generator)
        self.standardise = problem.standardise

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(self.standardise(x))


@torch.no_grad()
def spread(problem: Problem, model: SharedBase | DeepEnsemble, x: Tensor) -> Tensor:
    """Standard deviation of y with its noise (regression), or over particles of p(y=1) (classification)."""
    prediction = model.heads.task.predict(model(x))
    if isinstance(prediction, repulse.RegressionPrediction):
        return prediction.std
    return prediction.log_probs.exp()[..., 1].std(dim=0, correction=0)


TITLES = ("deep ensemble, 30 networks", "fs-RLL-E, joint kernel", "fs-RLL-E, pointwise kernel")


def fit(problem: Problem, steps: int = 1000, seed: int = 0) -> list[nn.Module]:
    """The deep ensemble and the two repulsive ones."""
    repulsive = [train(problem, SharedBase(problem, seed), how, steps, seed) for how in ("jointly", "pointwise")]
    return [train(problem, DeepEnsemble(problem, seed), None, steps, seed), *repulsive]


def figure(fitted: dict[str, tuple[Problem, list[nn.Module]]]):
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(12.6, 6.4), layout="constrained")
    axes = canvas.subplots(2, 3)
    problem, models = fitted["regression"]
    line = torch.linspace(-0.875, 7.875, 400).unsqueeze(1)
    for axis, model, title in zip(axes[0], models, TITLES, strict=True):
        with torch.no_grad():
            curves = model(line).squeeze(-1)
        mean, deviation = curves.mean(dim=0), curves.std(dim=0)
        low, high = mean - 2 * deviation, mean + 2 * deviation
        axis.fill_between(line[:, 0], low, high, color="#3572c6", alpha=0.15, linewidth=0)
        axis.plot(line[:, 0], curves.T, color="#3572c6", linewidth=0.5, alpha=0.5)
        axis.plot(line[:, 0], mean, color="#1d2733", linewidth=1.6)
        axis.scatter(problem.x[:, 0], problem.y, s=9, color="#e08214", zorder=3)
        axis.set(title=title, xlim=(-0.875, 7.875), ylim=(-12, 12), xlabel="x", ylabel="y")
    problem, models = fitted["moons"]
    grid_x, grid_y = torch.meshgrid(torch.linspace(-3, 4, 160), torch.linspace(-3, 3.5, 160), indexing="xy")
    grid = torch.stack([grid_x.flatten(), grid_y.flatten()], dim=1)
    for axis, model in zip(axes[1], models, strict=True):
        image = spread(problem, model, grid).view(160, 160)
        drawn = axis.pcolormesh(
            grid_x.numpy(),
            grid_y.numpy(),
            image.numpy(),
            cmap="Blues",
            vmin=0,
            vmax=0.5,
            shading="auto",
            rasterized=True,
        )
        axis.scatter(problem.x[:, 0], problem.x[:, 1], s=3, c=problem.y, cmap="coolwarm", alpha=0.6, linewidths=0)
        axis.set(xlabel="$x_1$", ylabel="$x_2$")
    canvas.colorbar(drawn, ax=axes[1], label="std over heads of p(y=1)", fraction=0.02)
    return canvas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="toy.png", help="picture to write")
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each model")
    arguments = parser.parse_args()
    fitted = {}
    for name, make in (("regression", regression), ("moons", moons)):
        problem = make(torch.Generator().manual_seed(0))
        fitted[name] = (problem, fit(problem, arguments.steps))
    figure(fitted).savefig(arguments.out, dpi=130, facecolor="white")
    for name, (problem, models) in fitted.items():
        for title, model in zip(TITLES, models, strict=True):
            inside, outside = inside_outside(problem, model)
            print(f"{name:11s} {title:28s} std inside the data {inside:.3f}, outside {outside:.3f}")
    print(f"written: {arguments.out}")


def inside_outside(problem: Problem, model: nn.Module) -> tuple[float, float]:
    """Mean spread on the training inputs, and on inputs of the box that are far (0.5 or more) from all of them."""
    count = 2000
    uniform = torch.rand(count, problem.x.shape[1], generator=torch.Generator().manual_seed(1))
    box = problem.low + (problem.high - problem.low) * uniform
    far = torch.cdist(box, problem.x).amin(dim=1) > 0.5
    return float(spread(problem, model, problem.x).mean()), float(spread(problem, model, box[far]).mean())


if __name__ == "__main__":
    main()
