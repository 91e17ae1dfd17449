"""What a step of the fit costs: time over that of its two matrix products alone, in closed form and by autograd.

The products, outputs of all heads on both batches and their way back to the weights, are the least a step can do. All
columns of a row alternate in one process, so that the noise of the machine is shared; for the same reason there is one
thread, and its own time is what counts.

    python benchmarks/step.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm

from repulse import FS_RLL_E, LL_E, Recipe
from repulse.particles.closed import Closed
from repulse.particles.heads import Heads
from repulse.particles.optimise import Autograd
from repulse.particles.problem import Problem, as_it_is
from repulse.particles.tasks import Classification
from repulse.report import Column, Table

SIZES = ((64, 10), (512, 10), (640, 100), (2048, 1000))
RECIPES = {"FS_RLL_E": FS_RLL_E, "Recipe()": Recipe(), "LL_E": LL_E}
SAMPLES = 2048


def bare(d: int, classes: int, recipe: Recipe) -> Callable[[], None]:
    """Both products, as the step does them: samples last, into memory that is already there."""
    rows = recipe.batch_size + (recipe.repulsion_batch_size if recipe.space == "function" else 0)
    x, weight = torch.randn(rows, d), torch.randn(recipe.heads * classes, d)
    outputs, gradient = torch.empty(len(weight), rows), torch.empty_like(weight)

    def run() -> None:
        torch.mm(weight, x.T, out=outputs)
        torch.mm(outputs, x, out=gradient)

    return run


def steps(kind: type[Closed | Autograd], d: int, classes: int, recipe: Recipe) -> Callable[[], None]:
    """Steps of a fit, batch after batch."""
    generator = torch.Generator().manual_seed(0)
    x, away = (torch.randn(SAMPLES, d, generator=generator) for _ in range(2))
    y = torch.randint(classes, (SAMPLES,), generator=generator)
    problem = Problem(x, y, away, as_it_is, Classification(classes))
    stepper = kind(Heads(recipe.heads, d, problem.task, generator=generator), problem, recipe)
    strength = recipe.strength_for(classes)

    def run() -> None:
        batch = torch.randint(SAMPLES, (2, recipe.batch_size), generator=generator)
        stepper.step(batch[0], batch[1], 1e-4, strength, measure=False)

    return run


def medians(runs: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Median time of each, in seconds; they take turns of a few runs, as a fit takes one step after the other."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    while len(times["bare"]) < 5 or time.perf_counter() - begun < seconds:
        for name, run in runs.items():
            run()  # what came before has used the cache
            start, count = time.thread_time(), 0  # not what others take meanwhile
            while count < 20 and (count == 0 or time.thread_time() - start < 0.02):
                run()
                count += 1
            times[name].append((time.thread_time() - start) / count)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = Column("products [ms]", 3), Column("closed form", 2), Column("autograd", 2)
    table = Table("recipe, features, classes", columns)
    cases = [(name, size) for name in RECIPES for size in SIZES]
    for name, (d, classes) in tqdm(cases, desc="sizes"):
        recipe = RECIPES[name]
        runs = {"bare": bare(d, classes, recipe)}
        runs |= {kind.__name__: steps(kind, d, classes, recipe) for kind in (Closed, Autograd)}
        time_of = medians(runs, arguments.seconds)
        ratios = [time_of[kind.__name__] / time_of["bare"] for kind in (Closed, Autograd)]
        table.add(f"{name}, {d}, {classes}", [[1e3 * time_of["bare"], *ratios]])
    print(table.text())


if __name__ == "__main__":
    main()
