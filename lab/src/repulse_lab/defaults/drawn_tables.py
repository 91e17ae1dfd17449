"""Tables drawn with `make_classification`, and digits as rows of pixels: many small problems to choose constants on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from repulse_lab.defaults.problem import Problem
from repulse_lab.defaults.tables import SMALL, classes

SHAPES = (
    (1500, 8, 5, 2, 4, 1.0),
    (800, 12, 6, 2, 3, 1.2),
    (4000, 30, 10, 10, 8, 1.5),
    (3000, 16, 8, 0, 6, 1.0),
    (600, 40, 8, 8, 3, 1.2),
    (6000, 20, 15, 3, 12, 1.8),
    (1200, 6, 4, 1, 2, 1.0),
    (2500, 50, 20, 20, 5, 1.5),
)
"""Rows, columns, informative ones, redundant ones, classes and the distance between these."""


def _drawn(number: int, _: Path) -> Any:
    from sklearn.datasets import make_classification

    rows, columns, informative, redundant, count, distance = SHAPES[number]
    return make_classification(
        rows,
        columns,
        n_informative=informative,
        n_redundant=redundant,
        n_classes=count,
        n_clusters_per_class=1 if count > 4 else 2,
        class_sep=distance,
        random_state=100 + number,
    )


def _left_out(number: int, seed: int) -> tuple[int, ...]:
    count = SHAPES[number][4]
    return (seed % count,) if count > 2 else ()


def _pixels(_: Path) -> Any:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


PROBLEMS = (
    *(
        Problem(
            f"drawn-{number}",
            f"drawn table, {shape[0]} rows, {shape[1]} columns, {shape[4]} classes"
            + (", one of them unknown" if shape[4] > 2 else "")
            + ", MLP",
            f"drawn-{number}",
            "choosing",
            partial(classes, partial(_drawn, number), partial(_left_out, number), SMALL),
        )
        for number, shape in enumerate(SHAPES)
    ),
    Problem(
        "digits-rows",
        "scikit-learn digits as rows of pixels, two of ten classes unknown, MLP",
        "digits",
        "choosing",
        partial(classes, _pixels, lambda seed: (seed % 10, (seed + 4) % 10), SMALL),
    ),
)
"""All problems on these tables."""
