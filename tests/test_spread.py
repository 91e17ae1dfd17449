"""A fit on several processes is the fit on one, and says no where it would not be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from repulse import FS_RLL_E, LL_E, RLL_E, Recipe, fit_heads
from repulse.particles.spread import Spread

pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")

QUICK: dict[str, Any] = {"heads": 5, "epochs": 3, "batch_size": 32, "repulsion_batch_size": 16, "lr": 1e-2}
RECIPES = {
    "default": Recipe(**QUICK),
    "FS-RLL-E": FS_RLL_E.replace(**QUICK),
    "LL-E": LL_E.replace(**QUICK),
    "logits, blob, imq": Recipe(on="logits", rule="blob", kernel="imq", **QUICK),
    "jointly, ssge, a prior on functions": FS_RLL_E.replace(rule="ssge", prior="function", **QUICK),
    "hidden layers": Recipe(hidden=(6,), strength=0.3, **QUICK),
    "a head and another": Recipe(**{**QUICK, "heads": 2}),
    "variances": Recipe(task="regression", **QUICK),
}
REFUSED = {
    "parameters": RLL_E.replace(**QUICK),
    "svgd": Recipe(rule="svgd", **QUICK),
    "too few": Recipe(**{**QUICK, "heads": 1}),
    "other data": RECIPES["default"],
    "another recipe": RECIPES["default"],
    "other samples to repel on": RECIPES["default"],
    "the same rows, shuffled": RECIPES["default"],
    "features of which one process whitens": RECIPES["default"],
    "diverged": LL_E.replace(**{**QUICK, "lr": 1e30}),
}


def data(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = x[:, 0] + 0.3 * torch.randn(200, generator=generator)
    labels = (y > 0).long() + (x[:, 1] > 1)
    return x, y if recipe.task == "regression" else labels, 4 * torch.randn(60, 4, generator=generator)


def fitted(recipe: Recipe) -> dict[str, Any]:
    heads = fit_heads(*data(recipe), recipe, progress=False)
    return {**heads.state_dict(), "history": [vars(epoch) for epoch in heads.history]}


def run_rank(rank: int, folder: Path) -> None:
    """What each of two processes does: fit all, be refused all, and leave what came of it in a file."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, Any] = {name: fitted(recipe) for name, recipe in RECIPES.items()}
    for name, recipe in REFUSED.items():
        x, y, far = data(recipe)
        x = x + rank if name == "other data" else x
        if name == "the same rows, shuffled" and rank:
            x, y = x.flip(0), y.flip(0)
        far = far + rank if name == "other samples to repel on" else far
        change = {"seed": rank} if name == "another recipe" else {}
        if name == "features of which one process whitens":
            change = {"whiten": rank == 0}
        try:
            fit_heads(x, y, far, recipe.replace(**change), progress=False)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            if name == "diverged":
                found["last good"] = error.heads.vectors()  # pyright: ignore[reportAttributeAccessIssue]
    torch.distributed.destroy_process_group()
    torch.save(found, folder / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    code = "import sys, pathlib, test_spread; test_spread.run_rank(int(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    places = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    children = [subprocess.Popen([*command, str(i), str(folder)], env=environment) for i in range(2)]
    try:
        assert [child.wait(timeout=1200) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [torch.load(folder / f"rank{i}.pt", weights_only=True) for i in range(2)]


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_find_the_heads_of_one(ranks, name):
    one = fitted(RECIPES[name])
    assert len(one["history"]) == 3
    for found in (rank[name] for rank in ranks):
        assert found.keys() == one.keys()
        for key in found.keys() - {"history"}:
            torch.testing.assert_close(found[key], one[key], rtol=1e-5, atol=1e-5)
        for epoch, expected in zip(found["history"], one["history"], strict=True):
            assert epoch == {
                key: None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)
                for key, value in expected.items()
            }
    assert all(torch.equal(ranks[0][name][key], ranks[1][name][key]) for key in one.keys() - {"history"})
    assert ranks[0][name]["history"] == ranks[1][name]["history"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parameters", "RecipeError: Expected `space` to be 'function' or 'none' in several processes"),
        ("svgd", "RecipeError: Expected `rule` to be any but 'svgd' in several processes"),
        ("too few", "RecipeError: Expected `heads` to be at least 2, one a process, but got 1."),
        ("other data", "DataError: Expected features, targets and recipe to be the same in all processes"),
        ("another recipe", "DataError: Expected features, targets and recipe to be the same in all processes"),
        ("other samples to repel on", "DataError: Expected features, targets and recipe to be the same"),
        ("the same rows, shuffled", "DataError: Expected features, targets and recipe to be the same"),
        ("features of which one process whitens", "DataError: Expected features, targets and recipe to be the same"),
        ("diverged", "NonFiniteLossError: The loss became NaN or infinite in epoch 1 of 3"),
    ],
)
def test_what_cannot_be_spread_is_refused_everywhere(ranks, name, words):
    for rank in ranks:
        assert rank[name].startswith(words)


def test_the_last_good_heads_are_everywhere_the_same(ranks):
    assert torch.equal(ranks[0]["last good"], ranks[1]["last good"])
    assert bool(ranks[0]["last good"].isfinite().all())


def test_in_one_process_all_heads_are_its_own():
    spread = Spread.over_processes(RLL_E)
    assert (spread.total, spread.own, spread.several) == (10, slice(0, 10), False)
    x = torch.ones(10, 3)
    assert spread.gather(x) is x
    assert spread.add(2.0) == 2.0
