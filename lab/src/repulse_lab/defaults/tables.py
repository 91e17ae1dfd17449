"""Tables: classes of scikit-learn's small sets and of synthetic ones, its regressions, and those of UCI."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from repulse_lab import data
from repulse_lab.defaults.problem import Problem, Role, Samples, Trained
from repulse_lab.defaults.training import Schedule, trained_network
from repulse_lab.networks.mlp import MLP

OUTSIDE = 1000
"""Number of rows of an out-of-distribution set that is drawn at random."""

SMALL = Schedule(steps=1000, batch=32)
LARGE = Schedule(steps=3000, batch=128)
EARLY = Schedule(steps=6000, batch=64, lr=3e-3, patience=600)
LATE = Schedule(steps=6000, batch=64, lr=3e-3)


def standardised(train: Tensor, *others: Tensor) -> list[Tensor]:
    """Return tables with the mean and standard deviation of the training rows taken out of every column."""
    mean, std = train.mean(dim=0), train.std(dim=0)
    return [(table - mean) / torch.where(std > 1e-6, std, 1.0) for table in (train, *others)]


def wide_box(train: Tensor, generator: torch.Generator, least: float = 1.0) -> Tensor:
    """Draw rows from a box three times as wide as the data, none closer than `least` to a training row."""
    low, high = train.amin(dim=0), train.amax(dim=0)
    drawn = torch.rand(4 * OUTSIDE, train.shape[1], generator=generator) * 3 * (high - low) + 2 * low - high
    return drawn[torch.cdist(drawn, train).amin(dim=1) > least][:OUTSIDE]


def one_column_outside(train: Tensor, test: Tensor, generator: torch.Generator) -> Tensor:
    """Return test rows with one column, at random, outside its range by a quarter to the whole of it."""
    rows = test[torch.randint(len(test), (OUTSIDE,), generator=generator)].clone()
    column = torch.randint(train.shape[1], (OUTSIDE,), generator=generator)
    low, high = train.amin(dim=0)[column], train.amax(dim=0)[column]
    beyond = (0.25 + 0.75 * torch.rand(OUTSIDE, generator=generator)) * (high - low).clamp_min(1.0)
    above = torch.rand(OUTSIDE, generator=generator) < 0.5
    rows[torch.arange(OUTSIDE), column] = torch.where(above, high + beyond, low - beyond)
    return rows


def classes(
    load: Callable[[Path], Any],
    left_out: Callable[[int], tuple[int, ...]],
    schedule: Schedule,
    seed: int,
    root: Path,
    keep: Path,
) -> Trained:
    """Put together a table of classes, of which `left_out(seed)` are unknown to the network: its near set."""
    x, y = load(root)
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    unknown = torch.isin(targets, torch.tensor(left_out(seed), dtype=torch.long))
    strangers, inputs, targets = inputs[unknown], inputs[~unknown], targets[~unknown]
    targets = torch.unique(targets, return_inverse=True)[1]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    rows = order.tensor_split([int(0.6 * len(order)), int(0.8 * len(order))])
    train, validation, test, strangers = standardised(*(inputs[part] for part in rows), strangers)
    samples = [Samples(x, targets[part]) for x, part in zip((train, validation, test), rows, strict=True)]
    count = int(targets.max()) + 1

    def member(number: int) -> torch.nn.Module:
        build = partial(MLP, train.shape[1], count, 64, 2)
        return trained_network(build, samples[0], schedule, 100 * seed + number, keep / f"{seed}-{number}.safetensors")

    far = {"wide box": Samples(wide_box(train, generator))}
    if train.shape[1] > 2:
        far["one column outside"] = Samples(one_column_outside(train, test, generator))
    near = {"classes left out": Samples(strangers)} if len(strangers) else {}
    if train.shape[1] == 2:
        near = {"ring": Samples(_ring(train, generator))}
    return Trained(member(0), samples[0], samples[1], samples[2], near, far, member=member)


def _ring(train: Tensor, generator: torch.Generator) -> Tensor:
    """Draw rows around the data, 0.4 to 0.8 standard deviations from the nearest training row."""
    drawn = torch.empty(0, train.shape[1])
    while len(drawn) < OUTSIDE:
        further = wide_box(train, generator, least=0.4)
        drawn = torch.cat([drawn, further[torch.cdist(further, train).amin(dim=1) <= 0.8]])
    return drawn[:OUTSIDE]


def uci(name: str, schedule: Schedule, seed: int, root: Path, keep: Path) -> Trained:
    """Put together a regression on one of its published splits; a sixth of the training rows validate."""
    parts = [data.load(f"uci-{name}", f"{part}-{seed % 5}", root) for part in ("train", "test")]
    rows, test = ((torch.as_tensor(part.inputs), torch.as_tensor(part.targets)) for part in parts)
    return _numbers(rows, test, schedule, seed, keep)


def numbers(load: Callable[[Path], Any], rows: int, schedule: Schedule, seed: int, root: Path, keep: Path) -> Trained:
    """Put together a regression of which `rows` train and validate, and all others test."""
    x, y = (torch.from_numpy(part).float() for part in load(root))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1000 + seed))
    used, test = order[:rows], order[rows:]
    return _numbers((x[used], y[used]), (x[test], y[test]), schedule, seed, keep)


def _numbers(
    rows: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], schedule: Schedule, seed: int, keep: Path
) -> Trained:
    """Put together a regression from rows, a sixth of which validate, and test rows."""
    (x, y), (x_test, y_test) = rows, test
    generator = torch.Generator().manual_seed(seed)
    validating, training = torch.randperm(len(y), generator=generator).tensor_split([len(y) // 6])
    x, x_validation, x_test = standardised(x[training], x[validating], x_test)
    targets = standardised(y[training], y[validating], y_test)
    inputs = (x, x_validation, x_test)
    samples = [Samples(a, b) for a, b in zip(inputs, targets, strict=True)]

    def member(number: int) -> torch.nn.Module:
        path = keep / f"{seed}-{number}.safetensors"
        build = partial(MLP, x.shape[1], 1, 64, 2)
        return trained_network(build, samples[0], schedule, 100 * seed + number, path, samples[1])

    far = {
        "wide box": Samples(wide_box(x, generator)),
        "one column outside": Samples(one_column_outside(x, x_test, generator)),
    }
    unit = float(y[training].std())
    return Trained(member(0), samples[0], samples[1], samples[2], far=far, member=member, unit=unit)


def _moons(_: Path) -> Any:
    from sklearn.datasets import make_moons

    return make_moons(1000, noise=0.2, random_state=0)


def _circles(_: Path) -> Any:
    from sklearn.datasets import make_circles

    return make_circles(1000, noise=0.12, factor=0.6, random_state=0)


def _quantiles(_: Path) -> Any:
    from sklearn.datasets import make_gaussian_quantiles

    return make_gaussian_quantiles(n_samples=2000, n_features=6, n_classes=3, random_state=0)


def _friedman(number: int, noise: float, _: Path) -> Any:
    from sklearn import datasets

    return getattr(datasets, f"make_friedman{number}")(2000, noise=noise, random_state=0)


def _bundled(name: str, _: Path) -> Any:
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)


def _synthetic(_: Path) -> Any:
    from sklearn.datasets import make_classification

    return make_classification(
        13_200, 24, n_informative=14, n_redundant=4, n_classes=22, n_clusters_per_class=1, class_sep=1.6, random_state=0
    )


PROBLEMS = (
    Problem("moons", "two moons, MLP", "moons", "choosing", partial(classes, _moons, lambda _: (), SMALL)),
    Problem("circles", "two circles, MLP", "circles", "choosing", partial(classes, _circles, lambda _: (), SMALL)),
    Problem(
        "quantiles",
        "shells of a Gaussian with six columns, three classes, MLP",
        "quantiles",
        "reporting",
        partial(classes, _quantiles, lambda _: (), SMALL),
    ),
    Problem(
        "breast-cancer",
        "breast cancer, 30 columns, MLP",
        "breast-cancer",
        "choosing",
        partial(classes, partial(_bundled, "breast_cancer"), lambda _: (), SMALL),
    ),
    Problem(
        "wine",
        "wines, two classes known and one unknown, MLP",
        "wine",
        "choosing",
        partial(classes, partial(_bundled, "wine"), lambda seed: (seed % 3,), SMALL),
    ),
    Problem(
        "iris",
        "irises, two classes known and one unknown, MLP",
        "iris",
        "reporting",
        partial(classes, partial(_bundled, "iris"), lambda seed: (seed % 3,), SMALL),
    ),
    Problem(
        "synthetic-20",
        "synthetic table, 20 classes known and two unknown, MLP",
        "synthetic-20",
        "choosing",
        partial(classes, _synthetic, lambda seed: (2 * seed % 22, (2 * seed + 1) % 22), LARGE),
    ),
    *(
        Problem(
            name,
            f"{title}, MLP stopped early",
            name,
            cast(Role, role),
            partial(numbers, load, rows, EARLY),
            "regression",
        )
        for name, title, role, load, rows in (
            ("diabetes", "diabetes of scikit-learn", "choosing", partial(_bundled, "diabetes"), 345),
            ("friedman-1", "Friedman's first function", "choosing", partial(_friedman, 1, 1.0), 480),
            ("friedman-3", "Friedman's third function", "reporting", partial(_friedman, 3, 0.05), 480),
        )
    ),
    *(
        Problem(
            f"{name}-{when}",
            f"UCI {name}, MLP {'stopped early' if when == 'early' else 'trained to the end'}",
            name,
            "choosing" if name in ("concrete", "yacht") else "reporting",
            partial(uci, name, schedule),
            "regression",
        )
        for name in ("concrete", "yacht", "energy", "power-plant")
        for when, schedule in (("early", EARLY), ("late", LATE))
    ),
)
"""All problems on tables."""
